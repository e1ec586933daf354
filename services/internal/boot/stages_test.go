package boot_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/internal/boot"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// diary notes in which order things happen.
type diary struct {
	mu      sync.Mutex // guards entries
	entries []string
}

func (d *diary) note(entry string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.entries = append(d.entries, entry)
}

// stage runs until its context ends, says so, and returns err.
func (d *diary) stage(name string, started *sync.WaitGroup, err error) boot.Stage {
	started.Add(1)
	return boot.Stage{Name: name, Run: func(ctx context.Context) error {
		started.Done()
		<-ctx.Done()
		d.note(name + " told to stop")
		if err != nil {
			return err
		}
		return ctx.Err()
	}}
}

func TestStagesStopOneAfterAnother(t *testing.T) {
	t.Parallel()
	var d diary
	var started sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	first := d.stage("first", &started, nil)
	drained := make(chan struct{})
	slow := boot.Stage{Name: first.Name, Run: func(ctx context.Context) error {
		err := first.Run(ctx)
		<-drained // the second must not be told before this
		d.note("first has drained")
		return err
	}}
	ended := make(chan error, 1)
	second, third := d.stage("second", &started, nil), d.stage("third", &started, nil)
	go func() { ended <- boot.RunStages(ctx, slow, second, third) }()
	started.Wait() // all run at once
	cancel()
	close(drained)
	require.NoError(t, <-ended)
	require.Equal(t, []string{"first told to stop", "first has drained", "second told to stop", "third told to stop"}, d.entries)
}

func TestStageThatEndsByItselfStopsTheOthers(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		returns error
		want    string
	}{
		"with an error":       {broken, "b: broken"},
		"without one":         {nil, "b ended by itself"},
		"as if it was a stop": {context.Canceled, "b ended by itself"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var d diary
			var started sync.WaitGroup
			err := boot.RunStages(t.Context(), d.stage("a", &started, nil),
				boot.Stage{Name: "b", Run: func(context.Context) error { return c.returns }},
				d.stage("c", &started, nil))
			require.EqualError(t, err, c.want)
			require.Equal(t, []string{"a told to stop", "c told to stop"}, d.entries)
		})
	}
}

func TestErrorsOfAStopAreKept(t *testing.T) {
	t.Parallel()
	notClosed, notFlushed := errors.New("not closed"), errors.New("not flushed")
	var d diary
	var started sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	stages := []boot.Stage{
		d.stage("a", &started, errors.Join(context.Canceled, notClosed)), // the stop must not hide it
		d.stage("b", &started, fmt.Errorf("work: %w", context.Canceled)), // this is only a stop
		d.stage("c", &started, notFlushed),
	}
	ended := make(chan error, 1)
	go func() { ended <- boot.RunStages(ctx, stages...) }()
	started.Wait()
	cancel()
	err := <-ended
	require.ErrorIs(t, err, notClosed)
	require.ErrorIs(t, err, notFlushed)
	require.NotContains(t, err.Error(), "b:")
}

func TestStagesOfAnEndedContextStillDrain(t *testing.T) {
	t.Parallel()
	var d diary
	var started sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, boot.RunStages(ctx, d.stage("a", &started, nil)))
	require.Equal(t, []string{"a told to stop"}, d.entries)
}
