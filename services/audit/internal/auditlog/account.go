package auditlog

import "github.com/pillarbox/pillarbox/shared/consumer"

// Evidence is what the log proves of events: an entry is the effect.
func Evidence() consumer.Evidence {
	return consumer.Table{Name: "entries", Time: "recorded_at", Where: "type LIKE 'order.%'"}
}
