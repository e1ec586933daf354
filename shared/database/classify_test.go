package database_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

const (
	other       = database.ClassOther
	unavailable = database.ClassUnavailable
	conflict    = database.ClassConflict
	unique      = database.ClassUnique
	data        = database.ClassData
)

func TestClassifyStates(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]database.Class{
		"08006": unavailable, "28P01": unavailable, "3D000": unavailable, "53100": unavailable, "53300": unavailable,
		"57P01": unavailable, "57P03": unavailable, "57014": unavailable, "58030": unavailable, "25006": unavailable,
		"XX001": unavailable,
		"40001": conflict, "40P01": conflict, "55P03": conflict, "25P03": conflict, "25P04": conflict, "26000": conflict,
		"23505": unique,
		"23514": data, "23503": data, "22001": data, "22021": data, "54000": data,
		"42P01": other, "42601": other, "0A000": other, "XX000": other, "": other, "x": other,
	} {
		err := fmt.Errorf("insert order: %w", &pgconn.PgError{Code: code})
		require.Equal(t, want, database.Classify(err), code)
	}
	require.Equal(t, conflict, database.Classify(&pgconn.PgError{Code: "0A000", Routine: "RevalidateCachedQuery"}))
}

func TestClassifyOthers(t *testing.T) {
	t.Parallel()
	for err, want := range map[error]database.Class{
		nil:                      other,
		errors.New("whatever"):   other,
		context.Canceled:         other,
		context.DeadlineExceeded: unavailable,
		driver.ErrBadConn:        unavailable,
		io.ErrUnexpectedEOF:      unavailable,
		syscall.ECONNRESET:       unavailable,
		&net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}:               unavailable,
		fmt.Errorf("%w: %w", database.ErrCommitUnknown, context.Canceled): unavailable,
	} {
		require.Equal(t, want, database.Classify(err), "%v", err)
	}
}

// What the engines really answer to bad data, on both alike.
func TestClassifyRefusedRows(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, service, func(t *testing.T, db *database.DB) {
		require.NoError(t, put(t.Context(), db, "a"))
		for want, statements := range map[database.Class][]string{
			unique: {`INSERT INTO lanes (order_id, version) VALUES ('a', 1)`},
			data: {
				`INSERT INTO lanes (order_id, version) VALUES ('b', -1)`,
				`INSERT INTO lanes (order_id, version) VALUES ('', 1)`,
				`INSERT INTO lanes (order_id, version) VALUES ('b', NULL)`,
			},
			other: {`INSERT INTO no_such_table (a) VALUES (1)`, `not SQL at all`},
		} {
			for _, statement := range statements {
				err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
					_, err := tx.ExecContext(ctx, statement)
					return err
				})
				require.Error(t, err)
				require.Equal(t, want, database.Classify(err), "%s: %v", statement, err)
			}
		}
	})
}

func TestClassifyPostgresTimeouts(t *testing.T) {
	t.Parallel()
	db, url := databasetest.Postgres(t, service)
	hasty := open(t, url, database.Options{Schema: service, StatementTimeout: 50 * time.Millisecond})
	_, err := hasty.Read().ExecContext(t.Context(), `SELECT pg_sleep(10)`)
	require.Equal(t, unavailable, database.Classify(err), "%v", err)

	require.NoError(t, put(t.Context(), db, "a"))
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE lanes SET version = 8`)
		require.NoError(t, err)
		err = db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, `UPDATE lanes SET version = 9`)
			return err
		})
		require.Equal(t, conflict, database.Classify(err), "%v", err)
		return nil
	}))
	_, err = db.Read().ExecContext(t.Context(), `SELECT $1::text`, "a\x00b")
	require.Equal(t, data, database.Classify(err), "%v", err)
}

func TestClassifySQLiteStorage(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, service)
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, err := tx.ExecContext(ctx, `PRAGMA max_page_count = 1`) // it becomes the present size
		require.NoError(t, err)
		_, err = tx.ExecContext(ctx, `INSERT INTO dead_letters (id, body, reason) VALUES ('a', zeroblob(1000000), '')`)
		return err
	})
	require.Equal(t, unavailable, database.Classify(err), "full: %v", err)
	_, err = db.Read().ExecContext(t.Context(), `DELETE FROM lanes`)
	require.Equal(t, unavailable, database.Classify(err), "the readers cannot write: %v", err)

	path := filepath.Join(t.TempDir(), "no.db")
	require.NoError(t, os.WriteFile(path, make([]byte, 5000), 0o600))
	require.NoError(t, os.WriteFile(path, []byte("this is no database, however long one looks at it"), 0o600))
	_, err = database.Open("sqlite:"+path, database.Options{})
	require.Equal(t, unavailable, database.Classify(err), "not a database: %v", err)
}
