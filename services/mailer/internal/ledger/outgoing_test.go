package ledger_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// outgoing is version n of an order, to so many recipients.
func outgoing(order string, version int64, recipients int) ledger.Outgoing {
	id := fmt.Sprintf("%s-%d", order, version)
	o := ledger.Outgoing{Event: []byte("event " + id), Delivery: ledger.Delivery{
		ID: "d-" + id, EventID: id, OrderID: order, Version: version, Recipient: "r0@example.com", Template: "placed", MessageID: id + "@example.com",
	}}
	for i := range recipients {
		o.Recipients = append(o.Recipients, ledger.Recipient{Address: fmt.Sprintf("r%d@example.com", i), State: ledger.Pending})
	}
	return o
}

func enqueue(t *testing.T, db *database.DB, all ...ledger.Outgoing) {
	t.Helper()
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error { return ledger.Enqueue(ctx, tx, all) }))
}

func claim(t *testing.T, db *database.DB, most int, name string, hold time.Duration) (claimed []ledger.Outgoing) {
	t.Helper()
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) (err error) {
		claimed, err = ledger.Claim(ctx, tx, most, name, hold)
		return err
	}))
	return claimed
}

func settle(t *testing.T, db *database.DB, d ledger.Outgoing, wait time.Duration, state string) {
	t.Helper()
	for i := range d.Recipients {
		if d.Recipients[i].State == ledger.Pending {
			d.Recipients[i].State, d.Recipients[i].Reply = state, "the server's words \x00 \xff"
		}
	}
	require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		return ledger.Settle(ctx, tx, []ledger.Settlement{{Outgoing: d, Wait: wait, Earlier: d.Attempts > 1}})
	}))
}

// in returns the ids of deliveries in a state.
func in(t *testing.T, db *database.DB, state string) (ids []string) {
	t.Helper()
	all, err := ledger.List(t.Context(), db, state, "", 100)
	require.NoError(t, err)
	for _, e := range all {
		ids = append(ids, e.ID)
	}
	return ids
}

func count(t *testing.T, db *database.DB, query string) (n int) {
	t.Helper()
	require.NoError(t, db.Read().QueryRowContext(t.Context(), "SELECT COUNT(*) FROM "+query).Scan(&n))
	return n
}

func ids(all []ledger.Outgoing) (ids []string) {
	for _, d := range all {
		ids = append(ids, d.ID)
	}
	return ids
}

func TestClaimsKeepVersionsInOrderAndAttemptsOneAtATime(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		enqueue(t, db, outgoing("a", 1, 1), outgoing("a", 2, 1), outgoing("b", 1, 2))
		enqueue(t, db, outgoing("a", 1, 1), outgoing("a", 3, 1))
		n, err := ledger.Due(t.Context(), db, 10)
		require.NoError(t, err)
		require.Equal(t, 2, n)

		claimed := claim(t, db, 10, "x", time.Hour)
		require.ElementsMatch(t, []string{"d-a-1", "d-b-1"}, ids(claimed))
		for _, d := range claimed {
			require.Equal(t, "event "+d.EventID, string(d.Event))
			require.Equal(t, 1, d.Attempts)
			require.Equal(t, "x", d.Claim)
			require.WithinDuration(t, time.Now(), d.QueuedAt, time.Minute)
		}
		require.Empty(t, claim(t, db, 10, "y", time.Hour), "version 2 waits for 1, whoever asks")

		first := claimed[0]
		if first.OrderID != "a" {
			first = claimed[1]
		}
		settle(t, db, first, time.Hour, ledger.Pending)
		require.Empty(t, claim(t, db, 10, "y", time.Hour), "deferred: it is not due, and version 2 still waits")
		settle(t, db, first, 0, ledger.Accepted)
		require.Equal(t, []string{"d-a-1"}, in(t, db, ledger.Queued)[:1], "an attempt is settled once")
	})
}

func TestSettledDeliveriesLetTheirOrderGoOn(t *testing.T) {
	t.Parallel()
	for _, state := range []string{ledger.Accepted, ledger.Refused, ledger.Unknown} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
				enqueue(t, db, outgoing("a", 1, 2), outgoing("a", 2, 1))
				settle(t, db, claim(t, db, 1, "x", time.Hour)[0], 0, state)
				require.Equal(t, []string{"d-a-1"}, in(t, db, state))
				require.Equal(t, []string{"d-a-2"}, ids(claim(t, db, 5, "y", time.Hour)))
				require.Equal(t, state == ledger.Refused, count(t, db, `dead_letters WHERE id = 'event-a-1' AND reason LIKE '%2 of 2%'`) == 1)
				require.Equal(t, state == ledger.Unknown, count(t, db, `outgoing WHERE delivery_id = 'd-a-1'`) == 1)
				q, err := ledger.Look(t.Context(), db)
				require.NoError(t, err)
				require.Equal(t, 1, q.Waiting)
				require.EqualValues(t, len("event a-2"), q.Bytes)
			})
		})
	}
}

