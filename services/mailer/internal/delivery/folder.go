package delivery

import (
	"context"
	"fmt"
	"sync"

	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/database"
)

// Folder is the pickup folder together with the marker that the database keeps.
type Folder struct {
	box *pickup.Box
	db  *database.DB

	mu    sync.Mutex // guards known and lets one goroutine at a time find the marker
	known bool
}

// NewFolder does no I/O.
func NewFolder(box *pickup.Box, db *database.DB) *Folder { return &Folder{box: box, db: db} }

// Box returns the folder to work with, once the database has told its marker.
// At the very first start it makes the folder and the marker: the row decides
// which of several replicas names it, and founded_at, written after the file is
// on disk, ends the time in which a missing file may be made.
func (f *Folder) Box(ctx context.Context) (*pickup.Box, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.known {
		return f.box, nil
	}
	marker, founded, err := ledger.Marker(ctx, f.db, uuid.NewString())
	if err != nil {
		return nil, err
	}
	if !founded {
		if err := f.box.Found(marker); err != nil {
			return nil, fmt.Errorf("found pickup folder: %w", err)
		}
		if err := ledger.Founded(ctx, f.db, marker); err != nil {
			return nil, err
		}
	}
	f.box.Use(marker)
	f.known = true
	return f.box, nil
}

// Check reports why the folder cannot be used. It changes nothing in a folder that is well.
func (f *Folder) Check(ctx context.Context) error {
	box, err := f.Box(ctx)
	if err != nil {
		return err
	}
	return box.Check()
}

// Prove tries the folder out by writing.
func (f *Folder) Prove(ctx context.Context) error {
	box, err := f.Box(ctx)
	if err != nil {
		return err
	}
	return box.Prove()
}
