package ledger

import (
	"context"
	"fmt"

	"github.com/pillarbox/pillarbox/shared/database"
)

// Marker returns the id of the pickup folder's marker, proposed if the table is
// empty: of several replicas with different proposals one wins. founded is
// whether Founded was called for it.
func Marker(ctx context.Context, db *database.DB, proposed string) (marker string, founded bool, err error) {
	err = db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx,
			`INSERT INTO pickup_marker (id, marker) VALUES (1, $1) ON CONFLICT DO NOTHING`, proposed)
		if err != nil {
			return err
		}
		return tx.QueryRowContext(ctx,
			`SELECT marker, founded_at IS NOT NULL FROM pickup_marker WHERE id = 1`).Scan(&marker, &founded)
	})
	if err != nil {
		return "", false, fmt.Errorf("read pickup marker: %w", err)
	}
	return marker, founded, nil
}

// Founded notes that the marker file exists, durably. From now on a folder
// without it is not the pickup folder.
func Founded(ctx context.Context, db *database.DB, marker string) error {
	err := db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `
			UPDATE pickup_marker SET founded_at = `+tx.Dialect().Now()+`
			WHERE id = 1 AND marker = $1 AND founded_at IS NULL`, marker)
		return err
	})
	if err != nil {
		return fmt.Errorf("note pickup marker: %w", err)
	}
	return nil
}
