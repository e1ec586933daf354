//go:build fault_ack || fault_dedup

package consumer

import "time"

// seededWindow holds a seeded fault's window open, so that a few crashes meet it. It is longer than the broker takes
// to write an acknowledgement down.
const seededWindow = 300 * time.Millisecond
