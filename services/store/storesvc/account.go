package storesvc

import (
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/outbox"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Account says what became of the store's events, whether it runs or not.
func (c Config) Account(db *database.DB, conn *broker.Conn) reconcile.Store {
	return outbox.NewAccount(c.withDefaults().relay("account"), db, conn, orderdb.CheckVersions)
}
