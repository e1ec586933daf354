package broker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/brokertest"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// examine returns the report on stream "orders".
func examine(t *testing.T, c *broker.Conn, e broker.Examination) *doctor.Report {
	t.Helper()
	var r doctor.Report
	e.Stream, e.Durables = "orders", true
	c.Examine(t.Context(), e, &r)
	return &r
}

// inOrder makes the stream and a durable as the services do.
func inOrder(t *testing.T, c *broker.Conn) {
	t.Helper()
	_, err := c.EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", MaxBytes: 1 << 20, Generation: 1})
	require.NoError(t, err)
	made := make(chan struct{}, 1)
	subscribed(t, c, "mailer", made)
	<-made
}

func subscribed(t *testing.T, c *broker.Conn, group string, made chan<- struct{}) {
	t.Helper()
	s, err := broker.NewSubscriber(c, broker.SubscriberConfig{Group: group, OnDurable: func(context.Context, string) {
		select {
		case made <- struct{}{}:
		default:
		}
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	_, err = s.Subscribe(t.Context(), "orders.events")
	require.NoError(t, err)
}

// monitor is a server's monitoring address that says what it is told.
func monitor(t *testing.T, name string, always bool) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		require.Equal(t, "/varz", r.URL.Path)
		_ = json.NewEncoder(w).Encode(map[string]any{"server_name": name, "jetstream": map[string]any{
			"config": map[string]any{"sync_always": always, "sync_interval": 2 * time.Minute}}})
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestNothingIsFoundInOrder(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	r := examine(t, c, broker.Examination{Syncs: true})
	require.Empty(t, r.Findings, "without a stream there is nothing to find")
	require.Len(t, r.Notes, 1)
	inOrder(t, c)
	r = examine(t, c, broker.Examination{Syncs: true})
	require.Empty(t, r.Findings)
	require.Empty(t, r.Notes)
	require.Empty(t, r.Unseen)
}

func TestWhatIsWrongWithAStream(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*jetstream.StreamConfig)
		want   doctor.Code
		mended bool // by the store's start
	}{
		"discard":        {func(s *jetstream.StreamConfig) { s.Discard = jetstream.DiscardOld }, doctor.StreamDiscardsOld, true},
		"age":            {func(s *jetstream.StreamConfig) { s.MaxAge = time.Hour }, doctor.StreamExpires, true},
		"messages":       {func(s *jetstream.StreamConfig) { s.MaxMsgs = 1000 }, doctor.StreamPerSubject, false},
		"per subject":    {func(s *jetstream.StreamConfig) { s.MaxMsgsPerSubject = 1 }, doctor.StreamPerSubject, false},
		"message's size": {func(s *jetstream.StreamConfig) { s.MaxMsgSize = 1000 }, doctor.StreamTooSmall, false},
		"size":           {func(s *jetstream.StreamConfig) { s.MaxBytes = -1 }, doctor.StreamUnbounded, true},
		"window":         {func(s *jetstream.StreamConfig) { s.Duplicates = time.Second }, doctor.DuplicateWindow, true},
		"memory":         {func(s *jetstream.StreamConfig) { s.Storage = jetstream.MemoryStorage; s.MaxBytes = 1 << 20 }, doctor.StreamInMemory, false},
		"interest":       {func(s *jetstream.StreamConfig) { s.Retention = jetstream.InterestPolicy }, doctor.StreamRetention, false},
		"work queue":     {func(s *jetstream.StreamConfig) { s.Retention = jetstream.WorkQueuePolicy }, doctor.StreamRetention, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := brokertest.Connect(t, brokertest.Server(t))
			s := jetstream.StreamConfig{
				Name: "orders", Subjects: []string{"orders", "orders.>"}, Discard: jetstream.DiscardNew, MaxBytes: 1 << 20, Duplicates: 2 * time.Minute,
			}
			c.change(&s)
			_, err := conn.JS.CreateStream(t.Context(), s)
			require.NoError(t, err)
			require.Equal(t, []doctor.Code{c.want}, examine(t, conn, broker.Examination{Syncs: true}).Codes())
			require.Equal(t, c.mended, len(examine(t, conn, broker.Examination{Syncs: true, Mends: true}).Codes()) == 0)
		})
	}
}

