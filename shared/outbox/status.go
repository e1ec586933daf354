package outbox

import (
	"context"
	"fmt"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
)

// Status is the backlog as the database shows it.
type Status struct {
	Waiting   int64         // rows not yet confirmed, without the dead ones
	OldestAge time.Duration // of the oldest waiting row
	Dead      int64         // rows the broker refuses for ever
}

// ReadStatus reads the backlog. It counts the rows, so it is not for every request.
func ReadStatus(ctx context.Context, db *database.DB) (Status, error) {
	now := db.Dialect().Now()
	var s Status
	var total, age int64
	err := db.Read().QueryRowContext(ctx, `SELECT
			(SELECT count(*) FROM outbox),
			(SELECT count(*) FROM outbox WHERE dead_reason IS NOT NULL),
			coalesce((SELECT `+now+` - created_at FROM outbox WHERE dead_reason IS NULL ORDER BY seq LIMIT 1), 0)`,
	).Scan(&total, &s.Dead, &age)
	if err != nil {
		return Status{}, fmt.Errorf("read outbox status: %w", err)
	}
	s.Waiting = total - s.Dead
	s.OldestAge = time.Duration(max(age, 0)) * time.Microsecond
	return s, nil
}
