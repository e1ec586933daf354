//go:build !fault_ack

package consumer

// ackFirst is a fault that the tests of suite drill build in: messages are acknowledged before the commit.
const ackFirst = false

func ackAtOnce([]*item) {}
