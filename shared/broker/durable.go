package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

const (
	// Messages that may be unacknowledged at a durable in all: so many replicas with full
	// buffers. Beyond, further replicas get nothing until some is acknowledged.
	replicasAtOnce = 64
	// A subscription without a group leaves its durable behind in a crash; the server removes it then.
	ownInactive = time.Hour
)

// durable is a group's durable consumer as the server has it.
type durable struct {
	stream, name string
	generation   int64
	streamMade   time.Time
	made         time.Time
}

// same reports whether nothing was made anew between d and other.
func (d durable) same(other durable) bool {
	return d.name == other.name && d.made.Equal(other.made) && d.streamMade.Equal(other.streamMade)
}

func durableName(group string, generation int64) string {
	return group + "-" + strconv.FormatInt(generation, 10)
}

// ensureDurable finds or creates the durable of the group's present generation.
func (s *subscription) ensureDurable(ctx context.Context) (durable, error) {
	c, stream := s.parent.conn, streamOf(s.topic)
	st, err := c.Stream(ctx, stream)
	if errors.Is(err, ErrNoStream) && s.parent.config.AutoCreate {
		if err := c.ensureTopic(ctx, s.topic); err != nil {
			return durable{}, err
		}
		st, err = c.Stream(ctx, stream)
	}
	if err != nil {
		return durable{}, err
	}
	want, topics := s.consumerConfig(st.Generation), sortedTopics(append([]string{s.topic}, s.parent.config.Besides...))
	found, err := c.JS.Consumer(ctx, stream, want.Durable)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
		return durable{}, fmt.Errorf("look up durable %s: %w", want.Durable, err)
	}
	if err == nil {
		was := found.CachedInfo().Config
		taken := topicsOf(was)
		if !slices.Contains(taken, s.topic) {
			// Changing the filter would make the other topic's messages disappear for its readers.
			return durable{}, fmt.Errorf("durable %s reads topics %v: use another group for %s", want.Durable, taken, s.topic)
		}
		// Nothing is taken away: a replica of a later release may read more, and its messages would be passed over.
		topics = sortedTopics(append(topics, taken...))
		want.PauseUntil = was.PauseUntil // or a restart would end an operator's pause
	}
	// The server wants one topic in the one field, and its permissions see it in the request's subject.
	if want.FilterSubject = topics[0]; len(topics) > 1 {
		want.FilterSubject, want.FilterSubjects = "", topics
	}
	consumer, err := c.JS.CreateOrUpdateConsumer(ctx, stream, want)
	if err != nil {
		return durable{}, fmt.Errorf("create durable %s: %w", want.Durable, err)
	}
	return durable{
		stream: stream, name: want.Durable, generation: st.Generation,
		streamMade: st.Created, made: consumer.CachedInfo().Created,
	}, nil
}

func (s *subscription) consumerConfig(generation int64) jetstream.ConsumerConfig {
	sc := s.parent.config
	c := jetstream.ConsumerConfig{
		Durable:       durableName(s.group, generation),
		DeliverPolicy: jetstream.DeliverAllPolicy,
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       sc.AckWait,
		MaxDeliver:    -1, // attempts are counted where they are made, not from deliveries
		MaxAckPending: max(1000, replicasAtOnce*sc.MaxInFlight),
		Metadata:      map[string]string{metaGroup: s.group, metaGeneration: strconv.FormatInt(generation, 10)},
	}
	if sc.Group == "" {
		c.InactiveThreshold = ownInactive
	}
	return c
}

// topicsOf are the topics that a durable takes; none means all of the stream.
func topicsOf(c jetstream.ConsumerConfig) []string {
	if c.FilterSubject != "" {
		return []string{c.FilterSubject}
	}
	return c.FilterSubjects
}

// sortedTopics is one spelling of a set, so that replicas do not update the durable in turn.
func sortedTopics(topics []string) []string {
	slices.Sort(topics)
	return slices.Compact(topics)
}

// removeOlder deletes the group's durables of lower generations. Nobody may read them any more, and a
// replica that was frozen since then finds its durable gone: it moves on at its next pull, and its late
// acks reach nobody. (Its acks name the old durable, so they could never count at the new one.)
func (s *subscription) removeOlder(ctx context.Context, now durable) error {
	stream, err := s.parent.conn.JS.Stream(ctx, now.stream)
	if err != nil {
		return fmt.Errorf("list durables: %w", err)
	}
	list := stream.ListConsumers(ctx)
	var old []string
	for info := range list.Info() {
		generation, err := strconv.ParseInt(info.Config.Metadata[metaGeneration], 10, 64)
		if info.Config.Metadata[metaGroup] == s.group && err == nil && generation < now.generation {
			old = append(old, info.Name)
		}
	}
	if err := list.Err(); err != nil {
		return fmt.Errorf("list durables: %w", err)
	}
	for _, name := range old {
		if err := s.deleteDurable(ctx, now.stream, name); err != nil {
			return err
		}
	}
	return nil
}

func (s *subscription) deleteDurable(ctx context.Context, stream, name string) error {
	err := s.parent.conn.JS.DeleteConsumer(ctx, stream, name)
	if err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) && !errors.Is(err, jetstream.ErrStreamNotFound) {
		return fmt.Errorf("delete durable %s: %w", name, err)
	}
	return nil
}
