package delivery_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickuptest"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/dispatch"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const folder = "/pickup"

// clock is a settable time.
type clock struct {
	mu sync.Mutex // guards at
	at time.Time
}

func newClock() *clock { return &clock{at: time.Now()} }

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.at
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.at = c.at.Add(d)
}

// replica is one mailer process without its consumer: the test drives the
// effect as the consumer does, and may stop between any two steps.
type replica struct {
	t        require.TestingT
	ctx      context.Context
	db       *database.DB
	box      *pickup.Box
	folder   *delivery.Folder
	effect   *delivery.Effect
	sweeper  *delivery.Sweeper
	accepter *delivery.Accepter
}

func newReplica(t *testing.T, db *database.DB, disk pickup.Disk, c *clock) *replica {
	t.Helper()
	letters, err := letter.New(letter.Config{From: "Shop <shop@example.com>", Domain: "example.com"})
	require.NoError(t, err)
	metrics, err := delivery.NewMetrics(nil)
	require.NoError(t, err)
	r := &replica{t: t, ctx: t.Context(), db: db}
	r.box = pickup.New(pickup.Config{Dir: folder, Mode: 0o640}, disk)
	r.folder = delivery.NewFolder(r.box, db)
	r.accepter = delivery.NewAccepter(db, metrics, logs.Discard())
	// Grace below zero: every staged row is overdue at once, also to a clock that ticks in milliseconds.
	config := delivery.SweepConfig{Grace: -time.Minute, Now: c.now}
	r.sweeper = delivery.NewSweeper(config, r.folder, db, metrics, logs.Discard())
	r.effect = delivery.NewEffect(strategy(t, dispatch.ModeSingle, 1, letters), r.folder, r.accepter, metrics, logs.Discard(), c.now)
	return r
}

// strategy spreads drafts. The disk in memory counts steps, so its tests want one worker.
func strategy(t require.TestingT, mode dispatch.Mode, workers int, letters *letter.Renderer) dispatch.Strategy[*delivery.Draft] {
	s, err := dispatch.New(dispatch.Spread[*delivery.Draft]{
		Mode: mode, Workers: workers, Key: (*delivery.Draft).Key,
	}, delivery.Drafting(letters))
	require.NoError(t, err)
	return s
}

// group is a group on its way through the steps.
type group struct {
	r      *replica
	events []consumer.Event
	work   consumer.Work
}

func (r *replica) prepare(due ...consumer.Event) (*group, error) {
	work, err := r.effect.Prepare(r.ctx, consumer.Group{Due: due})
	return &group{r, due, work}, err
}

// commit is the consumer's transaction: lanes, what is due by them, the effect.
func (g *group) commit() error {
	return g.r.db.Tx(g.r.ctx, func(ctx context.Context, tx *database.Tx) error {
		var decided consumer.Group
		for _, e := range g.events {
			_, err := tx.ExecContext(ctx, `INSERT INTO lanes (order_id, version) VALUES ($1, 0) ON CONFLICT DO NOTHING`, e.Subject)
			if err != nil {
				return err
			}
			var version int64
			err = tx.QueryRowContext(ctx, `SELECT version FROM lanes WHERE order_id = $1`+tx.Dialect().ForUpdate(), e.Subject).Scan(&version)
			switch {
			case err != nil:
				return err
			case e.Version <= version:
				decided.Duplicates = append(decided.Duplicates, e)
				continue
			case e.Version > version+1:
				return errors.New("the test gave an event too early")
			}
			decided.Due = append(decided.Due, e)
			if _, err := tx.ExecContext(ctx, `UPDATE lanes SET version = $1 WHERE order_id = $2`, e.Version, e.Subject); err != nil {
				return err
			}
		}
		return g.work.Apply(ctx, tx, decided)
	})
}

func (g *group) done() error { return g.work.Done(g.r.ctx) }

// handle goes through all steps, as the consumer does.
func (r *replica) handle(due ...consumer.Event) error {
	g, err := r.prepare(due...)
	if err != nil {
		return err
	}
	if err := g.commit(); err != nil {
		g.work.Discard(r.ctx)
		return err
	}
	return g.done()
}

// flush runs the accepter over what is queued.
func (r *replica) flush() {
	ctx, cancel := context.WithCancel(r.ctx)
	cancel()
	r.accepter.Run(ctx)
}

// event is version n of an order; 1 places, the third cancels.
func event(order string, version int64) consumer.Event {
	kind := map[int64]string{1: events.TypePlaced, 3: events.TypeCancelled}[version]
	if kind == "" {
		kind = events.TypeChanged
	}
	at := time.Date(2026, 3, 14, 9, 0, int(version), 0, time.UTC)
	data, err := json.Marshal(events.Order{
		ID: order, Version: version, Status: "placed", Currency: "EUR", Total: "9.00", PlacedAt: at,
		Customer: events.Customer{Email: "ada@example.com"},
		Items:    []events.Item{{SKU: "TEA-01", Quantity: 2, UnitPrice: "4.50"}},
	})
	if err != nil {
		panic(err) // the type always encodes
	}
	return consumer.Event{Event: events.Event{
		ID: fmt.Sprintf("%s-%d", order, version), Source: events.Source, Type: kind, Time: at,
		Subject: order, Version: version, Data: data,
	}}
}

// label is "order-version" of a mail, by its headers.
func label(data []byte) string {
	head, _, _ := strings.Cut(string(data), "\r\n\r\n")
	found := map[string]string{}
	for line := range strings.SplitSeq(head, "\r\n") {
		name, value, _ := strings.Cut(line, ": ")
		found[name] = value
	}
	return found[letter.HeaderOrder] + "-" + found[letter.HeaderVersion]
}

// mails returns the labels of what lies in the pickup folder.
func mails(disk *pickuptest.Disk) []string {
	var all []string
	for _, data := range disk.Files(folder) {
		all = append(all, label(data))
	}
	return all
}

func staged(disk *pickuptest.Disk) map[string][]byte {
	return disk.Files(path.Join(folder, pickup.StagingName))
}

// appeared are the labels in order of appearance; files must still lie there.
func appeared(t *testing.T, disk *pickuptest.Disk) []string {
	t.Helper()
	files := disk.Files(folder)
	var all []string
	for _, name := range disk.Appeared() {
		require.Contains(t, files, name)
		all = append(all, label(files[name]))
	}
	return all
}

// states counts the rows by state.
func states(t *testing.T, db *database.DB) map[string]int {
	t.Helper()
	rows, err := db.Read().QueryContext(t.Context(), `SELECT state, COUNT(*) FROM deliveries GROUP BY state`)
	require.NoError(t, err)
	defer rows.Close()
	counts := map[string]int{}
	for rows.Next() {
		var state string
		var n int
		require.NoError(t, rows.Scan(&state, &n))
		counts[state] = n
	}
	require.NoError(t, rows.Err())
	return counts
}
