package database

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	_ "modernc.org/sqlite" // registers "sqlite"
)

// busyMillis is how long SQLite waits for a lock. Writers of this process queue
// for the one write connection, so only a checkpoint or an operator's own
// program can make it wait.
const busyMillis = "5000"

// sqliteUse is what the connections of a pool are for.
type sqliteUse int

const (
	sqliteMigrates sqliteUse = iota
	sqliteWrites
	sqliteReads
)

func openSQLite(address string, o Options) (*DB, error) {
	path, err := createSQLite(address)
	if err != nil {
		return nil, err
	}
	write, err := sqlitePool(path, sqliteWrites, 1)
	if err != nil {
		return nil, err
	}
	read, err := sqlitePool(path, sqliteReads, o.MaxConns)
	if err != nil {
		return nil, errors.Join(err, write.Close())
	}
	db := newDB(sqlite, write, read, o.MaxConns)
	if err := db.checkSQLite(); err != nil {
		return nil, errors.Join(fmt.Errorf("open %s: %w", path, err), db.Close())
	}
	return db, nil
}

// createSQLite makes the empty file readable by its owner only (SQLite gives its
// log the same mode) and its name durable.
func createSQLite(address string) (path string, err error) {
	path = strings.TrimPrefix(address, "sqlite:")
	if path == "" || strings.HasPrefix(path, ":memory:") {
		return "", errors.New("sqlite url must name a file: sqlite:PATH")
	}
	if path, err = filepath.Abs(path); err != nil {
		return "", fmt.Errorf("sqlite path: %w", err)
	}
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, os.ErrExist) {
		return path, nil
	}
	if err != nil {
		return "", fmt.Errorf("create sqlite file: %w", err)
	}
	if err := file.Close(); err != nil {
		return "", fmt.Errorf("create sqlite file: %w", err)
	}
	return path, syncFolder(filepath.Dir(path))
}

func syncFolder(path string) error {
	if runtime.GOOS == "windows" { // which cannot sync a folder
		return nil
	}
	folder, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("sync sqlite folder: %w", err)
	}
	if err := errors.Join(folder.Sync(), folder.Close()); err != nil {
		return fmt.Errorf("sync sqlite folder: %w", err)
	}
	return nil
}

func sqlitePool(path string, use sqliteUse, conns int) (*sql.DB, error) {
	pool, err := sql.Open("sqlite", sqliteName(path, use))
	if err != nil {
		return nil, fmt.Errorf("open sqlite file: %w", err)
	}
	pool.SetMaxOpenConns(conns)
	pool.SetMaxIdleConns(conns)
	return pool, nil
}

func sqliteName(path string, use sqliteUse) string {
	set := url.Values{
		"_busy_timeout": {busyMillis},
		"_journal_mode": {"WAL"},
		"_synchronous":  {"FULL"}, // NORMAL loses confirmed commits at a power loss
		"_foreign_keys": {"1"},
		"_txlock":       {"immediate"}, // a transaction that reads first could not be upgraded to a writer
		"_dqs":          {"0"},         // "x" is a name, never silently a text
		"_defensive":    {"1"},
		"_error_rc":     {"1"},
		// The log is folded into the file every 4 MB and cut back to 64 MB after a peak.
		"_pragma": {"wal_autocheckpoint(1000)", "journal_size_limit(67108864)"},
	}
	switch use {
	case sqliteReads:
		set.Set("_query_only", "1")
		set.Set("_txlock", "deferred")
		set.Add("_pragma", "cache_size(-512)") // of each connection in KB; behind it is the system's cache
	case sqliteWrites:
		// A statement with many rows notes the pages that it changes, to undo itself: in memory, not in a temporary
		// file. Not while migrating, where that may be a whole table.
		set.Add("_pragma", "temp_store(MEMORY)")
	}
	if path = filepath.ToSlash(path); !strings.HasPrefix(path, "/") { // a drive letter
		path = "/" + path
	}
	name := url.URL{Scheme: "file", Path: path, OmitHost: true, RawQuery: set.Encode()}
	return name.String()
}

// checkSQLite refuses a file whose settings did not take (a network file system
// cannot do WAL, for instance): a promise about power loss hangs on them.
func (db *DB) checkSQLite() error {
	for _, pool := range []*sql.DB{db.write, db.read} {
		for _, want := range []struct{ pragma, value string }{
			{"journal_mode", "wal"}, {"synchronous", "2"}, {"foreign_keys", "1"},
		} {
			var got string
			if err := pool.QueryRow("PRAGMA " + want.pragma).Scan(&got); err != nil {
				return fmt.Errorf("read %s: %w", want.pragma, err)
			}
			if got != want.value {
				return fmt.Errorf("sqlite %s is %s and cannot be made %s: the file would not survive a power loss",
					want.pragma, got, want.value)
			}
		}
	}
	return nil
}

func (db *DB) pingSQLite(ctx context.Context) error {
	tx, err := db.write.BeginTx(ctx, nil) // immediate: needs the right to write
	if err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	if err := tx.Rollback(); err != nil {
		return fmt.Errorf("ping database: %w", err)
	}
	return nil
}
