//go:build fault_ack

package consumer

import "time"

const ackFirst = true

func ackAtOnce(items []*item) {
	ack(items)
	time.Sleep(seededWindow)
}
