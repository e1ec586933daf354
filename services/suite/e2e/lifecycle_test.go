package e2e_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/logs"
)

func TestSuiteTwiceInOneProcessLeavesNothingBehind(t *testing.T) {
	// Not parallel: the count of goroutines is the process's.
	before := goleak.IgnoreCurrent()
	first, second := t.TempDir(), t.TempDir()
	one, stopOne := runSuite(t, first)
	two, stopTwo := runSuite(t, second)
	for dir, suite := range map[string]*inprocess.Suite{first: one, second: two} {
		b := begin(t, lineOf(suite, dir))
		_, err := b.client.Place(b.ctx, e2e.Body("ada@example.com", "EUR", 1, "1.00"))
		require.NoError(t, err)
		b.conserved(t)
		require.NoError(t, b.mails.Stop())
	}
	require.NoError(t, stopOne())
	require.NoError(t, stopTwo())
	e2e.CloseIdle()
	goleak.VerifyNone(t, before)
}

func TestSecondSuiteOnAFolderIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, stop := runSuite(t, dir)
	defer func() { require.NoError(t, stop()) }()
	_, err := inprocess.Start(t.Context(), inprocess.Config{
		Data: dir, HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0", Settings: settings(t),
	}, logs.Discard())
	require.ErrorIs(t, err, inprocess.ErrInUse)
	require.ErrorContains(t, err, fmt.Sprint(os.Getpid()))
}

// TestFiftyStartsAndStopsUnderLoad stops the suite at a random moment of a
// steady load, fifty times on one folder.
func TestFiftyStartsAndStopsUnderLoad(t *testing.T) {
	t.Parallel()
	rounds := 50
	if testing.Short() {
		rounds = 12
	}
	dir := t.TempDir()
	truth := &e2e.Truth{}
	box := &e2e.Mailbox{Folder: filepath.Join(dir, "pickup")}
	type request struct {
		key  string
		body any
	}
	var unanswered []request
	random := rand.New(rand.NewPCG(1, 2))
	for round := range rounds {
		suite, stop := runSuite(t, dir)
		client := e2e.NewClient(truth, "http://"+suite.HTTP())
		// What had no answer when the suite stopped is asked again, under its key.
		for _, r := range unanswered {
			_, err := client.PlaceWithKey(t.Context(), r.key, r.body)
			require.NoError(t, err)
		}
		unanswered = nil
		load, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		placed := make(chan struct{}, 1000)
		go func() {
			defer close(done)
			for n := 0; load.Err() == nil; n++ {
				key, body := fmt.Sprintf("r%d-%d", round, n), e2e.Body("ada@example.com", "EUR", 1, "1.00")
				if _, err := client.PlaceWithKey(load, key, body); err != nil {
					unanswered = append(unanswered, request{key, body})
					return
				}
				placed <- struct{}{}
			}
		}()
		for range 1 + random.IntN(40) {
			<-placed
		}
		stopErr := stop() // while requests are under way
		cancel()
		<-done
		require.NoError(t, stopErr, "round %d", round)
		require.Zero(t, unacknowledged(t, filepath.Join(dir, "nats")), "round %d: messages left to the ack deadline", round)
	}
	suite, stop := runSuite(t, dir)
	for _, r := range unanswered {
		_, err := e2e.NewClient(truth, "http://"+suite.HTTP()).PlaceWithKey(t.Context(), r.key, r.body)
		require.NoError(t, err)
	}
	line := lineOf(suite, dir)
	require.NoError(t, line.WaitConserved(t.Context(), truth, box, deadline))
	require.NoError(t, stop())
}

// unacknowledged opens the stopped suite's broker store and counts what is
// delivered but not acknowledged.
func unacknowledged(t *testing.T, store string) int {
	t.Helper()
	server, err := embedded.Start(t.Context(), embedded.Config{Dir: store}, logs.Discard())
	require.NoError(t, err)
	defer server.Stop()
	conn, err := broker.Connect(broker.Config{Server: server, Name: "count"}, logs.Discard())
	require.NoError(t, err)
	defer conn.Close()
	stream, err := conn.JS.Stream(t.Context(), "orders")
	require.NoError(t, err)
	count := 0
	consumers := stream.ListConsumers(t.Context())
	for info := range consumers.Info() {
		count += info.NumAckPending
	}
	require.NoError(t, consumers.Err())
	return count
}
