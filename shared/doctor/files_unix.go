//go:build unix

package doctor

import (
	"io/fs"
	"syscall"
)

// Names is how many names (hard links) a file has; 1 where nobody can tell.
func Names(info fs.FileInfo) uint64 {
	if stat, ok := info.Sys().(*syscall.Stat_t); ok {
		return uint64(stat.Nlink) // narrower on other systems
	}
	return 1
}

// Owner is the user that owns a file; false where nobody can tell.
func Owner(info fs.FileInfo) (uid int, ok bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, false
	}
	return int(stat.Uid), true
}

// SameDevice reports whether two files are on one device; true where nobody can tell.
func SameDevice(a, b fs.FileInfo) bool {
	one, ok := a.Sys().(*syscall.Stat_t)
	other, also := b.Sys().(*syscall.Stat_t)
	return !ok || !also || one.Dev == other.Dev
}
