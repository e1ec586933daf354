package pickup

import (
	"io"
	"io/fs"
	"time"
)

// ErrNoReplace is why Folder.Rename refuses when newName exists.
var ErrNoReplace = fs.ErrExist

// Disk is the file system as the protocol uses it. It is a seam: tests put a
// disk under it that loses power and keeps only what was fsynced.
type Disk interface {
	// Open opens an existing folder.
	Open(path string) (Folder, error)
	// Make creates the folder and its missing parents, durably.
	Make(path string, mode fs.FileMode) error
}

// Folder is one opened pickup folder. Everything happens in that very folder,
// also when its path comes to mean another one meanwhile (an unmount, a new
// mount). Names are relative; those of staged files begin with the staging
// folder's name. Each method is one step of the protocol and answers for
// itself, so that no system call goes unaccounted for.
type Folder interface {
	// Create makes a new file with exactly this mode; an existing name is an error.
	Create(name string, mode fs.FileMode) (File, error)
	// Head reads the first bytes of a file.
	Head(name string, most int64) ([]byte, error)
	// Stat describes name itself, not what a link points to.
	Stat(name string) (Entry, error)
	// Mkdir makes a folder; an existing one is fine.
	Mkdir(name string, mode fs.FileMode) error
	// Rename moves atomically and never replaces: ErrNoReplace when newName exists.
	Rename(oldName, newName string) error
	Remove(name string) error
	// List calls visit with bites of the entries of a sub-folder until one returns an error, which is returned.
	List(name string, bite int, visit func([]Entry) error) error
	// Sync makes the entries of a folder durable ("." is the folder itself).
	Sync(name string) error
	Close() error
}

// File is a new file.
type File interface {
	io.Writer
	Sync() error
	Close() error
}

// Entry is one directory entry.
type Entry struct {
	Name     string
	Modified time.Time
	Dir      bool
}
