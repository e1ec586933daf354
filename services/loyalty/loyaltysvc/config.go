package loyaltysvc

import (
	"cmp"
	"errors"
	"time"

	"github.com/pillarbox/pillarbox/shared/consumer"
)

// Config of the service. The zero value has the defaults.
type Config struct {
	consumer.Settings `embed:"" envprefix:"PILLARBOX_LOYALTY_"`

	Keep time.Duration `name:"keep" env:"PILLARBOX_LOYALTY_KEEP" default:"720h" help:"Time that an order at rest is remembered; at least PILLARBOX_STORE_HORIZON and 2h; the ledger is kept for ever (3h to 87600h)."`
}

// Remembers is how long events are recognised.
func (c Config) Remembers() time.Duration { return cmp.Or(c.Keep, consumer.DefaultKeep) }

// Validate reports every setting that is out of range.
func (c Config) Validate() error {
	err := c.Settings.Validate("PILLARBOX_LOYALTY_")
	if !consumer.ValidKeep(c.Remembers()) {
		err = errors.Join(err, errors.New("PILLARBOX_LOYALTY_KEEP must be "+consumer.KeepRange))
	}
	return err
}
