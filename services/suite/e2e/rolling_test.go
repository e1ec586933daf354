package e2e_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// ackDeadline is after how long the broker hands out again what nobody
// acknowledged or gave back.
const ackDeadline = 5 * time.Second

// durables watches the broker's view of the three subscribers.
type durables struct {
	stream jetstream.Stream
	// stalls is for each durable how long its acknowledgements stood still at most while messages were out.
	stalls map[string]time.Duration
	failed error
}

func watchDurables(t *testing.T, line e2e.Line) *durables {
	t.Helper()
	conn, err := nats.Connect(line.Publisher)
	require.NoError(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	stream, err := js.Stream(t.Context(), "orders")
	require.NoError(t, err)
	return &durables{stream: stream, stalls: map[string]time.Duration{}}
}

// all returns the durables as they are now.
func (d *durables) all(ctx context.Context) ([]*jetstream.ConsumerInfo, error) {
	list := d.stream.ListConsumers(ctx)
	var found []*jetstream.ConsumerInfo
	for info := range list.Info() {
		found = append(found, info)
	}
	return found, list.Err()
}

// run looks again and again until ctx ends. A message that is left to the ack
// deadline holds the acknowledgements' floor for as long.
func (d *durables) run(ctx context.Context) {
	type floor struct {
		sequence uint64
		since    time.Time
	}
	floors := map[string]floor{}
	for {
		found, err := d.all(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			d.failed = err
			return
		}
		for _, info := range found {
			was, known := floors[info.Name]
			if !known || info.NumAckPending == 0 || info.AckFloor.Stream != was.sequence {
				floors[info.Name] = floor{info.AckFloor.Stream, time.Now()}
				continue
			}
			d.stalls[info.Name] = max(d.stalls[info.Name], time.Since(was.since))
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// settled requires that nothing is unacknowledged or given back any more, long
// before an ack deadline.
func (d *durables) settled(t *testing.T) {
	t.Helper()
	var last string
	require.Eventually(t, func() bool {
		found, err := d.all(t.Context())
		require.NoError(t, err)
		last = ""
		for _, info := range found {
			last += fmt.Sprintf("%s: %d pending, %d unacknowledged, %d given back; ", info.Name, info.NumPending, info.NumAckPending, info.NumRedelivered)
			if info.NumPending > 0 || info.NumAckPending > 0 || info.NumRedelivered > 0 {
				return false
			}
		}
		return len(found) == 3
	}, ackDeadline/2, 50*time.Millisecond, "%s", &last)
}

// surprises collects the failures that a rolling restart must not show to a
// shop: anything but "not here" and "not now".
type surprises struct {
	mu              sync.Mutex // guards all below
	refused, notNow int
	others          []error
}

func (s *surprises) note(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var again *e2e.TryAgain
	var network *net.OpError
	switch {
	case errors.As(why, &network) && network.Op == "dial": // nothing was sent
		s.refused++
	case errors.As(why, &again) && again.Status == http.StatusServiceUnavailable:
		s.notNow++
	default:
		s.others = append(s.others, why)
	}
}

// TestRollingRestart stops and starts every process of a line of three replicas
// under load, one after another, as an upgrade does.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	c := startCluster(t, 3)
	b := begin(t, c.Line())
	var seen surprises
	b.client.OnRetry = seen.note
	watched := watchDurables(t, c.Line())
	watching, stopWatching := context.WithCancel(t.Context())
	watchEnded := make(chan struct{})
	go func() { defer close(watchEnded); watched.run(watching) }()
	ctx, stop := context.WithCancel(t.Context())
	loaded := make(chan error, 1)
	go func() {
		loaded <- e2e.Load{Client: b.client, Workers: 12, Seed: crashSeed(t), Pause: 4 * time.Millisecond}.Run(ctx)
	}()

	grow(t, b.truth.Count, 30)
	var worstStop, worstStart time.Duration
	for _, p := range c.All() {
		begun := time.Now()
		require.NoError(t, p.Stop())
		stopped := time.Now()
		require.NoError(t, p.Run(ctx))
		worstStop, worstStart = max(worstStop, stopped.Sub(begun)), max(worstStart, time.Since(stopped))
		grow(t, b.truth.Count, 10)
	}
	stop()
	require.NoError(t, <-loaded)
	b.conserved(t)
	watched.settled(t)
	stopWatching()
	<-watchEnded
	require.NoError(t, watched.failed)

	t.Logf("%d facts; %d connections refused, %d answers 503; worst stop %s, worst start to ready %s; acknowledgements stood still at most %v",
		b.truth.Count(), seen.refused, seen.notNow, worstStop.Round(time.Millisecond), worstStart.Round(time.Millisecond), watched.stalls)
	require.Empty(t, seen.others)
	require.Len(t, watched.stalls, 3)
	for name, stall := range watched.stalls {
		require.Less(t, stall, ackDeadline*3/5, "a message was left to the ack deadline of %s", name)
	}
	super := as(t, c, "postgres")
	for _, table := range []string{"mailer.dead_letters", "audit.dead_letters", "loyalty.dead_letters", "mailer.parked", "loyalty.parked", "store.outbox"} {
		require.Equal(t, []string{"0"}, super.texts(t, "SELECT count(*)::text FROM "+table), table)
	}
}
