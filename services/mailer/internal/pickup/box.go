// Package pickup publishes files into a folder from which a mail server takes
// them away, so that each appears once and whole, whatever crashes.
//
// A file is written and fsynced in the staging folder, under a name of its own.
// Its owner then writes that name into a database row, and only files that rows
// name are moved into the pickup folder:
//
//	          Stage              (the row commits)           Publish
//	nothing ────────▶ staged, loose ────────────▶ staged, named ────────▶ published ──▶ taken away
//	                       │ Discard, or Leftovers after an hour
//	                       ▼
//	                    nothing
//
// A named file that is gone from staging was published: its absence is the
// proof, since the mail server may have taken the published file at once. So a
// folder that is missing, not mounted or replaced must never be mistaken for an
// empty one. A marker file with an id that the database keeps tells them apart:
// every step opens the folder, checks the marker in it, and works within that
// handle.
//
// It promises: no file is seen half written; none is published twice, none is
// overwritten; files of one Publish appear in the order given; after Publish
// returns nil, a power loss takes nothing back. It relies on rename being atomic
// at a power loss, as it is on journaling file systems. A rename that a power
// loss undid after the mail server read the file is published again: the one
// duplicate that remains, with the same Message-ID.
//
// A crash leaves loose files, which Leftovers finds, and named ones, which the
// next Publish of their row moves.
package pickup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync/atomic"
)

// Names within the pickup folder.
const (
	MarkerName  = ".pillarbox-pickup"
	StagingName = ".staging"
	extension   = ".eml"
	// scratch is the suffix of files that only try the folder out.
	scratch = ".tmp"
)

// Errors of the folder as a whole. Any error of this package other than that
// of a context means that the folder cannot be used now.
var (
	// ErrUnmarked: the marker file is missing or another one.
	ErrUnmarked = errors.New("not the pickup folder that the database knows")
	// ErrNoMarker: Use was not called yet.
	ErrNoMarker = errors.New("the pickup folder's marker is not known yet")
	// ErrStagedGone: a file that was staged is no longer there.
	ErrStagedGone = errors.New("a staged file is gone")
)

// Config of New.
type Config struct {
	Dir  string
	Mode fs.FileMode // of published files
}

// Box is one pickup folder. It keeps nothing open between calls.
type Box struct {
	disk   Disk
	config Config
	marker atomic.Pointer[string]
	// failed counts failed fsyncs of folders, proven how many of them a Prove has
	// answered: what a failed one covered may be lost though a second one returns
	// success, so the next step proves the folder first.
	failed, proven atomic.Int64
}

// New does no I/O.
func New(c Config, d Disk) *Box { return &Box{disk: d, config: c} }

// Dir is the folder's path.
func (b *Box) Dir() string { return b.config.Dir }

// Check reports why the folder cannot be used: it is missing, or not the one with the marker.
func (b *Box) Check() error {
	return b.within(func(Folder) error { return nil })
}

// Prove goes through every operation that publishing needs, with a scratch file,
// and fsyncs both folders after having changed them.
func (b *Box) Prove() error {
	b.failed.Add(1)
	return b.within(func(Folder) error { return nil })
}

// within opens the folder, checks the marker and runs do in that very folder.
func (b *Box) within(do func(Folder) error) (err error) {
	marker := b.marker.Load()
	if marker == nil {
		return ErrNoMarker
	}
	f, err := b.disk.Open(b.config.Dir)
	if err != nil {
		return fmt.Errorf("open pickup folder: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := checkMarker(f, *marker); err != nil {
		return err
	}
	if failed := b.failed.Load(); failed != b.proven.Load() {
		if err := b.prove(f); err != nil {
			return err
		}
		b.proven.Store(failed)
	}
	return do(f)
}

// prove changes and fsyncs both folders, so that their earlier changes are
// written again with them.
func (b *Box) prove(f Folder) error {
	name := scratchName()
	staged := StagingName + "/" + name
	if err := b.write(f, staged, []byte("pillarbox\r\n")); err != nil {
		return err
	}
	if err := f.Rename(staged, name); err != nil {
		return errors.Join(fmt.Errorf("try to publish: %w", err), f.Remove(staged))
	}
	if err := f.Remove(name); err != nil {
		return fmt.Errorf("remove scratch file: %w", err)
	}
	return b.sync(f)
}

// write makes a whole, fsynced file, or none.
func (b *Box) write(f Folder, name string, data []byte) error {
	file, err := f.Create(name, b.config.Mode)
	if err != nil {
		return fmt.Errorf("create file: %w", err)
	}
	_, err = file.Write(data)
	if err == nil {
		err = file.Sync()
	}
	if err = errors.Join(err, file.Close()); err != nil {
		// After a failed fsync the kernel may call the lost pages clean: the file is not tried again.
		return errors.Join(fmt.Errorf("write file: %w", err), f.Remove(name))
	}
	return nil
}

// sync makes renames durable: first where the files came to, then where they
// left, so that no moment exists in which neither is on disk.
func (b *Box) sync(f Folder) error {
	return errors.Join(b.syncFolder(f, "."), b.syncFolder(f, StagingName))
}

func (b *Box) syncFolder(f Folder, name string) error {
	if err := f.Sync(name); err != nil {
		b.failed.Add(1)
		return fmt.Errorf("sync folder: %w", err)
	}
	return nil
}

// scratchName is hidden, so that no mail server takes it, and shows whose it is
// when a crash leaves it behind.
func scratchName() string { return MarkerName + "." + token() + scratch }

// token is a random name part.
func token() string { return strings.ToLower(rand.Text()[:16]) }

// stagedPath is where a staged file lies; an error for a name that this package did not give.
func stagedPath(name string) (string, error) {
	delivery, _, ok := split(name)
	if !ok || delivery == "" {
		return "", fmt.Errorf("%q is not the name of a staged file", name)
	}
	return StagingName + "/" + name, nil
}

// split takes a staged name, <delivery>.<random>.eml, apart.
func split(name string) (delivery, random string, ok bool) {
	rest, ok := strings.CutSuffix(name, extension)
	if !ok {
		return "", "", false
	}
	delivery, random, ok = strings.Cut(rest, ".")
	return delivery, random, ok && isStem(delivery) && isStem(random)
}

// isStem reports whether s is safe as a part of a file name.
func isStem(s string) bool {
	return s != "" && len(s) <= 64 && strings.IndexFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) < 0
}
