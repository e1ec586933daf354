package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// Load is a steady stream of orders, changes and cancellations from several
// shops. It is bounded in rate, and ends with its context; a request under way
// is still seen through, since what it did must be known.
type Load struct {
	Client  *Client
	Workers int
	Seed    uint64
	// Pause is the longest wait of a worker between two requests.
	Pause time.Duration
}

// Run places load until ctx ends, and returns the first request that could not
// be seen through.
func (l Load) Run(ctx context.Context) error {
	errs := make(chan error, l.Workers)
	var workers sync.WaitGroup
	for w := range l.Workers {
		workers.Go(func() { errs <- l.shop(ctx, w) })
	}
	workers.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// shop works through orders: each is placed, changed up to three times, and
// one in four cancelled.
func (l Load) shop(ctx context.Context, worker int) error {
	random := rand.New(rand.NewPCG(l.Seed, uint64(worker)))
	whole := context.WithoutCancel(ctx)
	rest := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(time.Duration(random.Int64N(int64(l.Pause) + 1))):
			return true
		}
	}
	for n := 0; rest(); n++ {
		customer := fmt.Sprintf("customer%d@example.com", random.IntN(20))
		key := fmt.Sprintf("load-%d-%d-%d", l.Seed, worker, n)
		o, err := l.Client.PlaceWithKey(whole, key, Body(customer, "EUR", 1+random.IntN(9), "3.99"))
		for range random.IntN(4) {
			if err != nil || !rest() {
				break
			}
			o, err = l.Client.Change(whole, o, 1+random.IntN(9), "4.99")
		}
		if err == nil && random.IntN(4) == 0 && rest() {
			_, err = l.Client.Cancel(whole, o)
		}
		if err != nil {
			return fmt.Errorf("shop %d, order %d: %w", worker, n, err)
		}
	}
	return nil
}
