// Package failpoint lets a crash test end or freeze a process at a named step
// between two durable writes. Code calls Hit("<service>.<step>") there.
//
// In a normal build Hit is an empty function. Built with the tag failpoint it
// obeys PILLARBOX_FAILPOINT:
//
//	relay.published:3        the third Hit of that name kills the process with SIGKILL
//	relay.published:3:pause  the third Hit of that name stops it with SIGSTOP, once
//	relay.published:pause    the same at the first Hit
//
// Other names and later hits do nothing. The kill leaves what a crash leaves:
// no deferred function runs. A setting that cannot be read is a panic, since a
// crash test that silently never crashes proves nothing.
package failpoint

// Environment is the variable that names the step to die at.
const Environment = "PILLARBOX_FAILPOINT"
