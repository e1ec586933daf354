package pickup

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// renameNoReplace moves a file in one step that fails when newName exists.
// A link and an unlink would not do: between the two the file has both names,
// and a mail server that takes the new one away invites a second one.
func renameNoReplace(f *folder, oldName, newName string) error {
	fd := int(f.self.Fd())
	err := unix.Renameat2(fd, oldName, fd, newName, unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EOPNOTSUPP) {
		return renameChecked(f, oldName, newName) // NFS and some FUSE file systems
	}
	if err != nil {
		return &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: err}
	}
	return nil
}
