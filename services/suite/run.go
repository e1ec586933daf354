package main

import (
	"fmt"
	"os"

	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
)

// runCommand is "suite run".
type runCommand struct {
	Data            string `name:"data" env:"PILLARBOX_DATA" default:"./data" type:"path" help:"Folder of databases, broker store and mails; created when missing."`
	HTTP            string `name:"http" env:"PILLARBOX_HTTP" default:"127.0.0.1:8080" help:"Listen address of the API of all services."`
	Admin           string `name:"admin" env:"PILLARBOX_ADMIN" default:"127.0.0.1:9090" help:"Listen address of /live, /ready and /metrics."`
	boot.Strictness `embed:""`
	boot.Logging    `embed:""`
	all.Settings    `embed:""`
}

// Run runs until a signal.
func (c *runCommand) Run() error {
	if err := c.Settings.Validate(); err != nil {
		return err
	}
	suite, err := inprocess.Start(boot.SignalContext(), inprocess.Config{
		Data: c.Data, HTTP: c.HTTP, Admin: c.Admin, Settings: c.Settings, Strict: c.Strict,
	}, c.Logger())
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stdout, tryIt, suite.HTTP(), suite.Admin(), c.Data, suite.HTTP())
	return suite.Wait()
}

// tryIt is what a person sees once the suite is ready.
const tryIt = `Pillarbox is ready on http://%s (admin http://%s, files in %s). Try:

  curl -H 'Content-Type: application/json' http://%s/orders -d '{"customer":{"email":"ada@example.com","name":"Ada Lovelace"},"currency":"EUR","items":[{"sku":"TEA-01","name":"Green tea","quantity":2,"unit_price":"4.50"}]}'

Ctrl-C stops it.
`
