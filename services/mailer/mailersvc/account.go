package mailersvc

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/delivery"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Account says what the mailer knows of given events, whether it runs or not.
func (c Config) Account(db *database.DB) reconcile.Subscriber {
	c = c.withDefaults()
	if absolute, err := filepath.Abs(c.Pickup); err == nil {
		c.Pickup = absolute
	}
	box := func(ctx context.Context) (*pickup.Box, error) {
		marker, err := knownMarker(ctx, db)
		if err != nil {
			return nil, err
		}
		if marker == "" {
			return nil, errors.New("the pickup folder is not founded")
		}
		b := pickup.New(pickup.Config{Dir: c.Pickup, Mode: fs.FileMode(c.FileMode)}, pickup.System{})
		b.Use(marker)
		return b, nil
	}
	// Two sweeps see a row whose mail was published and not noted, and the second marks it.
	const slack = 5 * time.Second
	e := delivery.Evidence{Box: box, Grace: 3*c.Sweep + slack, Now: db.Dialect().Now()}
	return consumer.NewAccount(consumer.AccountConfig{
		Name: Name, Ordered: ordered && c.Delivery == consumer.EffectivelyOnce, Evidence: e, Forgets: true, Keep: min(c.KeepLetters, c.KeepActions),
	}, db)
}
