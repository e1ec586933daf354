package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FileSystem is the type of the file system that a path is on, as Unfit takes it.
func FileSystem(path string) (int64, error) {
	var stat unix.Statfs_t
	if err := unix.Statfs(path, &stat); err != nil {
		return 0, fmt.Errorf("look at the file system of %s: %w", path, err)
	}
	return int64(stat.Type), nil // narrower on other machines
}
