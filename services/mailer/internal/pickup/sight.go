package pickup

import (
	"errors"
	"fmt"
	"io/fs"
)

// Sight is where a file that a row names was seen.
type Sight int

// Sights.
const (
	Missing   Sight = iota // in neither folder: published and taken away, or removed by hand
	Staged                 // still to be published
	Published              // in the pickup folder
)

// See looks for the items' files; it changes nothing. A file that is published meanwhile is seen published, since
// the staging folder is looked at first.
func (b *Box) See(items []Item) (seen []Sight, err error) {
	err = b.within(func(f Folder) error {
		seen = make([]Sight, len(items))
		for n, item := range items {
			staged, err := isThere(f, StagingName+"/"+item.Staged)
			if err != nil {
				return err
			}
			if staged {
				seen[n] = Staged
				continue
			}
			there, err := published(f, item)
			if err != nil {
				return err
			}
			if there {
				seen[n] = Published
			}
		}
		return nil
	})
	return seen, err
}

// published reports whether the item's mail lies in the pickup folder, under either of its names.
func published(f Folder, item Item) (bool, error) {
	for _, name := range []string{item.Delivery + extension, item.Staged} {
		if there, err := isThere(f, name); err != nil || there {
			return there, err
		}
	}
	return false, nil
}

func isThere(f Folder, name string) (bool, error) {
	_, err := f.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for file: %w", err)
	}
	return true, nil
}