// TestWhatACrashLeaves: an attempt that was begun and never ended is unknown once its time is over, and what a
// replica that only stood still says afterwards is believed.
func TestWhatACrashLeaves(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		enqueue(t, db, outgoing("a", 1, 2), outgoing("b", 1, 1), outgoing("c", 1, 1), outgoing("d", 1, 1), outgoing("alive", 1, 1))
		dead := claim(t, db, 4, "dead", 0)
		require.Len(t, dead, 4)
		alive := claim(t, db, 1, "alive", time.Hour)
		require.Len(t, alive, 1)
		// A commit later than the claim by its clock.
		var lost []ledger.Outgoing
		require.Eventually(t, func() bool {
			more, err := ledger.MarkLost(t.Context(), db, 100)
			require.NoError(t, err)
			lost = append(lost, more...)
			return len(lost) == 4
		}, 10*time.Second, time.Millisecond)
		require.Equal(t, ids(alive), in(t, db, ledger.Sending))
		require.Len(t, in(t, db, ledger.Unknown), 4)
		require.Empty(t, claim(t, db, 10, "y", time.Hour), "nobody sends them again")

		settle(t, db, dead[0], 0, ledger.Accepted)
		settle(t, db, dead[1], 0, ledger.Pending) // thawed before its final dot
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error { return ledger.Release(ctx, tx, "dead") }))
		require.Equal(t, []string{dead[0].ID}, in(t, db, ledger.Accepted))
		require.Empty(t, in(t, db, ledger.Queued), "later ones of its order may be on their way")
		require.Equal(t, 1, count(t, db, "deliveries WHERE state = 'unknown' AND recipients LIKE '%it was not sent%'"))

		require.NoError(t, ledger.Resend(t.Context(), db, dead[2].ID, ledger.Person{Who: "ada", Reason: "asked"}))
		settle(t, db, dead[2], 0, ledger.Accepted)
		require.Contains(t, in(t, db, ledger.Queued), dead[2].ID, "a person's word stands")
		require.ElementsMatch(t, []string{dead[1].ID, dead[3].ID}, in(t, db, ledger.Unknown))
	})
}

func TestAReleasedClaimCountsForNothing(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		enqueue(t, db, outgoing("a", 1, 1), outgoing("b", 1, 1))
		require.Len(t, claim(t, db, 5, "x", time.Hour), 2)
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error { return ledger.Release(ctx, tx, "x") }))
		again := claim(t, db, 5, "y", time.Hour)
		require.Len(t, again, 2)
		require.Equal(t, 1, again[0].Attempts)
	})
}

func TestARefusedDeliveryOfAnEventThatComesAgain(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		enqueue(t, db, outgoing("a", 1, 2), outgoing("b", 1, 1), outgoing("c", 1, 1))
		for _, d := range claim(t, db, 5, "x", time.Hour) {
			switch d.OrderID {
			case "a":
				d.Recipients[0].State = ledger.Accepted
				settle(t, db, d, 0, ledger.Refused)
			case "b":
				settle(t, db, d, 0, ledger.Unknown)
			case "c":
				settle(t, db, d, 0, ledger.Accepted)
			}
		}
		again := func(pause time.Duration) {
			require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
				return ledger.RequeueRefused(ctx, tx, []string{"a-1", "b-1", "c-1"}, func(id string) []byte { return []byte("event " + id) }, pause)
			}))
		}
		again(0)
		claimed := claim(t, db, 5, "y", time.Hour)
		require.Equal(t, []string{"d-a-1"}, ids(claimed), "neither the unknown nor the accepted one")
		require.Equal(t, "event a-1", string(claimed[0].Event))
		require.Equal(t, ledger.Accepted, claimed[0].Recipients[0].State)
		require.Equal(t, ledger.Pending, claimed[0].Recipients[1].State)
		require.Equal(t, 2, claimed[0].Attempts)
		require.Equal(t, 1, count(t, db, "dead_letters"))
		settle(t, db, claimed[0], 0, ledger.Accepted)
		require.Zero(t, count(t, db, "dead_letters"), "its letter is settled")
		require.Equal(t, 1, count(t, db, "outgoing"))
	})
}

func TestManyLargeAndSeveralTimes(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		var all []ledger.Outgoing
		for i := range 250 {
			all = append(all, outgoing(fmt.Sprintf("o%d", i), 1, 1))
		}
		for i := range 20 {
			all[i].Event = []byte(strings.Repeat("x", 900_000))
		}
		enqueue(t, db, all...)
		enqueue(t, db, all...)
		require.Equal(t, 250, count(t, db, "deliveries WHERE state = 'queued' AND queued_at > 0"))
		require.Equal(t, 250, count(t, db, "outgoing"))
		foreign := all[0]
		foreign.EventID = "another"
		err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			return ledger.Enqueue(ctx, tx, []ledger.Outgoing{foreign})
		})
		require.ErrorIs(t, err, ledger.ErrNoRow)
	})
}
