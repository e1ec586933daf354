package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// One worker, which takes two units, one message after the other.
func ExampleSingle() {
	time := &timeline{atWork: func([4]int) int { return 1 }}
	single := dispatch.NewSingle(time.worker(2))
	single.HandleBatch(context.Background(), numbers(4))
	time.print()
	// Output:
	// message worker from to
	//       1      2    0  2
	//       2      2    2  4
	//       3      2    4  6
	//       4      2    6  8
}

// Every message to each of three, strictly one after another.
func ExampleSequential() {
	time := &timeline{atWork: func([4]int) int { return 1 }}
	all := dispatch.Sequential(time.worker(1), time.worker(2), time.worker(3))
	dispatch.Each(all)(context.Background(), numbers(2))
	time.print()
	// Output:
	// message worker from to
	//       1      1    0  1
	//       1      2    1  3
	//       1      3    3  6
	//       2      1    6  7
	//       2      2    7  9
	//       2      3    9 12
}

// Every message to all three at once.
func ExampleParallel() {
	time := &timeline{atWork: func(ended [4]int) int { return 3 - sum(ended)%3 }}
	all := dispatch.Parallel(time.worker(1), time.worker(2), time.worker(3))
	dispatch.Each(all)(context.Background(), numbers(3))
	time.print()
	// Output:
	// message worker from to
	//       1      1    0  1
	//       1      2    0  2
	//       1      3    0  3
	//       2      1    3  4
	//       2      2    3  5
	//       2      3    3  6
	//       3      1    6  7
	//       3      2    6  8
	//       3      3    6  9
}

// The first free worker takes the next message: the fast one handles most.
func ExampleCompeting() {
	time := &timeline{atWork: func(ended [4]int) int { return min(3, 9-sum(ended)) }}
	workers, err := dispatch.NewCompeting(3, func(i int) dispatch.Handler[int] { return time.worker(i + 1) })
	if err != nil {
		panic(err)
	}
	workers.HandleBatch(context.Background(), numbers(9))
	time.print()
	// Output:
	// message worker from to
	//       1      1    0  1
	//       2      2    0  2
	//       3      3    0  3
	//       4      1    1  2
	//       5      1    2  3
	//       6      2    2  4
	//       7      1    3  4
	//       8      3    3  6
	//       9      1    4  5
}

// A fixed turn: three messages each, however long they take.
func ExampleRoundRobin() {
	time := &timeline{atWork: func(ended [4]int) (n int) {
		for _, e := range ended[1:] {
			if e < 3 {
				n++
			}
		}
		return n
	}}
	workers := dispatch.NewRoundRobin[int](dispatch.RoundRobinConfig{})
	for i := range 3 {
		if err := workers.Join(strconv.Itoa(i+1), time.worker(i+1)); err != nil {
			panic(err)
		}
	}
	workers.HandleBatch(context.Background(), numbers(9))
	time.print()
	// Output:
	// message worker from to
	//       1      1    0  1
	//       2      2    0  2
	//       3      3    0  3
	//       4      1    1  2
	//       7      1    2  3
	//       5      2    2  4
	//       6      3    3  6
	//       8      2    4  6
	//       9      3    6  9
}

// Nine messages of three keys: those of one key stay with one worker, in order.
func ExampleByKey() {
	key := func(message int) string { return [3]string{"tea", "milk", "ink"}[message%3] }
	workers := dispatch.NewByKey(key)
	ours := map[int]int{} // messages by worker
	time := &timeline{atWork: func(ended [4]int) (n int) {
		for worker, messages := range ours {
			if ended[worker] < messages {
				n++
			}
		}
		return n
	}}
	for i := range 3 {
		if err := workers.Join(strconv.Itoa(i+1), time.worker(i+1)); err != nil {
			panic(err)
		}
	}
	for _, message := range numbers(9) {
		owner, _ := strconv.Atoi(workers.WorkerOf(key(message)))
		ours[owner]++
	}
	workers.HandleBatch(context.Background(), numbers(9))
	time.print()
	// Output:
	// message worker from to
	//       3      1    0  1
	//       2      2    0  2
	//       1      3    0  3
	//       6      1    1  2
	//       9      1    2  3
	//       5      2    2  4
	//       4      3    3  6
	//       8      2    4  6
	//       7      3    6  9
}

// A retry within the delivery goes on where it failed.
func ExampleRetry() {
	say := func(what string, failures int) dispatch.Handler[string] {
		return func(_ context.Context, message string) error {
			if failures--; failures >= 0 {
				fmt.Println(what, message, "fails")
				return errors.New("not now")
			}
			fmt.Println(what, message)
			return nil
		}
	}
	steps := dispatch.Sequential(say("charge", 0), say("pack", 1), say("ship", 0))
	handle := dispatch.Retry(dispatch.Retries{Attempts: 2, Backoff: time.Millisecond}, steps)
	fmt.Println(handle(context.Background(), "order 7"))
	// Output:
	// charge order 7
	// pack order 7 fails
	// pack order 7
	// ship order 7
	// <nil>
}