func TestWhatIsWrongWithADurable(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*jetstream.ConsumerConfig)
		slow   time.Duration
		want   []doctor.Code
	}{
		"nothing":   {func(*jetstream.ConsumerConfig) {}, 4 * time.Second, nil},
		"slow":      {func(*jetstream.ConsumerConfig) {}, 6 * time.Second, []doctor.Code{doctor.DurableDeadline}},
		"gives up":  {func(d *jetstream.ConsumerConfig) { d.MaxDeliver = 5 }, 0, []doctor.Code{doctor.DurableGivesUp}},
		"no acks":   {func(d *jetstream.ConsumerConfig) { d.AckPolicy = jetstream.AckNonePolicy }, 0, []doctor.Code{doctor.DurableAcks}},
		"all acks":  {func(d *jetstream.ConsumerConfig) { d.AckPolicy = jetstream.AckAllPolicy }, 0, []doctor.Code{doctor.DurableAcks}},
		"vanishes":  {func(d *jetstream.ConsumerConfig) { d.InactiveThreshold = time.Hour }, 0, []doctor.Code{doctor.DurableVanishes}},
		"of a tool": {func(d *jetstream.ConsumerConfig) { d.MaxDeliver = 5; d.Metadata["pillarbox-tool"] = "1" }, 0, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := brokertest.Connect(t, brokertest.Server(t))
			_, err := conn.EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", MaxBytes: 1 << 20})
			require.NoError(t, err)
			d := jetstream.ConsumerConfig{Durable: "mailer-1", AckPolicy: jetstream.AckExplicitPolicy, AckWait: 5 * time.Second, MaxDeliver: -1,
				Metadata: map[string]string{"pillarbox-group": "mailer"}}
			c.change(&d)
			_, err = conn.JS.CreateConsumer(t.Context(), "orders", d)
			require.NoError(t, err)
			r := examine(t, conn, broker.Examination{Syncs: true, Slow: map[string]time.Duration{"mailer": c.slow}})
			require.Equal(t, c.want, r.Codes())
		})
	}
}

func TestWhetherTheServerSyncs(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	inOrder(t, c)
	r := examine(t, c, broker.Examination{})
	require.Empty(t, r.Findings)
	require.Len(t, r.Notes, 1, "it cannot be seen by a client")
	r = examine(t, c, broker.Examination{Monitor: monitor(t, "pillarbox", true)})
	require.Empty(t, r.Findings)
	require.Empty(t, r.Notes)
	require.Empty(t, r.Unseen)
	r = examine(t, c, broker.Examination{Monitor: monitor(t, "pillarbox", false)})
	require.Equal(t, []doctor.Code{doctor.StreamNotSynced}, r.Codes())
	require.Contains(t, r.Findings[0].Problem, "2m0s")
	for _, address := range []string{monitor(t, "another", false), "http://127.0.0.1:1", "nonsense\x7f"} {
		r = examine(t, c, broker.Examination{Monitor: address})
		require.Empty(t, r.Findings, address)
		require.Len(t, r.Unseen, 1, address)
	}
}

// TestTheRealMonitor asks a real server, so that the names of its figures stay true.
func TestTheRealMonitor(t *testing.T) {
	t.Parallel()
	for _, always := range []bool{false, true} {
		s, err := server.NewServer(&server.Options{
			ServerName: "one", Host: "127.0.0.1", Port: server.RANDOM_PORT, HTTPHost: "127.0.0.1", HTTPPort: -1,
			JetStream: true, StoreDir: t.TempDir(), SyncAlways: always, JetStreamMaxStore: 1 << 30, NoSigs: true, NoLog: true,
		})
		require.NoError(t, err)
		s.Start()
		t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
		require.True(t, s.ReadyForConnections(10*time.Second))
		c := brokertest.ConnectURL(t, s.ClientURL())
		inOrder(t, c)
		r := examine(t, c, broker.Examination{Monitor: fmt.Sprintf("http://%s", s.MonitorAddr())})
		require.Empty(t, r.Unseen)
		require.Equal(t, always, len(r.Codes()) == 0, "%v", r.Findings)
	}
}

func TestFewerCopiesThanSet(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	inOrder(t, c)
	require.Equal(t, []doctor.Code{doctor.StreamFewCopies}, examine(t, c, broker.Examination{Syncs: true, Replicas: 3}).Codes())
}

