package pickup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"golang.org/x/sync/errgroup"
)

// Mail is a file to stage.
type Mail struct {
	Delivery string // what its published name is made of: lower-case letters, digits, hyphens
	Data     []byte
}

// Stage writes the mails, each under a new name in the staging folder, and
// returns the names in the same order. All are on disk when it returns, or
// none remains that it knows of.
func (b *Box) Stage(ctx context.Context, mails []Mail) ([]string, error) {
	names := make([]string, len(mails))
	for i, m := range mails {
		names[i] = m.Delivery + "." + token() + extension
		if _, err := stagedPath(names[i]); err != nil {
			return nil, err
		}
	}
	err := b.within(func(f Folder) error {
		if err := b.writeAll(ctx, f, names, mails); err != nil {
			return err
		}
		if err := b.syncFolder(f, StagingName); err != nil {
			return errors.Join(err, removeAll(f, names))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return names, nil
}

// writeAll writes several files at a time: the file system makes them durable together.
func (b *Box) writeAll(ctx context.Context, f Folder, names []string, mails []Mail) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(b.config.Stagers, 1))
	for i := range mails {
		group.Go(func() error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return b.write(f, StagingName+"/"+names[i], mails[i].Data)
		})
	}
	if err := group.Wait(); err != nil {
		return errors.Join(err, removeAll(f, names))
	}
	return nil
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
