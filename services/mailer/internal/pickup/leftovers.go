package pickup

import (
	"errors"
	"fmt"
	"time"
)

// Leftover is a file in the staging folder.
type Leftover struct {
	Name     string
	Delivery string // "" when the name is not of a staged mail
	Modified time.Time
}

// errEnough ends a listing early.
var errEnough = errors.New("enough")

// Leftovers calls visit with bites of the staged files last modified before the
// given time, in no order, until all were seen or visit returns false. What is
// in the pickup folder itself belongs to the mail server and is never looked at.
func (b *Box) Leftovers(before time.Time, bite int, visit func([]Leftover) (more bool, err error)) error {
	return b.within(func(f Folder) error {
		err := f.List(StagingName, bite, func(entries []Entry) error {
			var found []Leftover
			for _, e := range entries {
				if e.Dir || !e.Modified.Before(before) {
					continue
				}
				l := Leftover{Name: e.Name, Modified: e.Modified}
				if delivery, _, ok := split(e.Name); ok {
					l.Delivery = delivery
				}
				found = append(found, l)
			}
			if len(found) == 0 {
				return nil
			}
			more, err := visit(found)
			if err != nil {
				return err
			}
			if !more {
				return errEnough
			}
			return nil
		})
		if errors.Is(err, errEnough) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list staged files: %w", err)
		}
		return nil
	})
}
