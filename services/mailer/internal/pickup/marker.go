package pickup

import (
	"errors"
	"fmt"
	"io/fs"
)

const maxMarker = 200 // bytes

// Use says which marker the folder must carry. It does no I/O.
func (b *Box) Use(marker string) { b.marker.Store(&marker) }

// Found makes the folder, its staging folder and the marker file, where they
// are missing. It is only for a marker that no file was ever staged under:
// afterwards a missing marker means a missing folder. Several processes may do
// it at once with one marker. A folder with another marker is refused: it
// belongs to another installation, whose sweeper would remove our files.
func (b *Box) Found(marker string) (err error) {
	const folderMode, stagingMode = 0o770, 0o700
	if err := b.disk.Make(b.config.Dir, folderMode); err != nil {
		return fmt.Errorf("make pickup folder: %w", err)
	}
	f, err := b.disk.Open(b.config.Dir)
	if err != nil {
		return fmt.Errorf("open pickup folder: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Mkdir(StagingName, stagingMode); err != nil {
		return fmt.Errorf("make staging folder: %w", err)
	}
	if _, err := f.Stat(MarkerName); !errors.Is(err, fs.ErrNotExist) {
		return errors.Join(checkMarker(f, marker), b.sync(f))
	}
	// Written aside and moved in place: no process ever reads half a marker.
	aside := scratchName()
	if err := b.write(f, aside, []byte(marker+"\n")); err != nil {
		return err
	}
	if err := f.Rename(aside, MarkerName); err != nil {
		err = errors.Join(err, f.Remove(aside))
		if !errors.Is(err, ErrNoReplace) {
			return fmt.Errorf("place marker: %w", err)
		}
	}
	return errors.Join(checkMarker(f, marker), b.sync(f))
}

// checkMarker reports whether f is the folder with the marker and has its staging folder.
func checkMarker(f Folder, marker string) error {
	head, err := f.Head(MarkerName, maxMarker)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: it has no file %s; is it mounted? "+
			"(to take this folder for the right one, write %s into that file and make the folder %s beside it)",
			ErrUnmarked, MarkerName, marker, StagingName)
	}
	if err != nil {
		return fmt.Errorf("read marker: %w", err)
	}
	if string(head) != marker+"\n" && string(head) != marker {
		return fmt.Errorf("%w: file %s does not say %s", ErrUnmarked, MarkerName, marker)
	}
	staging, err := f.Stat(StagingName)
	if err != nil || !staging.Dir {
		return fmt.Errorf("%w: it has no folder %s", ErrUnmarked, StagingName)
	}
	return nil
}
