package pickup

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
)

// Mail is a file to stage.
type Mail struct {
	Delivery string // what its published name is made of: lower-case letters, digits, hyphens
	Data     []byte
}

// Staging is a group of files on their way into the staging folder.
type Staging struct {
	box    *Box
	folder Folder

	mu    sync.Mutex // guards names
	names []string
}

// Write writes one file and returns its new name in the staging folder. It may
// be called from several goroutines at once: the file system makes what they
// write durable together.
func (s *Staging) Write(m Mail) (string, error) {
	name := m.Delivery + "." + token() + extension
	path, err := stagedPath(name)
	if err != nil {
		return "", err
	}
	if err := s.box.write(s.folder, path, m.Data); err != nil {
		return "", err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.names = append(s.names, name)
	return name, nil
}

// Stage lets do write files, and keeps them when do returns nil: all are on disk
// when Stage returns nil, or none remains that it knows of.
func (b *Box) Stage(do func(*Staging) error) error {
	return b.within(func(f Folder) error {
		s := &Staging{box: b, folder: f}
		err := do(s)
		if err == nil && len(s.names) > 0 && !folderUnsynced {
			err = b.syncFolder(f, StagingName)
		}
		if err != nil {
			return errors.Join(err, removeAll(f, s.names))
		}
		return nil
	})
}

// Present reports ErrStagedGone unless all named files are still staged.
func (b *Box) Present(names []string) error {
	return b.within(func(f Folder) error {
		for _, name := range names {
			if _, err := f.Stat(StagingName + "/" + name); err != nil {
				return fmt.Errorf("%w: %w", ErrStagedGone, err)
			}
		}
		return nil
	})
}

// Discard removes staged files that no row names. Missing ones are fine.
func (b *Box) Discard(names []string) error {
	if len(names) == 0 {
		return nil
	}
	return b.within(func(f Folder) error { return removeAll(f, names) })
}

func removeAll(f Folder, names []string) error {
	var problems error
	for _, name := range names {
		path, err := stagedPath(name)
		if err == nil {
			err = f.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			problems = errors.Join(problems, fmt.Errorf("remove staged file: %w", err))
		}
	}
	return problems
}
