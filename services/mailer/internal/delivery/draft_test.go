package delivery_test

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickuptest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// spreading returns a replica whose mails are drafted by d.
func spreading(t *testing.T, disk *pickuptest.Disk, d dispatch.Strategy[*delivery.Draft]) *replica {
	t.Helper()
	db, _ := databasetest.SQLite(t, "mailer")
	r := newReplica(t, db, disk, newClock())
	metrics, err := delivery.NewMetrics(nil)
	require.NoError(t, err)
	r.effect = delivery.NewEffect(d, r.folder, r.accepter, metrics, logs.Discard(), time.Now)
	return r
}

func letters(t *testing.T) *letter.Renderer {
	t.Helper()
	r, err := letter.New(letter.Config{From: "Shop <shop@example.com>", Domain: "example.com"})
	require.NoError(t, err)
	return r
}

// TestEveryStrategyDraftsTheSame: how a group is spread changes neither what
// appears nor what an error means.
func TestEveryStrategyDraftsTheSame(t *testing.T) {
	t.Parallel()
	for _, mode := range dispatch.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			disk := pickuptest.New()
			r := spreading(t, disk, strategy(t, mode, 4, letters(t)))
			var due []consumer.Event
			for order := range 10 {
				for version := range 3 {
					due = append(due, event(fmt.Sprint("order-", order), int64(version+1)))
				}
			}
			require.NoError(t, r.handle(due...))
			require.Len(t, mails(disk), 30)
			at := map[string]string{}
			for _, label := range appeared(t, disk) {
				order, version := label[:len(label)-2], label[len(label)-1:]
				require.Less(t, at[order], version, "in version order")
				at[order] = version
			}

			bad := event("order-bad", 1)
			bad.Data = []byte(`{}`)
			due = []consumer.Event{event("order-x", 1), bad, event("order-y", 1), event("order-z", 1)}
			_, err := r.prepare(due...)
			require.Equal(t, consumer.Permanent, consumer.Classify(err), "%v", err)
			require.Empty(t, staged(disk))

			disk.Before = func(s pickuptest.Step) error {
				if s.Kind == "sync" {
					return syscall.EIO
				}
				return nil
			}
			_, err = r.prepare(event("order-x", 1), event("order-y", 1))
			require.ErrorIs(t, err, syscall.EIO)
			require.Equal(t, consumer.Outage, consumer.Classify(err))
			require.Empty(t, staged(disk))
			disk.Before = nil

			var cancel context.CancelCauseFunc
			r.ctx, cancel = context.WithCancelCause(t.Context())
			cancel(errors.New("drain deadline"))
			_, err = r.prepare(event("order-x", 1), event("order-y", 1))
			require.Equal(t, consumer.Outage, consumer.Classify(err), "no mail is to blame: %v", err)
			require.Empty(t, staged(disk))
		})
	}
}

// answering is a strategy that handles nothing.
type answering []error

func (a answering) Handle(context.Context, *delivery.Draft) error          { return a[0] }
func (a answering) HandleBatch(context.Context, []*delivery.Draft) []error { return a }

func TestAGroupIsStagedWholeOrNotAtAll(t *testing.T) {
	t.Parallel()
	hopeless, outage := consumer.AsPermanent(errors.New("hopeless")), consumer.AsOutage(errors.New("disk"))
	for name, c := range map[string]struct {
		answer answering
		want   consumer.Class
	}{
		"no worker":               {answering{nil, dispatch.ErrNoWorker}, consumer.Outage},
		"behind another":          {answering{nil, dispatch.ErrPredecessor}, consumer.Outage},
		"the failure counts":      {answering{dispatch.ErrPredecessor, hopeless}, consumer.Permanent},
		"the outage counts most":  {answering{hopeless, outage}, consumer.Outage},
		"something else happened": {answering{errors.New("odd"), hopeless}, consumer.Transient},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := spreading(t, pickuptest.New(), c.answer)
			_, err := r.prepare(event("a", 1), event("b", 1))
			require.Error(t, err)
			require.Equal(t, c.want, consumer.Classify(err), "%v", err)
		})
	}
}

func TestAPanicIsTheFaultOfItsMail(t *testing.T) {
	t.Parallel()
	disk := pickuptest.New()
	draft := delivery.Drafting(letters(t))
	drafts, err := dispatch.NewCompeting(2, dispatch.Alike(func(ctx context.Context, d *delivery.Draft) error {
		if d.Key() == "bad" {
			panic("template")
		}
		return draft(ctx, d)
	}))
	require.NoError(t, err)
	r := spreading(t, disk, drafts)
	_, err = r.prepare(event("good", 1), event("bad", 1))
	require.ErrorContains(t, err, "panic: template")
	require.Equal(t, consumer.Transient, consumer.Classify(err))
	require.Empty(t, staged(disk))
	require.NoError(t, r.handle(event("good", 1)))
	require.Equal(t, []string{"good-1"}, mails(disk))
}
