//go:build !fault_dedup

package consumer

import "context"

// dedupFirst is a fault that the tests of suite drill build in: lanes advance in a transaction of their own, before
// the effect.
const dedupFirst = false

func (c *Consumer) claimFirst(context.Context, members) error { return nil }
