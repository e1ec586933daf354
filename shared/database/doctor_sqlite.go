package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

// examineSQLite looks at the settings of our own connections. Which file it is
// must not be looked at through a handle of its own: closing that would drop the
// locks that SQLite holds for this process.
func (db *DB) examineSQLite(ctx context.Context, r *doctor.Report) {
	for _, pool := range []*sql.DB{db.write, db.read} {
		var mode, sync string
		if err := errors.Join(
			pool.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode),
			pool.QueryRowContext(ctx, "PRAGMA synchronous").Scan(&sync),
		); err != nil {
			r.Miss(doctor.SQLite, db.place(), err)
			return
		}
		if mode != "wal" {
			r.Find(doctor.SQLiteJournal, db.place(), "journal_mode is %s", mode)
		}
		if sync != "2" && sync != "3" { // FULL and EXTRA
			r.Find(doctor.SQLiteSync, db.place(), "synchronous is %s, not FULL", sync)
		}
	}
}

// OpenToLook opens an existing SQLite file for reading only. While other
// processes have it open it takes their locks into account and writes
// nothing. owned says that nobody else opens it until Close; then it leaves no
// files behind either. It is not for the process that has the file open already.
func OpenToLook(path string, owned bool) (*DB, error) {
	if _, err := os.Stat(path); err != nil {
		return nil, fmt.Errorf("open sqlite file: %w", err)
	}
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, fmt.Errorf("open sqlite file: %w", err)
	}
	set := url.Values{"mode": {"ro"}, "_busy_timeout": {busyMillis}, "_query_only": {"1"}, "_error_rc": {"1"}}
	// Without a log the file is all there is. With one, SQLite has to read it, and for that makes its index.
	if log, err := os.Stat(path + "-wal"); owned && (err != nil || log.Size() == 0) {
		set.Set("immutable", "1")
	}
	if path = filepath.ToSlash(path); !strings.HasPrefix(path, "/") { // a drive letter
		path = "/" + path
	}
	name := url.URL{Scheme: "file", Path: path, OmitHost: true, RawQuery: set.Encode()}
	pool, err := sql.Open("sqlite", name.String())
	if err != nil {
		return nil, fmt.Errorf("open sqlite file: %w", err)
	}
	pool.SetMaxOpenConns(1)
	return &DB{dialect: Dialect{sqlite}, read: pool, write: pool, maxConns: 1}, nil
}

// examineMode finds out how the file is to be read and written. A connection to a file that nobody may change
// does not know that, so then the header is read: 2 is WAL, 1 a rollback journal.
func (db *DB) examineMode(ctx context.Context, path string, owned bool, r *doctor.Report) (err error) {
	if !owned { // a handle of our own would be harmless here too, but not in the process that holds locks
		var mode string
		if err := db.read.QueryRowContext(ctx, "PRAGMA journal_mode").Scan(&mode); err != nil {
			return fmt.Errorf("look at sqlite file: %w", err)
		}
		if mode != "wal" {
			r.Find(doctor.SQLiteJournal, db.place(), "journal_mode is %s", mode)
		}
		return nil
	}
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("look at sqlite file: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	var header [20]byte
	if _, err := file.ReadAt(header[:], 0); err != nil {
		return fmt.Errorf("look at sqlite file: read its header: %w", err)
	}
	if header[18] != 2 || header[19] != 2 {
		r.Find(doctor.SQLiteJournal, db.place(), "the file is kept with a rollback journal")
	}
	return nil
}

// ExamineFile looks at a SQLite file of a service from outside of its process.
// owned is as in OpenToLook.
func ExamineFile(ctx context.Context, path string, owned bool, migrations fs.FS, r *doctor.Report) (err error) {
	at := "SQLite, " + filepath.Base(path)
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at sqlite file: %w", err)
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		r.Find(doctor.SQLiteLinks, at, "it is a symbolic link")
	case doctor.Names(info) > 1:
		r.Find(doctor.SQLiteLinks, at, "it has %d names (hard links)", doctor.Names(info))
	}
	db, err := OpenToLook(path, owned)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	var one doctor.Report
	if err := db.examineMode(ctx, path, owned, &one); err != nil {
		return err
	}
	if migrations != nil {
		db.examineSchema(ctx, migrations, &one)
	}
	r.Place(at, &one)
	return nil
}
