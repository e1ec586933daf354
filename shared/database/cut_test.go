package database_test

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/url"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// cutter stands between us and PostgreSQL and cuts each connection that sends
// a word: before the server sees it, or when the server has answered it.
type cutter struct {
	before bool
	word   string
	target string
}

// serve returns the database's URL through a new cutter.
func (c cutter) serve(t *testing.T, direct string) string {
	t.Helper()
	u, err := url.Parse(direct)
	require.NoError(t, err)
	c.target = u.Host
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			client, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { c.pass(client) })
		}
	})
	t.Cleanup(func() {
		require.NoError(t, l.Close())
		wg.Wait()
	})
	u.Host = l.Addr().String()
	return u.String()
}

func (c cutter) pass(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer server.Close()
	committing := make(chan struct{})
	var once sync.Once
	go func() { // ends when the deferred calls close both
		buffer := make([]byte, 64<<10)
		for {
			n, err := client.Read(buffer)
			if err != nil {
				server.Close()
				return
			}
			if bytes.Contains(buffer[:n], []byte(c.word)) {
				once.Do(func() { close(committing) })
				if c.before {
					client.Close()
					server.Close()
					return
				}
			}
			if _, err := server.Write(buffer[:n]); err != nil {
				return
			}
		}
	}()
	buffer := make([]byte, 64<<10)
	for {
		n, err := server.Read(buffer)
		if err != nil {
			return
		}
		select {
		case <-committing:
			return // with the answer to it
		default:
		}
		if _, err := io.Copy(client, bytes.NewReader(buffer[:n])); err != nil {
			return
		}
	}
}

func TestCutCommitIsUnknown(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]bool{"before the server saw it": true, "after the server did it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db, direct := databasetest.Postgres(t, service)
			cut := open(t, cutter{before: before, word: "commit\x00"}.serve(t, direct), database.Options{Schema: service})
			err := put(t.Context(), cut, "a")
			require.ErrorIs(t, err, database.ErrCommitUnknown)
			require.Equal(t, database.ClassUnavailable, database.Classify(err))
			require.Eventually(t, func() bool { return count(t, db, "a") == 1 != before }, patience, 10*time.Millisecond)
		})
	}
}

// What the server refuses at COMMIT certainly did not happen.
func TestRefusedCommitIsKnown(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.Postgres(t, service)
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		for _, statement := range []string{
			`CREATE TABLE late (id BIGINT UNIQUE DEFERRABLE INITIALLY DEFERRED)`,
			`INSERT INTO late VALUES (1), (1)`,
		} {
			if _, err := tx.ExecContext(ctx, statement); err != nil {
				return err
			}
		}
		return nil
	})
	require.Equal(t, database.ClassUnique, database.Classify(err), "%v", err)
	require.NotErrorIs(t, err, database.ErrCommitUnknown)

	err = db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		_, _ = tx.ExecContext(ctx, `SELECT 1/0`) // an error that do forgets
		return nil
	})
	require.Error(t, err)
	require.NotErrorIs(t, err, database.ErrCommitUnknown)
}
