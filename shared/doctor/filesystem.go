package doctor

// Unfit says why a file system cannot keep what it was told to, by the kernel's
// name of its type; "" when nothing speaks against it.
func Unfit(magic int64) (name, why string) {
	const remote = "rename, locks or fsync mean something else there than on a local disk"
	switch uint32(magic) { // the kernel's numbers have 32 bits
	case 0x6969:
		return "NFS", remote
	case 0x517B, 0xFF534D42, 0xFE534D42:
		return "SMB/CIFS", remote
	case 0x01021997:
		return "9p", remote
	case 0x65735546:
		return "FUSE", remote
	case 0x5346414F, 0x6B414653:
		return "AFS", remote
	case 0x00C36400:
		return "Ceph", remote
	case 0x01021994:
		return "tmpfs", "it is gone after a power loss"
	case 0x858458F6:
		return "ramfs", "it is gone after a power loss"
	}
	return "", ""
}
