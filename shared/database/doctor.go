package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

// gooseTable is where the applied migrations are noted.
const gooseTable = "goose_db_version"

// Examination says how Examine looks.
type Examination struct {
	// Migrations of the service; nil leaves the schema out.
	Migrations fs.FS
	// Clock is this host's. Default time.Now.
	Clock func() time.Time
	// MaxSkew is the difference of clocks that is no finding. Default 2 s.
	MaxSkew time.Duration
}

const defaultMaxSkew = 2 * time.Second

// Examine adds to r what in the database endangers what it was told to keep. It
// reads and changes nothing.
func (db *DB) Examine(ctx context.Context, e Examination, r *doctor.Report) {
	if e.Clock == nil {
		e.Clock = time.Now
	}
	if e.MaxSkew == 0 {
		e.MaxSkew = defaultMaxSkew
	}
	if db.dialect.engine == sqlite {
		db.examineSQLite(ctx, r)
	} else {
		db.examineDurability(ctx, r)
		db.examineRole(ctx, r)
		db.examineClock(ctx, e, r)
	}
	if e.Migrations != nil {
		db.examineSchema(ctx, e.Migrations, r)
	}
}

// examineClock compares the clocks. The answer was given somewhere between
// question and receipt, so half of that time is doubt, and no finding.
func (db *DB) examineClock(ctx context.Context, e Examination, r *doctor.Report) {
	best, doubt := time.Duration(0), time.Duration(-1)
	for range 3 {
		asked := e.Clock()
		theirs, err := db.Now(ctx)
		if err != nil {
			r.Miss(doctor.Clock, db.place(), err)
			return
		}
		half := e.Clock().Sub(asked) / 2
		if doubt < 0 || half < doubt {
			best, doubt = theirs.Sub(asked.Add(half)), half
		}
	}
	if best.Abs()-doubt > e.MaxSkew {
		r.Find(doctor.ClockDatabase, db.place(), "its clock is %s %s this host's (± %s)",
			best.Abs().Round(time.Millisecond), aheadOf(best), doubt.Round(time.Millisecond))
	}
}

func aheadOf(d time.Duration) string {
	if d > 0 {
		return "ahead of"
	}
	return "behind"
}

// place names the database without its address, which may hold a password.
func (db *DB) place() string {
	if db.dialect.engine == sqlite {
		return "SQLite"
	}
	return "PostgreSQL"
}

// examineSchema compares the migrations that were applied with those of this program.
func (db *DB) examineSchema(ctx context.Context, files fs.FS, r *doctor.Report) {
	folder := "postgres"
	if db.dialect.engine == sqlite {
		folder = "sqlite"
	}
	known, err := versionsOf(files, folder)
	if err != nil {
		r.Miss(doctor.Schema, db.place(), err)
		return
	}
	applied, undone, err := db.appliedVersions(ctx)
	switch {
	case db.noTable(err):
		r.Find(doctor.SchemaBehind, db.schemaPlace(ctx), "no migration was ever applied")
		return
	case err != nil:
		r.Miss(doctor.Schema, db.place(), err)
		return
	}
	newest := slices.Max(append([]int64{0}, applied...))
	var behind, missing, ahead []int64
	for _, v := range known {
		switch {
		case slices.Contains(applied, v):
		case v > newest:
			behind = append(behind, v)
		default:
			missing = append(missing, v)
		}
	}
	for _, v := range applied {
		if v > 0 && !slices.Contains(known, v) {
			ahead = append(ahead, v)
		}
	}
	at := db.schemaPlace(ctx)
	switch {
	case len(missing) > 0:
		r.Find(doctor.SchemaBroken, at, "migrations %v are not applied, later ones are", missing)
	case len(undone) > 0:
		r.Find(doctor.SchemaBroken, at, "migrations %v are noted as not applied", undone)
	case len(behind) > 0:
		r.Find(doctor.SchemaBehind, at, "migrations %v are not applied", behind)
	case len(ahead) > 0:
		r.Find(doctor.SchemaAhead, at, "this program does not know its migrations %v", ahead)
	}
}

func (db *DB) schemaPlace(ctx context.Context) string {
	var schema sql.NullString
	if db.dialect.engine == sqlite || db.read.QueryRowContext(ctx, "SELECT current_schema()").Scan(&schema) != nil || !schema.Valid {
		return db.place()
	}
	return "PostgreSQL, schema " + schema.String
}

// versionsOf are the numbers that the files' names begin with.
func versionsOf(files fs.FS, folder string) ([]int64, error) {
	entries, err := fs.ReadDir(files, folder)
	if err != nil {
		return nil, fmt.Errorf("read migrations: %w", err)
	}
	var versions []int64
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "_")
		v, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("read migrations: %s has no number", e.Name())
		}
		versions = append(versions, v)
	}
	return versions, nil
}

// appliedVersions reads what the table of migrations says last of each.
func (db *DB) appliedVersions(ctx context.Context) (applied, undone []int64, err error) {
	rows, err := db.read.QueryContext(ctx, `SELECT version_id, is_applied FROM `+gooseTable+` ORDER BY id`)
	if err != nil {
		return nil, nil, fmt.Errorf("read applied migrations: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var version int64
		var is bool
		if err := rows.Scan(&version, &is); err != nil {
			return nil, nil, fmt.Errorf("read applied migrations: %w", err)
		}
		same := func(v int64) bool { return v == version }
		applied, undone = slices.DeleteFunc(applied, same), slices.DeleteFunc(undone, same)
		if is {
			applied = append(applied, version)
		} else {
			undone = append(undone, version)
		}
	}
	return applied, undone, rows.Err()
}
