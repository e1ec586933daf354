// Command loyalty keeps the points ledger and serves the accounts.
package main

import (
	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/loyalty/loyaltysvc"
)

func main() {
	boot.Main(boot.Program[loyaltysvc.Config]{
		Name:       loyaltysvc.Name,
		HTTP:       "127.0.0.1:8082",
		Admin:      "127.0.0.1:9082",
		Migrations: migrations.Of(loyaltysvc.Name),
		New: func(c loyaltysvc.Config, d boot.Deps) (boot.Service, error) {
			return loyaltysvc.New(c, loyaltysvc.Deps(d))
		},
	})
}
