package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

const (
	defaultMaxSkew = 2 * time.Second
	// eventRoom is what a message of the largest event needs: 900 KB and its headers.
	eventRoom = 1_000_000
)

// Examination says how Examine looks.
type Examination struct {
	Stream string
	// Syncs says that the server fsyncs every write: an embedded one does. Otherwise it is asked at Monitor.
	Syncs bool
	// Monitor is the server's monitoring address (http://host:8222); empty: there is none.
	Monitor string
	// Replicas is how many copies the stream was set to have; 0: not known.
	Replicas int
	// Mends: who asks brings the stream's settings up to date when it starts, so those are no findings.
	Mends bool
	// Durables: look at the groups' durables too.
	Durables bool
	// Slow is the 99th percentile of the time that a group's handler takes, by group; may be nil.
	Slow map[string]time.Duration
	// Rights: try out what the user may do, by requests that the server refuses in any case.
	Rights Rights
	// Clock is this host's. Default time.Now.
	Clock func() time.Time
	// MaxSkew is the difference of clocks that is no finding. Default 2 s.
	MaxSkew time.Duration
}

// Rights is what a user should not have.
type Rights int

// What is tried out.
const (
	NoRights         Rights = iota // nothing
	PublisherRights                // whether it may delete streams
	SubscriberRights               // and publish events
)

// Examine adds to r what in the stream endangers the events in it. It changes nothing.
func (c *Conn) Examine(ctx context.Context, e Examination, r *doctor.Report) {
	if e.Clock == nil {
		e.Clock = time.Now
	}
	if e.MaxSkew == 0 {
		e.MaxSkew = defaultMaxSkew
	}
	if limit := c.NATS.MaxPayload(); c.NATS.IsConnected() && limit < eventRoom {
		r.Find(doctor.StreamTooSmall, "NATS", "max_payload is %d bytes, events have up to %d", limit, eventRoom)
	}
	if e.Rights != NoRights {
		c.examineRights(ctx, e, r)
	}
	info, ok := c.look(ctx, e, r)
	if !ok {
		return
	}
	at := "stream " + e.Stream
	examineStream(at, e, info, r)
	c.examineCopies(ctx, at, e, info, r)
	if e.Durables {
		c.examineDurables(ctx, e, r)
	}
}

// look asks for the stream, and compares the clocks by the answers' times.
func (c *Conn) look(ctx context.Context, e Examination, r *doctor.Report) (*jetstream.StreamInfo, bool) {
	at := "stream " + e.Stream
	unseen := func(err error) (*jetstream.StreamInfo, bool) {
		for _, check := range []doctor.Check{doctor.Copies, doctor.Discard, doctor.Deadline, doctor.Clock} {
			r.Miss(check, at, err)
		}
		return nil, false
	}
	if !c.NATS.IsConnected() {
		return unseen(ErrDisconnected)
	}
	var info *jetstream.StreamInfo
	best, doubt := time.Duration(0), time.Duration(-1)
	for range 3 {
		asked := e.Clock()
		stream, err := c.JS.Stream(ctx, e.Stream)
		half := e.Clock().Sub(asked) / 2
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			r.Note(doctor.Discard, at, "does not exist yet; the store makes it")
			return nil, false
		}
		if err != nil {
			return unseen(fmt.Errorf("look up: %w", err))
		}
		info = stream.CachedInfo()
		if doubt < 0 || half < doubt {
			best, doubt = info.TimeStamp.Sub(asked.Add(half)), half
		}
	}
	if best.Abs()-doubt > e.MaxSkew && !info.TimeStamp.IsZero() { // servers before 2.10 do not tell it
		way := "behind"
		if best > 0 {
			way = "ahead of"
		}
		r.Find(doctor.ClockBroker, "NATS", "its clock is %s %s this host's (± %s)",
			best.Abs().Round(time.Millisecond), way, doubt.Round(time.Millisecond))
	}
	return info, true
}

// examineStream looks at the stream's settings.
func examineStream(at string, e Examination, info *jetstream.StreamInfo, r *doctor.Report) {
	s := info.Config
	if s.Retention != jetstream.LimitsPolicy {
		r.Find(doctor.StreamRetention, at, "its retention is %s", s.Retention)
	}
	if s.Storage != jetstream.FileStorage {
		r.Find(doctor.StreamInMemory, at, "its storage is %s", s.Storage)
	}
	if s.MaxMsgs > 0 || s.MaxMsgsPerSubject > 0 {
		r.Find(doctor.StreamPerSubject, at, "max msgs is %d, per subject %d", s.MaxMsgs, s.MaxMsgsPerSubject)
	}
	if s.MaxMsgSize > 0 && s.MaxMsgSize < eventRoom {
		r.Find(doctor.StreamTooSmall, at, "max msg size is %d bytes, events have up to %d", s.MaxMsgSize, eventRoom)
	}
	if e.Mends {
		return
	}
	if s.Discard != jetstream.DiscardNew {
		r.Find(doctor.StreamDiscardsOld, at, "its discard policy is old")
	}
	if s.MaxAge > 0 {
		r.Find(doctor.StreamExpires, at, "messages expire after %s", s.MaxAge)
	}
	if s.MaxBytes <= 0 {
		r.Find(doctor.StreamUnbounded, at, "max bytes is not set")
	}
	if s.Duplicates < duplicateWindow {
		r.Find(doctor.DuplicateWindow, at, "its duplicate window is %s", s.Duplicates)
	}
}

