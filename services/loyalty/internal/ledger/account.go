package ledger

import "github.com/pillarbox/pillarbox/shared/consumer"

// Evidence is what the ledger proves of events: every event of an order leaves a row.
func Evidence() consumer.Evidence { return consumer.Table{Name: "ledger", Time: "at"} }
