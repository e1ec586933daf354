package delivery_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestAccepterMarksInGroupsWhileItRunsAndAtStop(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		require.NoError(t, w.x.handle(event("o", 1)))
		ctx, cancel := context.WithCancel(t.Context())
		stopped := make(chan struct{})
		go func() { defer close(stopped); w.x.accepter.Run(ctx) }()
		require.Eventually(t, func() bool { return states(t, w.db)["accepted"] == 1 }, time.Minute, 5*time.Millisecond)
		require.NoError(t, w.x.handle(event("o", 2)))
		cancel()
		<-stopped
		require.Equal(t, map[string]int{"accepted": 2}, states(t, w.db))
	})
}

func TestWhatTheAccepterDropsTheSweeperMarks(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, w world) {
		var filling []string
		for i := range 10_000 {
			filling = append(filling, fmt.Sprintf("filler-%d", i))
		}
		w.x.accepter.Add(filling)
		require.NoError(t, w.x.handle(event("o", 1)), "nobody waits for the mark")
		w.x.flush()
		require.Equal(t, map[string]int{"staged": 1}, states(t, w.db))
		require.NoError(t, w.y.sweeper.Finish(t.Context()))
		require.Equal(t, map[string]int{"accepted": 1}, states(t, w.db))
		require.Len(t, w.disk.Appeared(), 1)
	})
}
