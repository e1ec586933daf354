// Command audit writes one record of every order event and serves the records.
package main

import (
	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/audit/auditsvc"
	"github.com/pillarbox/pillarbox/services/internal/boot"
)

func main() {
	boot.Main(boot.Program[auditsvc.Config]{
		Name:       auditsvc.Name,
		HTTP:       "127.0.0.1:8081",
		Admin:      "127.0.0.1:9081",
		Migrations: migrations.Of(auditsvc.Name),
		New: func(c auditsvc.Config, d boot.Deps) (boot.Service, error) {
			return auditsvc.New(c, auditsvc.Deps(d))
		},
	})
}