// quorum is the number of copies from which the loss of one server's memory loses nothing.
const quorum = 3

// examineCopies looks at what keeps a confirmed message: copies on three servers, or an fsync on one.
func (c *Conn) examineCopies(ctx context.Context, at string, e Examination, info *jetstream.StreamInfo, r *doctor.Report) {
	copies := max(info.Config.Replicas, 1)
	switch {
	case e.Mends:
	case e.Replicas > copies:
		r.Find(doctor.StreamFewCopies, at, "it has %d, set are %d", copies, e.Replicas)
	case info.Cluster != nil && info.Cluster.Name != "" && copies < quorum:
		r.Find(doctor.StreamFewCopies, at, "it has %d in cluster %s", copies, info.Cluster.Name)
	}
	if e.Syncs || copies >= quorum || info.Config.Storage != jetstream.FileStorage {
		return
	}
	if e.Monitor == "" {
		r.Note(doctor.Copies, "NATS", "whether the server fsyncs each write cannot be seen by a client: "+
			"set PILLARBOX_NATS_MONITOR_URL to its monitoring address, or make sure of sync_interval: always")
		return
	}
	v, err := readVarz(ctx, e.Monitor)
	if err != nil {
		r.Miss(doctor.Copies, "NATS", err)
		return
	}
	holder := c.NATS.ConnectedServerName()
	if info.Cluster != nil && info.Cluster.Leader != "" {
		holder = info.Cluster.Leader
	}
	switch {
	case v.Name != holder:
		r.Miss(doctor.Copies, "NATS", fmt.Errorf("the server at PILLARBOX_NATS_MONITOR_URL is %s, the stream is on %s", v.Name, holder))
	case !v.JetStream.Config.SyncAlways:
		r.Find(doctor.StreamNotSynced, at, "one power loss takes back what the server confirmed in the last %s",
			time.Duration(v.JetStream.Config.SyncInterval))
	}
}

// examineDurables looks at the durables of groups; those of tools are their users' business.
func (c *Conn) examineDurables(ctx context.Context, e Examination, r *doctor.Report) {
	stream, err := c.JS.Stream(ctx, e.Stream)
	if err != nil {
		r.Miss(doctor.Deadline, "stream "+e.Stream, fmt.Errorf("list consumers: %w", err))
		return
	}
	list := stream.ListConsumers(ctx)
	var durables []*jetstream.ConsumerInfo
	for info := range list.Info() {
		if info.Config.Metadata[metaGroup] != "" && info.Config.Metadata[metaTool] == "" && info.Config.Durable != "" {
			durables = append(durables, info)
		}
	}
	if err := list.Err(); err != nil {
		r.Miss(doctor.Deadline, "stream "+e.Stream, fmt.Errorf("list consumers: %w", err))
		return
	}
	slices.SortFunc(durables, func(a, b *jetstream.ConsumerInfo) int { return a.Created.Compare(b.Created) })
	for _, info := range durables {
		examineDurable(info, e.Slow[info.Config.Metadata[metaGroup]], r)
	}
}

func examineDurable(info *jetstream.ConsumerInfo, slow time.Duration, r *doctor.Report) {
	at, d := "consumer "+info.Name, info.Config
	if d.MaxDeliver > 0 {
		r.Find(doctor.DurableGivesUp, at, "max deliver is %d", d.MaxDeliver)
	}
	if d.AckPolicy != jetstream.AckExplicitPolicy {
		r.Find(doctor.DurableAcks, at, "its ack policy is %s", d.AckPolicy)
	}
	if d.InactiveThreshold > 0 {
		r.Find(doctor.DurableVanishes, at, "it is removed after %s without a reader", d.InactiveThreshold)
	}
	if d.AckWait > 0 && slow > d.AckWait {
		r.Find(doctor.DurableDeadline, at, "its ack deadline is %s, one in a hundred groups takes longer than %s",
			d.AckWait, slow.Round(time.Millisecond))
	}
}
