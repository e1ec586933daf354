package pickup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// System is the real file system.
type System struct{}

// Open opens an existing folder.
func (System) Open(path string) (_ Folder, err error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	self, err := root.Open(".")
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return &folder{root: root, self: self}, nil
}

// Make creates the folder and its missing parents, and syncs each parent, since
// a new folder is an entry that a power loss can take back.
func (System) Make(path string, mode fs.FileMode) error {
	path, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a folder", path)
		}
		return nil
	}
	parent := filepath.Dir(path)
	if parent == path {
		return fmt.Errorf("%s does not exist", path)
	}
	if err := (System{}).Make(parent, mode); err != nil {
		return err
	}
	if err := os.Mkdir(path, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncPath(os.Open(parent))
}

// folder is an open directory. os.Root keeps every name inside it.
type folder struct {
	root *os.Root
	self *os.File
}

func (f *folder) Create(name string, mode fs.FileMode) (File, error) {
	file, err := f.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return nil, err
	}
	// The mode is what the operator asked for, whatever the umask.
	if err := file.Chmod(mode); err != nil {
		return nil, errors.Join(err, file.Close(), f.root.Remove(name))
	}
	return file, nil
}

func (f *folder) Head(name string, most int64) (_ []byte, err error) {
	info, err := f.root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() { // opening a pipe would wait for its writer
		return nil, fmt.Errorf("%s is not a regular file", name)
	}
	file, err := f.root.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return io.ReadAll(io.LimitReader(file, most))
}

func (f *folder) Stat(name string) (Entry, error) {
	info, err := f.root.Lstat(name)
	if err != nil {
		return Entry{}, err
	}
	return Entry{Name: info.Name(), Modified: info.ModTime(), Dir: info.IsDir()}, nil
}

func (f *folder) Mkdir(name string, mode fs.FileMode) error {
	if err := f.root.Mkdir(name, mode); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return nil
}

func (f *folder) Rename(oldName, newName string) error {
	return renameNoReplace(f, oldName, newName)
}

func (f *folder) Remove(name string) error { return f.root.Remove(name) }

func (f *folder) List(name string, bite int, visit func([]Entry) error) (err error) {
	dir, err := f.root.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	for {
		listed, err := dir.ReadDir(bite)
		entries := make([]Entry, 0, len(listed))
		for _, entry := range listed {
			info, err := entry.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue // gone since
			}
			if err != nil {
				return err
			}
			entries = append(entries, Entry{Name: entry.Name(), Modified: info.ModTime(), Dir: info.IsDir()})
		}
		if len(entries) > 0 {
			if err := visit(entries); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (f *folder) Sync(name string) error {
	if name == "." {
		return f.self.Sync()
	}
	return syncPath(f.root.Open(name))
}

func (f *folder) Close() error { return errors.Join(f.self.Close(), f.root.Close()) }

// syncPath syncs and closes what was just opened.
func syncPath(file *os.File, err error) error {
	if err != nil {
		return err
	}
	return errors.Join(file.Sync(), file.Close())
}
