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
			for _, place := range []struct {
				name  string
				sight Sight
			}{
				{StagingName + "/" + item.Staged, Staged}, {item.Delivery + extension, Published}, {item.Staged, Published},
			} {
				_, err := f.Stat(place.name)
				if err == nil {
					seen[n] = place.sight
					break
				}
				if !errors.Is(err, fs.ErrNotExist) {
					return fmt.Errorf("look for file: %w", err)
				}
			}
		}
		return nil
	})
	return seen, err
}
