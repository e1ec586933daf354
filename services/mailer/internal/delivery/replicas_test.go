package delivery_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickuptest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// world is a database, a disk and two replicas on them.
type world struct {
	db    *database.DB
	disk  *pickuptest.Disk
	clock *clock
	x, y  *replica
}

func each(t *testing.T, test func(t *testing.T, w world)) {
	t.Helper()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		w := world{db: db, disk: pickuptest.New(), clock: newClock()}
		w.disk.Now = w.clock.now
		w.x, w.y = newReplica(t, db, w.disk, w.clock), newReplica(t, db, w.disk, w.clock)
		test(t, w)
	})
}

func TestEachEventOfAnOrderIsAMailInOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.handle(event("o", 1), event("o", 2)))
		require.NoError(t, w.y.handle(event("o", 3)))
		require.Equal(t, []string{"o-1", "o-2", "o-3"}, appeared(t, w.disk))
		require.Equal(t, map[string]int{"staged": 3}, states(t, w.db))
		w.x.flush()
		w.y.flush()
		require.Equal(t, map[string]int{"accepted": 3}, states(t, w.db))
		require.NoError(t, w.x.handle(event("o", 1), event("o", 2), event("o", 3)), "redelivered")
		require.Len(t, w.disk.Appeared(), 3)
		require.Empty(t, staged(w.disk))
	})
}

func TestFrozenBeforeRenameTheNextReplicaPublishesBothInOrder(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		frozen, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		require.NoError(t, frozen.commit())

		require.NoError(t, w.y.handle(event("o", 2)))
		require.Equal(t, []string{"o-1", "o-2"}, appeared(t, w.disk))
		w.disk.Take(folder + "/" + w.disk.Appeared()[0])

		require.NoError(t, frozen.done(), "thawed: somebody published it")
		require.Len(t, w.disk.Appeared(), 2)
	})
}

func TestFrozenBeforeRenameTheRedeliveryPublishes(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		frozen, err := w.x.prepare(event("o", 1), event("p", 1))
		require.NoError(t, err)
		require.NoError(t, frozen.commit())
		require.NoError(t, w.y.handle(event("o", 1)), "the same event again, a duplicate by its lane")
		require.Equal(t, []string{"o-1"}, mails(w.disk))
		require.NoError(t, frozen.done())
		require.ElementsMatch(t, []string{"o-1", "p-1"}, mails(w.disk))
		require.Empty(t, staged(w.disk))
	})
}

func TestADuplicateDoesNotPublishLaterVersions(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.handle(event("o", 1)))
		frozen, err := w.x.prepare(event("o", 2))
		require.NoError(t, err)
		require.NoError(t, frozen.commit())
		require.NoError(t, w.y.handle(event("o", 1)))
		require.Equal(t, []string{"o-1"}, mails(w.disk), "version 2 is its owner's")
		require.NoError(t, frozen.done())
		require.Equal(t, []string{"o-1", "o-2"}, appeared(t, w.disk))
	})
}

func TestTheLoserRemovesItsOwnFileAndFollowsTheRow(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		winner, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		loser, err := w.y.prepare(event("o", 1))
		require.NoError(t, err)
		require.Len(t, staged(w.disk), 2)
		require.NoError(t, winner.commit())
		require.NoError(t, loser.commit())
		require.NoError(t, loser.done())
		require.Equal(t, []string{"o-1"}, mails(w.disk))
		require.Empty(t, staged(w.disk))
		require.NoError(t, winner.done())
		require.Len(t, w.disk.Appeared(), 1)
	})
}

func TestAFailedTransactionLeavesNoFile(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.Error(t, w.x.handle(event("o", 2)), "the test's transaction refuses it")
		require.Empty(t, staged(w.disk))
		require.Empty(t, states(t, w.db))
	})
}

func TestManyReplicasWithTheSameEventsAtOnce(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		replicas := make([]*replica, 4)
		for i := range replicas {
			replicas[i] = newReplica(t, w.db, w.disk, w.clock)
		}
		for version := range int64(5) {
			var running sync.WaitGroup
			problems := make(chan error, len(replicas))
			for _, r := range replicas {
				running.Go(func() {
					var err error
					for range 20 { // PostgreSQL may choose a victim
						if err = r.handle(event("a", version+1), event("b", version+1)); database.Classify(err) != database.ClassConflict {
							break
						}
					}
					problems <- err
				})
			}
			running.Wait()
			close(problems)
			for err := range problems {
				require.NoError(t, err)
			}
		}
		require.Len(t, w.disk.Appeared(), 10)
		var a, b []string
		for _, l := range appeared(t, w.disk) {
			if l[0] == 'a' {
				a = append(a, l)
			} else {
				b = append(b, l)
			}
		}
		require.Equal(t, []string{"a-1", "a-2", "a-3", "a-4", "a-5"}, a)
		require.Equal(t, []string{"b-1", "b-2", "b-3", "b-4", "b-5"}, b)
		require.Empty(t, staged(w.disk))
	})
}

func TestThawedAfterItsFilesWereRemovedItCommitsNothing(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		late, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		w.clock.advance(2 * time.Hour)
		err = late.commit()
		require.Equal(t, consumer.Outage, consumer.Classify(err), "no attempt is burnt")
		late.work.Discard(t.Context())
		require.Empty(t, states(t, w.db))

		// The same with a clock that stood still: the files are gone.
		late, err = w.x.prepare(event("o", 1))
		require.NoError(t, err)
		for name := range staged(w.disk) {
			w.disk.Take(folder + "/" + pickup.StagingName + "/" + name)
		}
		err = late.commit()
		require.ErrorIs(t, err, pickup.ErrStagedGone)
		require.Equal(t, consumer.Outage, consumer.Classify(err))
		require.Empty(t, states(t, w.db), "a row would have counted as published")
		require.NoError(t, w.y.handle(event("o", 1)))
		require.Equal(t, []string{"o-1"}, mails(w.disk))
	})
}

