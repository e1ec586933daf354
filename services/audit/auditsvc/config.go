package auditsvc

import "github.com/pillarbox/pillarbox/shared/consumer"

// Config of the service. The zero value has the defaults.
type Config struct {
	consumer.Settings `embed:"" envprefix:"PILLARBOX_AUDIT_"`
}

// Validate reports every setting that is out of range.
func (c Config) Validate() error { return c.Settings.Validate("PILLARBOX_AUDIT_") }
