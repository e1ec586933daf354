package boot

import (
	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// MountAccount puts what a service with these settings says of events on the admin port.
func MountAccount(checks *admin.Checks, name string, settings any, d Deps) {
	switch s := settings.(type) {
	case interface {
		Account(*database.DB, *broker.Conn) reconcile.Store
	}:
		checks.MountPart(name, reconcile.Part, reconcile.StoreHandler(s.Account(d.DB, d.Broker), d.Log))
	case interface {
		Account(*database.DB) reconcile.Subscriber
	}:
		checks.MountPart(name, reconcile.Part, reconcile.SubscriberHandler(s.Account(d.DB), d.Log))
	}
}
