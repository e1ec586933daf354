package delivery_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickuptest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// budget records what it was asked for.
type budget struct {
	asked []int
	most  int
	wait  func() error
}

func (b *budget) Wait(_ context.Context, n int) error {
	b.asked = append(b.asked, n)
	return b.wait()
}

func (b *budget) Most() int { return b.most }

func TestAGroupTakesItsShareBeforeItsMailsAreMade(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		disk, c := pickuptest.New(), newClock()
		r := newReplica(t, db, disk, c)
		b := &budget{most: 2, wait: func() error {
			require.Empty(t, staged(disk))
			c.advance(time.Hour) // nothing grows old meanwhile
			return nil
		}}
		r.effect = r.effect.Paced(b)
		require.NoError(t, r.handle(event("a", 1), event("b", 1)))
		require.Equal(t, []int{2}, b.asked)
		require.Len(t, mails(disk), 2)

		// Duplicates were paid for when they were due.
		g, err := r.prepare()
		require.NoError(t, err)
		g.events = []consumer.Event{event("a", 1)}
		require.NoError(t, g.commit())
		require.NoError(t, g.done())
		require.Equal(t, []int{2}, b.asked)
		require.NoError(t, r.handle(event("c", 1), event("d", 1), event("e", 1)))
		require.Equal(t, []int{2, 2, 1}, b.asked, "a group larger than a share")
	})
}

func TestNoShareInTimeIsAnOutage(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "mailer")
	disk := pickuptest.New()
	r := newReplica(t, db, disk, newClock())
	late := errors.New("late")
	r.effect = r.effect.Paced(&budget{most: 9, wait: func() error { return late }})
	err := r.handle(event("a", 1))
	require.ErrorIs(t, err, late)
	require.Equal(t, consumer.Outage, consumer.Classify(err), "it burns no attempt")
	require.Empty(t, staged(disk))
}