func TestCopiesInACluster(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts three servers")
	}
	c := brokertest.ConnectURL(t, brokertest.Cluster(t)[0].ClientURL())
	ensure := func(replicas int) {
		require.Eventually(t, func() bool {
			_, err := c.EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", MaxBytes: 1 << 20, Replicas: replicas})
			return err == nil
		}, 20*time.Second, 50*time.Millisecond)
	}
	ensure(1)
	require.Contains(t, examine(t, c, broker.Examination{Syncs: true}).Codes(), doctor.StreamFewCopies)
	ensure(3)
	r := examine(t, c, broker.Examination{Replicas: 3})
	require.Empty(t, r.Findings)
	require.Empty(t, r.Notes, "three copies need no fsync")
}

func TestTheBrokersClock(t *testing.T) {
	t.Parallel()
	c := brokertest.Connect(t, brokertest.Server(t))
	inOrder(t, c)
	for _, skew := range []time.Duration{time.Minute, -time.Minute} {
		clock := func() time.Time { return time.Now().Add(skew) }
		require.Equal(t, []doctor.Code{doctor.ClockBroker},
			examine(t, c, broker.Examination{Syncs: true, Clock: clock, MaxSkew: 20 * time.Second}).Codes())
	}
}

func TestRightsOfAUser(t *testing.T) {
	t.Parallel()
	inboxes := &server.SubjectPermission{Allow: []string{"_INBOX.>"}}
	allow := func(subjects ...string) *server.Permissions {
		subjects = append(subjects, "$JS.API.INFO", "$JS.API.STREAM.INFO.orders", "$JS.API.STREAM.CREATE.orders", "$JS.API.CONSUMER.LIST.orders")
		return &server.Permissions{Publish: &server.SubjectPermission{Allow: subjects}, Subscribe: inboxes}
	}
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), JetStreamMaxStore: 1 << 30, NoSigs: true, NoLog: true,
		Users: []*server.User{
			{Username: "all", Password: "x"},
			{Username: "narrow", Password: "x", Permissions: allow()},
			{Username: "publishes", Password: "x", Permissions: allow("orders.>")},
			{Username: "deletes", Password: "x", Permissions: allow("$JS.API.STREAM.DELETE.*")},
		},
	})
	require.NoError(t, err)
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	require.True(t, s.ReadyForConnections(10*time.Second))
	as := func(user string) *broker.Conn {
		return brokertest.ConnectURL(t, fmt.Sprintf("nats://%s:x@%s", user, s.Addr()))
	}
	_, err = as("all").EnsureStream(t.Context(), broker.StreamConfig{Name: "orders", MaxBytes: 1 << 20})
	require.NoError(t, err)
	for _, c := range []struct {
		user   string
		rights broker.Rights
		want   string
	}{
		{"narrow", broker.SubscriberRights, ""},
		{"publishes", broker.PublisherRights, ""},
		{"publishes", broker.SubscriberRights, "it may publish events"},
		{"deletes", broker.PublisherRights, "it may delete streams"},
		{"all", broker.SubscriberRights, "it may delete streams and publish events"},
		{"all", broker.NoRights, ""},
	} {
		r := examine(t, as(c.user), broker.Examination{Syncs: true, Rights: c.rights})
		require.Empty(t, r.Unseen, c.user)
		if c.want == "" {
			require.Empty(t, r.Findings, c.user)
			continue
		}
		require.Equal(t, []doctor.Code{doctor.BrokerTooOpen}, r.Codes(), c.user)
		require.Equal(t, c.want, r.Findings[0].Problem)
		require.Equal(t, "NATS, user "+c.user, r.Findings[0].Where)
	}
	st, err := as("all").Stream(t.Context(), "orders")
	require.NoError(t, err)
	require.Zero(t, st.LastSeq, "trying out publishes nothing")
}

func TestAnUnreachableBrokerIsNotSeen(t *testing.T) {
	t.Parallel()
	s := brokertest.Server(t)
	c := brokertest.Connect(t, s)
	s.Stop()
	require.Eventually(t, func() bool { return !c.NATS.IsConnected() }, time.Minute, time.Millisecond)
	r := examine(t, c, broker.Examination{Rights: broker.SubscriberRights})
	require.Empty(t, r.Findings)
	require.NotEmpty(t, r.Unseen)
}
