package pickup

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
)

// headSize is how much of a published file is read to recognise it; the
// Message-ID stands in the first few hundred bytes.
const headSize = 8 << 10

// Item is a file that a row names.
type Item struct {
	Delivery  string
	Staged    string // the name that Stage gave
	MessageID string
}

// Outcome counts what Publish did.
type Outcome struct {
	Moved   int // appeared now
	Earlier int // had appeared before
	Renamed int // appeared under another name, since a foreign file had theirs
	// Missing are deliveries of Earlier that are not in the pickup folder either: whoever published them knows, and so
	// does the mail server that took them away.
	Missing []string
}

// Publish moves the items into the pickup folder in the given order and makes
// that durable. renamed runs between the two; it may be nil. After an error any
// of them may have been moved; calling again is safe.
func (b *Box) Publish(items []Item, renamed func()) (Outcome, error) {
	var o Outcome
	if len(items) == 0 {
		return o, nil
	}
	err := b.within(func(f Folder) error {
		for _, item := range items {
			if err := publishOne(f, item, &o); err != nil {
				return err
			}
		}
		if renamed != nil {
			renamed()
		}
		if o.Earlier > 0 {
			// Files that are gone prove something only in a folder that is still the right one.
			if err := checkMarker(f, *b.marker.Load()); err != nil {
				return err
			}
		}
		// Also when nothing moved: another process may have moved the files and not have come to this.
		return b.sync(f)
	})
	return o, err
}

func publishOne(f Folder, item Item, o *Outcome) error {
	from, err := stagedPath(item.Staged)
	if err != nil {
		return err
	}
	if !isStem(item.Delivery) {
		return fmt.Errorf("%q is not the name of a delivery", item.Delivery)
	}
	to := item.Delivery + extension
	err = f.Rename(from, to)
	switch {
	case err == nil:
		o.Moved++
	case errors.Is(err, fs.ErrNotExist):
		o.Earlier++
		there, err := published(f, item)
		if err != nil {
			return err
		}
		if !there {
			o.Missing = append(o.Missing, item.Delivery)
		}
	case errors.Is(err, ErrNoReplace):
		return publishBeside(f, item, from, to, o)
	default:
		return fmt.Errorf("publish file: %w", err)
	}
	return nil
}

// publishBeside is for a published name that is taken. If it is this very mail
// (an older copy of the database, a file system that kept both names through a
// power loss), the staged file has nothing left to do. A foreign file stays as
// it is, and the mail appears under its staged name, which is free.
func publishBeside(f Folder, item Item, from, to string, o *Outcome) error {
	head, err := f.Head(to, headSize)
	if err == nil && bytes.Contains(head, []byte("<"+item.MessageID+">")) {
		if err := f.Sync("."); err != nil { // before the last other copy goes
			return fmt.Errorf("sync folder: %w", err)
		}
		if err := f.Remove(from); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove published file's staged twin: %w", err)
		}
		o.Earlier++
		return nil
	}
	err = f.Rename(from, item.Staged)
	if errors.Is(err, fs.ErrNotExist) {
		o.Earlier++
		return nil
	}
	if err != nil {
		return fmt.Errorf("publish file beside a foreign one: %w", err)
	}
	o.Renamed++
	return nil
}
