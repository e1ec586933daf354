// Package group is group commit without a timer: whoever begins a transaction takes along what waits at that moment. While
// one is being committed more comes together, so groups grow with the load, and at rest each is one that nobody made
// wait.
package group

// Take appends to group what waits in queue, in its order, until it is full or nothing more waits. It never waits itself. full is
// asked before each take, so a group that is full at once stays as it is. A closed queue has nothing more.
func Take[T any](group []T, queue <-chan T, full func([]T) bool) []T {
	for !full(group) {
		select {
		case next, open := <-queue:
			if !open {
				return group
			}
			group = append(group, next)
		default:
			return group
		}
	}
	return group
}

// UpTo is full at a number.
func UpTo[T any](most int) func([]T) bool {
	return func(group []T) bool { return len(group) >= most }
}