func TestAReplacedFolderIsAnOutageAndNothingCountsAsPublished(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.handle(event("o", 1)))
		between, err := w.x.prepare(event("o", 2))
		require.NoError(t, err)
		require.NoError(t, between.commit())
		restore := w.disk.Wipe()
		require.NoError(t, w.disk.Make(folder, 0o700)) // an empty folder in its place
		for _, err := range []error{
			between.done(), w.x.handle(event("o", 2)), w.y.handle(event("p", 1)), w.x.handle(),
		} {
			require.ErrorIs(t, err, pickup.ErrUnmarked)
			require.Equal(t, consumer.Outage, consumer.Classify(err))
		}
		require.ErrorIs(t, w.y.effect.Probe(t.Context()), pickup.ErrUnmarked)
		require.ErrorIs(t, w.y.folder.Check(t.Context()), pickup.ErrUnmarked)
		require.ErrorIs(t, w.y.sweeper.Finish(t.Context()), pickup.ErrUnmarked)
		require.ErrorIs(t, w.y.sweeper.Tidy(t.Context()), pickup.ErrUnmarked)
		fresh := newReplica(t, w.db, w.disk, w.clock)
		require.ErrorIs(t, fresh.handle(event("p", 1)), pickup.ErrUnmarked, "also for one that starts now")
		w.x.flush()
		require.Equal(t, map[string]int{"staged": 1, "accepted": 1}, states(t, w.db))

		restore()
		require.NoError(t, w.y.effect.Probe(t.Context()))
		require.NoError(t, w.y.handle(event("o", 2)))
		require.NoError(t, w.y.handle(event("p", 1)))
		require.Equal(t, []string{"o-1", "o-2", "p-1"}, appeared(t, w.disk))
	})
}

func TestDiskFaultsAreOutages(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.handle(event("o", 1)))
		for _, kind := range []string{"create", "write", "sync", "syncdir", "rename"} {
			for _, fault := range []error{syscall.ENOSPC, syscall.EIO, syscall.EROFS} {
				w.disk.Before = func(s pickuptest.Step) error {
					if s.Kind == kind {
						return fault
					}
					return nil
				}
				err := w.x.handle(event("o", 2))
				require.ErrorIs(t, err, fault)
				require.Equal(t, consumer.Outage, consumer.Classify(err))
				require.ErrorIs(t, w.x.effect.Probe(t.Context()), fault)
			}
		}
		w.disk.Before = nil
		require.NoError(t, w.x.effect.Probe(t.Context()))
		require.NoError(t, w.x.handle(event("o", 2)))
		require.Equal(t, []string{"o-1", "o-2"}, appeared(t, w.disk))
		w.disk.PowerLoss()
		require.Equal(t, []string{"o-1", "o-2"}, appeared(t, w.disk))
	})
}

func TestAnEventThatCannotBeAMailIsPermanent(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		bad := event("o", 1)
		bad.Type = "order.shipped.v1"
		_, err := w.x.prepare(event("p", 1), bad)
		require.Equal(t, consumer.Permanent, consumer.Classify(err))
		require.Empty(t, staged(w.disk))
	})
}

func TestADeliveryIDOfAnotherEventIsNotTakenForDone(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		g, err := w.x.prepare(event("o", 1))
		require.NoError(t, err)
		for name := range staged(w.disk) {
			_, err := execute(t, w.db, `INSERT INTO deliveries (id, event_id, order_id, version, recipient, template, staged_name, message_id)
				VALUES ($1, 'other', 'other', 1, 'a@example.com', 'placed', 'x', 'x')`, name[:36])
			require.NoError(t, err)
		}
		require.Equal(t, consumer.Permanent, consumer.Classify(g.commit()))
	})
}

func execute(t *testing.T, db *database.DB, query string, args ...any) (int64, error) {
	t.Helper()
	var changed int64
	err := db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
		result, err := tx.ExecContext(ctx, query, args...)
		if err != nil {
			return err
		}
		changed, err = result.RowsAffected()
		return err
	})
	return changed, err
}

func TestReplicasThatStartAtOnceAgreeOnOneMarker(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		var starting sync.WaitGroup
		problems := make(chan error, 10)
		for range cap(problems) {
			r := newReplica(t, w.db, w.disk, w.clock)
			starting.Go(func() { problems <- r.folder.Check(t.Context()) })
		}
		starting.Wait()
		close(problems)
		for err := range problems {
			require.NoError(t, err)
		}
	})
}

func TestACrashBetweenMarkerFileAndItsNoteIsFinishedByTheNextStart(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.folder.Check(t.Context()))
		changed, err := execute(t, w.db, `UPDATE pickup_marker SET founded_at = NULL`)
		require.NoError(t, err)
		require.EqualValues(t, 1, changed)
		require.NoError(t, newReplica(t, w.db, w.disk, w.clock).folder.Check(t.Context()))

		// The row alone, the file never written.
		_, err = execute(t, w.db, `UPDATE pickup_marker SET founded_at = NULL`)
		require.NoError(t, err)
		w.disk.Wipe()
		require.NoError(t, newReplica(t, w.db, w.disk, w.clock).folder.Check(t.Context()))
	})
}

func TestAFolderOfAnotherInstallationIsRefused(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.folder.Check(t.Context()))
		_, err := execute(t, w.db, `DELETE FROM pickup_marker`) // an empty database, a marked folder
		require.NoError(t, err)
		other := newReplica(t, w.db, w.disk, w.clock)
		require.ErrorIs(t, other.handle(event("o", 1)), pickup.ErrUnmarked)
	})
}
