package mailersvc

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// Examine adds to r what in the pickup folder endangers the mails. try goes through what publishing
// needs with a scratch file; without it nothing is changed.
func (c Config) Examine(ctx context.Context, db *database.DB, try bool, r *doctor.Report) {
	c = c.withDefaults()
	if c.Transport != toPickup {
		return
	}
	if absolute, err := filepath.Abs(c.Pickup); err == nil {
		c.Pickup = absolute
	}
	marker, err := knownMarker(ctx, db)
	if err != nil {
		c.Miss(err, r)
		return
	}
	pickup.Examine(pickup.Config{Dir: c.Pickup, Mode: fs.FileMode(c.FileMode)}, pickup.Examination{Marker: marker, Try: try}, r)
}

// Miss adds to r that the pickup folder, if mails go to one, could not be looked at, since its database could not.
func (c Config) Miss(err error, r *doctor.Report) {
	if c = c.withDefaults(); c.Transport == toPickup {
		r.Miss(doctor.Folder, "folder "+c.Pickup, err)
	}
}

// knownMarker is the marker of the folder that mails may be in; "" before there are any.
func knownMarker(ctx context.Context, db *database.DB) (string, error) {
	var marker string
	err := db.Read().QueryRowContext(ctx,
		`SELECT marker FROM pickup_marker WHERE id = 1 AND founded_at IS NOT NULL`).Scan(&marker)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read pickup marker: %w", err)
	}
	return marker, nil
}
