package database

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

const undefinedTable = "42P01"

// noTable reports that the table of migrations does not exist.
func (db *DB) noTable(err error) bool {
	if err == nil {
		return false
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == undefinedTable
	}
	return db.dialect.engine == sqlite && strings.Contains(err.Error(), "no such table")
}

// examineDurability looks at what decides whether a commit survives a power
// loss. reset_val is what the role, the database and the server say, beneath
// what our own sessions set.
func (db *DB) examineDurability(ctx context.Context, r *doctor.Report) {
	var fsync, commit, pages string
	err := db.read.QueryRowContext(ctx, `SELECT current_setting('fsync'), current_setting('full_page_writes'),
		(SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit')`).Scan(&fsync, &pages, &commit)
	if err != nil {
		r.Miss(doctor.Postgres, db.place(), err)
		return
	}
	if fsync == "off" {
		r.Find(doctor.PGFsync, db.place(), "fsync is off")
	}
	if pages == "off" {
		r.Find(doctor.PGFullPages, db.place(), "full_page_writes is off")
	}
	if commit == "off" {
		r.Find(doctor.PGSyncCommit, db.place(), "synchronous_commit is off where a session begins")
	}
	unlogged, err := db.names(ctx, `SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace
		AND relkind IN ('r', 'p') AND relpersistence = 'u' ORDER BY relname`)
	if err != nil {
		r.Miss(doctor.Postgres, db.place(), err)
		return
	}
	if len(unlogged) > 0 {
		r.Find(doctor.PGUnlogged, db.schemaPlace(ctx), "unlogged: %s", strings.Join(unlogged, ", "))
	}
}

// examineRole looks at the rights of the service's role: it needs rows, and no more.
func (db *DB) examineRole(ctx context.Context, r *doctor.Report) {
	var role string
	var super, create bool
	err := db.read.QueryRowContext(ctx, `SELECT current_user, (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
		current_schema() IS NOT NULL AND has_schema_privilege(current_schema(), 'CREATE')`).Scan(&role, &super, &create)
	if err != nil {
		r.Miss(doctor.Rights, db.place(), err)
		return
	}
	at := "PostgreSQL, role " + role
	tables := `SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') `
	owned, err := db.names(ctx, tables+`AND pg_has_role(relowner, 'MEMBER') ORDER BY relname`)
	if err != nil {
		r.Miss(doctor.Rights, at, err)
		return
	}
	switch {
	case super:
		r.Find(doctor.RoleTooStrong, at, "it is a superuser")
	case len(owned) > 0:
		r.Find(doctor.RoleTooStrong, at, "it owns tables")
	case create:
		r.Find(doctor.RoleTooStrong, at, "it may create tables in its schema")
	}
	useless, err := db.names(ctx, tables+`AND NOT (has_table_privilege(oid, 'SELECT') AND has_table_privilege(oid, 'INSERT'))
		AND relname <> '`+gooseTable+`' ORDER BY relname`)
	if err != nil {
		r.Miss(doctor.Rights, at, err)
		return
	}
	if len(useless) > 0 {
		r.Find(doctor.RoleTooWeak, at, "it may not read and insert into %s", strings.Join(useless, ", "))
	}
}

// names returns the only column of a query.
func (db *DB) names(ctx context.Context, query string) (names []string, err error) {
	rows, err := db.read.QueryContext(ctx, query)
	if err != nil {
		return nil, fmt.Errorf("look at tables: %w", err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return nil, fmt.Errorf("look at tables: %w", err)
		}
		names = append(names, name)
	}
	return names, rows.Err()
}
