package dispatch_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// timeline is a clock of whole units that goes on when all workers that should
// have a message have one, so that examples print the same table on any
// machine. A strategy that lets too few work at once hangs it; one that lets
// too many is seen in the table.
type timeline struct {
	// atWork is how many workers should have a message, given how many each has ended.
	atWork func(ended [4]int) int

	mu     sync.Mutex // guards the rest
	now    int
	ended  [4]int
	asleep []*handling
	rows   []*handling
}

type handling struct {
	message, worker, start, end int
	wake                        chan struct{}
}

// worker takes as many units for a message as its number says.
func (l *timeline) worker(number int) dispatch.Handler[int] {
	return func(_ context.Context, message int) error {
		l.mu.Lock()
		h := &handling{message, number, l.now, l.now + number, make(chan struct{})}
		l.asleep, l.rows = append(l.asleep, h), append(l.rows, h)
		l.goOn()
		l.mu.Unlock()
		<-h.wake
		return nil
	}
}

// goOn ends what ends first, of several the lowest worker. The caller holds the lock.
func (l *timeline) goOn() {
	for len(l.asleep) > 0 && len(l.asleep) >= l.atWork(l.ended) {
		first := slices.MinFunc(l.asleep, func(a, b *handling) int {
			return cmp.Or(cmp.Compare(a.end, b.end), cmp.Compare(a.worker, b.worker))
		})
		l.asleep = slices.DeleteFunc(l.asleep, func(h *handling) bool { return h == first })
		l.now = first.end
		l.ended[first.worker]++
		close(first.wake)
	}
}

// print writes the table, by time.
func (l *timeline) print() {
	slices.SortFunc(l.rows, func(a, b *handling) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.worker, b.worker))
	})
	fmt.Println("message worker from to")
	for _, h := range l.rows {
		fmt.Printf("%7d %6d %4d %2d\n", h.message, h.worker, h.start, h.end)
	}
}

func sum(ended [4]int) int { return ended[1] + ended[2] + ended[3] }

// numbers are the messages 1 to n.
func numbers(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i + 1
	}
	return all
}
