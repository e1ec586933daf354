package operate_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/operate"
)

// each runs a test with a client through an admin port and with one without a network.
func each(t *testing.T, test func(t *testing.T, db *database.DB, c *operate.Client)) {
	databasetest.Each(t, "loyalty", func(t *testing.T, db *database.DB) {
		handler := operate.Handler(consumer.NewOperator("loyalty", true, db, logs.Discard()))
		checks := &admin.Checks{}
		checks.Mount("loyalty", handler)
		server := httptest.NewServer(admin.Handler(checks, prometheus.NewRegistry()))
		t.Cleanup(server.Close)
		clients, err := operate.Dial(t.Context(), []string{server.URL, server.URL}, "Adä Löve\n")
		require.NoError(t, err)
		require.Len(t, clients, 1, "a replica more is no service more")
		test(t, db, clients[0])
		_, err = exec(t, db, `DELETE FROM dead_letters`)
		require.NoError(t, err)
		_, err = exec(t, db, `DELETE FROM operator_actions`)
		require.NoError(t, err)
		test(t, db, operate.Local("loyalty", handler, "Adä Löve\n"))
	})
}

func exec(t *testing.T, db *database.DB, query string, args ...any) (int64, error) {
	var n int64
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		done, err := tx.ExecContext(ctx, query, args...)
		if err == nil {
			n, err = done.RowsAffected()
		}
		return err
	})
	return n, err
}

func TestListsComeInPages(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, db *database.DB, c *operate.Client) {
		for n := range 5 {
			_, err := exec(t, db, `INSERT INTO dead_letters (id, headers, body, reason, created_at) VALUES ($1, '{}', $2, 'x', $3)`,
				fmt.Sprint("message-", n), []byte{0xff}, 1000-n/2) // some at the same moment
			require.NoError(t, err)
		}
		var ids []string
		for after := ""; ; {
			p, err := c.Letters(t.Context(), consumer.LetterFilter{}, after, 2)
			require.NoError(t, err)
			for _, l := range p.Items {
				ids = append(ids, l.ID)
			}
			if after = p.Next; after == "" {
				break
			}
		}
		require.Equal(t, "message-4 message-2 message-3 message-0 message-1", strings.Join(ids, " "))
		_, err := c.Letters(t.Context(), consumer.LetterFilter{}, "!", 2)
		require.ErrorIs(t, err, consumer.ErrInvalid)
		_, err = c.Letters(t.Context(), consumer.LetterFilter{Since: time.Now()}, "", 2)
		require.NoError(t, err)

		for _, id := range ids {
			require.NoError(t, c.Drop(t.Context(), operate.Drop{ID: id, Reason: "noise"}))
		}
		require.ErrorIs(t, c.Drop(t.Context(), operate.Drop{ID: "message-0", Reason: "noise"}), consumer.ErrNotFound)
		p, err := c.Actions(t.Context(), "", 4)
		require.NoError(t, err)
		require.Len(t, p.Items, 4)
		require.Equal(t, "Adä Löve\n", p.Items[0].Who)
		p, err = c.Actions(t.Context(), p.Next, 4)
		require.NoError(t, err)
		require.Len(t, p.Items, 2)
	})
}

func TestErrorsKeepTheirMeaning(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, _ *database.DB, c *operate.Client) {
		_, err := c.Letter(t.Context(), "event-a/b?c")
		require.ErrorIs(t, err, consumer.ErrNotFound)
		require.ErrorContains(t, err, "event-a/b?c")
		_, err = c.ParkedOrder(t.Context(), "nobody")
		require.ErrorIs(t, err, consumer.ErrNotFound)
		_, err = c.Retry(t.Context(), operate.Retry{})
		require.ErrorIs(t, err, consumer.ErrInvalid)
		require.ErrorIs(t, c.Skip(t.Context(), operate.Skip{Order: "a", Range: consumer.Range{From: 1, To: 1}, Reason: "r"}), consumer.ErrRefused)
		_, err = c.StartRedrive(t.Context(), operate.Start{})
		require.ErrorIs(t, err, consumer.ErrRefused)
		require.ErrorIs(t, c.CancelRedrive(t.Context(), operate.Cancel{ID: "redrive-x"}), consumer.ErrNotFound)
		_, err = c.Redrive(t.Context(), "")
		require.ErrorIs(t, err, consumer.ErrNotFound)
		all, err := c.Redrives(t.Context())
		require.NoError(t, err)
		require.Empty(t, all)
	})
}

// TestBodies: nothing is done for a body that says less, more or other than it should.
func TestBodies(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "loyalty")
	h := operate.Handler(consumer.NewOperator("loyalty", true, db, logs.Discard()))
	for body, status := range map[string]int{
		`{"ids":["a"],"ordr":"x"}`: 400,
		`{} {}`:                    400,
		`[]`:                       400,
		``:                         400,
		`{"why":"` + strings.Repeat("x", 3<<20) + `"}`: 413,
		`{"rate":-1}`: 400,
		`{}`:          409, // nothing there
	} {
		r := httptest.NewRequest(http.MethodPost, "/redrives", strings.NewReader(body))
		r.Header.Set(admin.HeaderOperator, "ada")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, status, w.Code, "%.40s %s", body, w.Body)
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPut, "/redrives", nil))
	require.Equal(t, 405, w.Code)
}

// TestDatabaseAway: the answer is 503, and names no address.
func TestDatabaseAway(t *testing.T) {
	t.Parallel()
	db, err := database.Open("postgres://nobody:secret@127.0.0.1:1/none", database.Options{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	h := operate.Handler(consumer.NewOperator("loyalty", true, db, logs.Discard()))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/dead", nil))
	require.Equal(t, 503, w.Code)
	require.NotContains(t, w.Body.String(), "127.0.0.1")
}
