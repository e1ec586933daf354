package auditsvc

import (
	"github.com/pillarbox/pillarbox/services/audit/internal/auditlog"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Account says what the audit service knows of given events, whether it runs or not.
func (c Config) Account(db *database.DB) reconcile.Subscriber {
	return c.Settings.Account(Name, ordered, auditlog.Evidence(), db)
}
