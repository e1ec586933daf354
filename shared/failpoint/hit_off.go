//go:build !failpoint || !unix

package failpoint

// Enabled tells a test whether this build can die at a failpoint.
const Enabled = false

// Hit does nothing in this build.
func Hit(string) {}
