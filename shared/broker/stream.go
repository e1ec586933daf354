package broker

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	metaGeneration = "pillarbox-generation" // stream and durable metadata
	metaGroup      = "pillarbox-group"      // durable metadata

	defaultMaxBytes = 1 << 30
	autoMaxBytes    = 64 << 20 // of streams that tests and tools create on the way
	duplicateWindow = 2 * time.Minute
)

// StreamConfig is what a stream needs: limits retention (the others sync on every
// ack), DiscardNew (nothing confirmed is ever dropped), no MaxAge.
type StreamConfig struct {
	Name     string // its subjects are Name and Name.>
	MaxBytes int64  // default 1 GiB
	Replicas int    // default 1
	FirstSeq uint64 // of a new stream
	// Generation rises when a stream lost its tail; it is kept in the stream's metadata and
	// is part of the durables' names. A lower one than the stream's is ignored.
	Generation int64
}

// StreamState is what the relay compares with its own memory.
type StreamState struct {
	Created    time.Time // exactly as the server reports it, in UTC
	FirstSeq   uint64
	FirstAt    time.Time // when the first message was stored; zero when there is none
	LastSeq    uint64
	Messages   uint64
	Bytes      uint64
	Generation int64
}

// EnsureStream creates the stream or brings its configuration up to date, and returns its state.
// It never removes messages: a lower MaxBytes only refuses new ones.
func (c *Conn) EnsureStream(ctx context.Context, s StreamConfig) (StreamState, error) {
	if s.MaxBytes == 0 {
		s.MaxBytes = defaultMaxBytes
	}
	return c.ensure(ctx, s, s.Name)
}

// ensure is EnsureStream for a stream whose subjects start with root.
func (c *Conn) ensure(ctx context.Context, s StreamConfig, root string) (StreamState, error) {
	if !c.NATS.IsConnected() { // rather than wait for an answer and report a time-out
		return StreamState{}, fmt.Errorf("ensure stream %s: %w", s.Name, ErrDisconnected)
	}
	const attempts = 5 // two creators or updaters at once: the loser looks again
	var err error
	for range attempts {
		var stream jetstream.Stream
		stream, err = c.JS.Stream(ctx, s.Name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			stream, err = c.JS.CreateStream(ctx, s.wanted(jetstream.StreamConfig{FirstSeq: s.FirstSeq}, root))
		} else if err == nil {
			was := stream.CachedInfo().Config
			if want := s.wanted(was, root); s.differs(was, want) {
				stream, err = c.JS.UpdateStream(ctx, want)
			}
		}
		if err == nil {
			return stateOf(stream.CachedInfo()), nil
		}
		if !errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) && !errors.Is(err, jetstream.ErrStreamNotFound) {
			break
		}
	}
	return StreamState{}, fmt.Errorf("ensure stream %s: %w", s.Name, err)
}

// wanted is the configuration was with what we insist on.
func (s StreamConfig) wanted(was jetstream.StreamConfig, root string) jetstream.StreamConfig {
	w := was
	w.Name = s.Name
	w.Subjects = []string{root, root + ".>"}
	w.Retention = jetstream.LimitsPolicy
	w.Storage = jetstream.FileStorage
	w.Discard = jetstream.DiscardNew
	w.MaxBytes = s.MaxBytes
	w.MaxAge = 0
	w.Replicas = max(s.Replicas, 1)
	w.Duplicates = duplicateWindow
	w.AllowAtomicPublish = true
	w.Metadata = maps.Clone(was.Metadata)
	if w.Metadata == nil {
		w.Metadata = map[string]string{}
	}
	// The server's own notes are not ours to send back.
	maps.DeleteFunc(w.Metadata, func(k, _ string) bool { return strings.HasPrefix(k, "_nats.") })
	w.Metadata[metaGeneration] = strconv.FormatInt(max(s.Generation, generationOf(was)), 10)
	return w
}

// differs reports whether something that we insist on is otherwise in was.
func (s StreamConfig) differs(was, want jetstream.StreamConfig) bool {
	return !slices.Equal(was.Subjects, want.Subjects) || was.Retention != want.Retention || was.Storage != want.Storage ||
		was.Discard != want.Discard || was.MaxBytes != want.MaxBytes || was.MaxAge != want.MaxAge ||
		was.Replicas != want.Replicas || was.Duplicates != want.Duplicates ||
		was.AllowAtomicPublish != want.AllowAtomicPublish ||
		was.Metadata[metaGeneration] != want.Metadata[metaGeneration]
}

// Stream returns the state of a stream, or ErrNoStream.
func (c *Conn) Stream(ctx context.Context, name string) (StreamState, error) {
	if !c.NATS.IsConnected() {
		return StreamState{}, fmt.Errorf("look up stream %s: %w", name, ErrDisconnected)
	}
	stream, err := c.JS.Stream(ctx, name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return StreamState{}, fmt.Errorf("%w: %s", ErrNoStream, name)
	}
	if err != nil {
		return StreamState{}, fmt.Errorf("look up stream %s: %w", name, err)
	}
	return stateOf(stream.CachedInfo()), nil
}

func stateOf(i *jetstream.StreamInfo) StreamState {
	s := StreamState{
		Created: i.Created.UTC(), FirstSeq: i.State.FirstSeq, LastSeq: i.State.LastSeq,
		Messages: i.State.Msgs, Bytes: i.State.Bytes, Generation: generationOf(i.Config),
	}
	if s.Messages > 0 {
		s.FirstAt = i.State.FirstTime.UTC()
	}
	return s
}

// generationOf reads the generation; a stream that somebody made by hand has none, which is 0.
func generationOf(c jetstream.StreamConfig) int64 {
	n, err := strconv.ParseInt(c.Metadata[metaGeneration], 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// rootOf is the topic's first token, with which the subjects of its stream begin.
func rootOf(topic string) string {
	root, _, _ := strings.Cut(topic, ".")
	return root
}

// streamOf is the name of the topic's stream: its first token. A token that is no valid stream
// name gets its odd characters replaced and a hash of the original, so that two never meet.
func streamOf(topic string) string {
	root := rootOf(topic)
	safe := strings.Map(func(r rune) rune {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`/\*>`, r) {
			return '_'
		}
		return r
	}, root)
	if safe == root {
		return root
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(root))
	return fmt.Sprintf("%s-%08x", safe, h.Sum32())
}

// ensureTopic creates the topic's stream when it is missing, for tests and tools.
func (c *Conn) ensureTopic(ctx context.Context, topic string) error {
	name := streamOf(topic)
	if _, err := c.Stream(ctx, name); !errors.Is(err, ErrNoStream) {
		return err
	}
	_, err := c.ensure(ctx, StreamConfig{Name: name, MaxBytes: autoMaxBytes}, rootOf(topic))
	return err
}
