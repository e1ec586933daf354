// Command mailer writes one e-mail for every order event.
package main

import (
	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
)

func main() {
	boot.Main(boot.Program[mailersvc.Config]{
		Name:       mailersvc.Name,
		HTTP:       "",
		Admin:      "127.0.0.1:9083",
		Migrations: migrations.Of(mailersvc.Name),
		New: func(c mailersvc.Config, d boot.Deps) (boot.Service, error) {
			return mailersvc.New(c, mailersvc.Deps(d))
		},
	})
}
