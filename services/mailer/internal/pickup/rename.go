package pickup

import (
	"errors"
	"io/fs"
	"os"
)

// renameChecked looks before it moves, where the system cannot do both in one
// step. What it may replace in between is a file that somebody else gave the
// name of this very delivery within microseconds.
func renameChecked(f *folder, oldName, newName string) error {
	_, err := f.root.Lstat(newName)
	if err == nil {
		return &os.LinkError{Op: "rename", Old: oldName, New: newName, Err: fs.ErrExist}
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return f.root.Rename(oldName, newName)
}
