// Command store is the order store: it takes orders over HTTP and publishes their events.
package main

import (
	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/store/storesvc"
)

func main() {
	boot.Main(boot.Program[storesvc.Config]{
		Name:       storesvc.Name,
		HTTP:       "127.0.0.1:8080",
		Admin:      "127.0.0.1:9080",
		Migrations: migrations.Of(storesvc.Name),
		New: func(c storesvc.Config, d boot.Deps) (boot.Service, error) {
			return storesvc.New(c, storesvc.Deps(d))
		},
	})
}
