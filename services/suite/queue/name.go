package queue

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/pillarbox/pillarbox/shared/broker"
)

// reserved is the first token of subjects on which Pillarbox's own requests travel: a queue
// there would answer them.
const reserved = "pillarbox"

// topicArgument names a queue, or one topic of it: a topic's first part is its queue's name.
type topicArgument struct {
	Topic string `arg:"" help:"Queue, or one topic of it as queue.topic."`
}

// queue is the queue's name, and topics what of it is meant: nothing for all of it.
func (a topicArgument) queue() (queue string, topics []string) {
	queue, _, sub := strings.Cut(a.Topic, ".")
	if sub {
		topics = []string{a.Topic}
	}
	return queue, topics
}

// checkName refuses a name for a new queue or consumer that could not be told from the broker's own.
func checkName(what, name string) error {
	if !regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`).MatchString(name) || name == reserved {
		return fmt.Errorf("%q cannot be the name of a %s: use 1 to 64 letters, digits, - and _, not %q", name, what, reserved)
	}
	return nil
}

// lookUp is Conn.Queue with a hint for a name that does not exist.
func (w *work) lookUp(ctx context.Context, name string) (broker.QueueInfo, error) {
	q, err := w.Queue(ctx, name)
	if errors.Is(err, broker.ErrNoStream) {
		return q, fmt.Errorf("there is no queue %q (suite queue ls shows all)", name)
	}
	return q, err
}

// consumersNamed returns the durables of a group, the newest generation last, or the one durable that has the name.
func consumersNamed(q broker.QueueInfo, name string) (found []broker.ConsumerInfo) {
	for _, i := range q.Consumers {
		if i.Durable == name {
			return []broker.ConsumerInfo{i}
		}
		if i.Group == name {
			found = append(found, i)
		}
	}
	for i := range found {
		if last := len(found) - 1; found[i].Generation > found[last].Generation {
			found[i], found[last] = found[last], found[i]
		}
	}
	return found
}

// consumerNamed is the newest of consumersNamed.
func consumerNamed(q broker.QueueInfo, name string) (broker.ConsumerInfo, error) {
	found := consumersNamed(q, name)
	if len(found) == 0 {
		return broker.ConsumerInfo{}, fmt.Errorf("queue %q has no consumer %q (suite queue ls shows all)", q.Name, name)
	}
	return found[len(found)-1], nil
}
