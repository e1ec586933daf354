package storesvc

import (
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/retention"
)

// rules are what the store forgets: answers to idempotency keys. Orders and their events are kept for ever: they are the
// source of every replay, and what is not there can never be asked for again. The outbox, the log of
// what the stream got and the stream itself are the relay's.
func rules(answers time.Duration) []retention.Rule {
	return []retention.Rule{{
		Name: "idempotency", Keep: answers, Bite: orderdb.RemoveAnswers(),
		Oldest: `SELECT min(created_at) FROM idempotency`,
	}}
}
