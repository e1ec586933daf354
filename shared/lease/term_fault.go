//go:build fault_term

package lease

const termUnchecked = true
