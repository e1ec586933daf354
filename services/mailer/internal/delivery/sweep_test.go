package delivery_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestSweeperPublishesWhatACrashLeftInVersionOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		for version := range int64(5) {
			g, err := w.x.prepare(event("o", version+1), event("p", version+1))
			require.NoError(t, err)
			require.NoError(t, g.commit())
		}
		require.NoError(t, w.y.sweeper.Finish(t.Context()))
		var o, p []string
		for _, l := range appeared(t, w.disk) {
			if l[0] == 'o' {
				o = append(o, l)
			} else {
				p = append(p, l)
			}
		}
		require.Equal(t, []string{"o-1", "o-2", "o-3", "o-4", "o-5"}, o)
		require.Equal(t, []string{"p-1", "p-2", "p-3", "p-4", "p-5"}, p)
		require.Equal(t, map[string]int{"accepted": 10}, states(t, w.db))
	})
}

func TestSweeperLeavesYoungRowsToTheirOwner(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		g, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		require.NoError(t, g.commit())
		metrics, err := delivery.NewMetrics(nil)
		require.NoError(t, err)
		patient := delivery.NewSweeper(delivery.SweepConfig{}, w.y.folder, w.db, metrics, logs.Discard())
		require.NoError(t, patient.Finish(t.Context()))
		require.Empty(t, mails(w.disk))
	})
}

func TestUnknownCommitThatHappenedIsPublishedByTheSweeper(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		g, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		require.NoError(t, g.commit()) // and neither Done nor Discard
		require.NoError(t, w.y.sweeper.Finish(t.Context()))
		require.Equal(t, []string{"o-1"}, mails(w.disk))
		require.NoError(t, w.y.handle(event("o", 1)))
		require.Len(t, w.disk.Appeared(), 1)
	})
}

func TestUnknownCommitThatDidNotHappenIsRemovedAfterAnHourAndNoSooner(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		_, err := w.x.prepare(event("o", 1)) // and nothing more
		require.NoError(t, err)
		w.disk.Put(folder+"/"+pickup.StagingName+"/note.txt", []byte("?"))
		w.disk.Put(folder+"/foreign.eml", []byte("the mail server's"))
		for range 11 {
			require.NoError(t, w.y.sweeper.Tidy(t.Context()))
			require.Len(t, staged(w.disk), 1, "a commit may be under way")
			w.clock.advance(5 * time.Minute)
		}
		w.clock.advance(10 * time.Minute)
		require.NoError(t, w.y.sweeper.Tidy(t.Context()))
		require.Empty(t, staged(w.disk))
		require.Equal(t, []string{"foreign.eml"}, slices.Collect(maps.Keys(w.disk.Files(folder))))
		require.NoError(t, w.y.handle(event("o", 1)))
	})
}

func TestAClockThatJumpsRemovesNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		g, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		require.NoError(t, w.y.sweeper.Tidy(t.Context()))
		w.clock.advance(24 * time.Hour)
		require.NoError(t, w.y.sweeper.Tidy(t.Context()), "it looks a day old, and nobody watched it for so long")
		require.Len(t, staged(w.disk), 1)
		g.work.Discard(t.Context())
	})
}

func TestAFileWhoseRowNamesAnotherIsRemovedAfterMinutes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		loser, err := w.x.prepare(event("o", 1)) // crashes before its transaction
		require.NoError(t, err)
		require.NotNil(t, loser)
		require.NoError(t, w.y.handle(event("o", 1)))
		require.Len(t, staged(w.disk), 1)
		require.NoError(t, w.y.sweeper.Tidy(t.Context()))
		require.Len(t, staged(w.disk), 1)
		w.clock.advance(11 * time.Minute)
		require.NoError(t, w.y.sweeper.Tidy(t.Context()))
		require.Empty(t, staged(w.disk))
		require.Equal(t, []string{"o-1"}, mails(w.disk))
	})
}

func TestARenameUndoneAfterItWasMarkedIsDoneAgain(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		g, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		require.NoError(t, g.commit())
		_, err = execute(t, w.db, `UPDATE deliveries SET state = 'accepted'`) // by a disk that lied about its fsync
		require.NoError(t, err)
		require.NoError(t, w.y.sweeper.Finish(t.Context()))
		require.Empty(t, mails(w.disk))
		w.clock.advance(11 * time.Minute)
		require.NoError(t, w.y.sweeper.Tidy(t.Context()))
		require.Equal(t, []string{"o-1"}, mails(w.disk))
	})
}

func TestSweeperAndOwnerAtOncePublishOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		for version := range int64(20) {
			g, err := w.x.prepare(event("o", version+1))
			require.NoError(t, err)
			require.NoError(t, g.commit())
			swept := make(chan error, 1)
			go func() { swept <- w.y.sweeper.Finish(t.Context()) }()
			require.NoError(t, g.done())
			require.NoError(t, <-swept)
		}
		require.Len(t, w.disk.Appeared(), 20)
		require.Len(t, mails(w.disk), 20)
	})
}
