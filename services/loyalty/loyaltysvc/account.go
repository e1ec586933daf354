package loyaltysvc

import (
	"github.com/pillarbox/pillarbox/services/loyalty/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Account says what the loyalty service knows of given events, whether it runs or not.
func (c Config) Account(db *database.DB) reconcile.Subscriber {
	return c.Settings.Account(Name, ordered, ledger.Evidence(), db)
}
