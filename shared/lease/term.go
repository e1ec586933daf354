//go:build !fault_term

package lease

// termUnchecked is a fault that the tests of suite drill build in: leaders of the past are not refused.
const termUnchecked = false
