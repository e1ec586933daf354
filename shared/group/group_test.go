package group_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/group"
)

func TestTake(t *testing.T) {
	t.Parallel()
	queue := make(chan int, 10)
	for n := range 5 {
		queue <- n + 1
	}
	require.Equal(t, []int{0, 1, 2}, group.Take([]int{0}, queue, group.UpTo[int](3)))
	require.Equal(t, []int{0, 0}, group.Take([]int{0, 0}, queue, group.UpTo[int](1)), "full at once")
	require.Equal(t, []int{3, 4, 5}, group.Take(nil, queue, group.UpTo[int](4)), "it does not wait for more")
	require.Empty(t, group.Take(nil, queue, group.UpTo[int](4)))
	queue <- 6
	close(queue)
	require.Equal(t, []int{6}, group.Take(nil, queue, group.UpTo[int](4)), "the rest of a closed queue")
	require.Empty(t, group.Take(nil, queue, group.UpTo[int](4)))
}
