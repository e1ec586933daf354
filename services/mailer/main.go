// Command mailer writes one e-mail for every order event.
package main

import (
	"github.com/alecthomas/kong"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/services/internal/boot"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
)

func main() {
	boot.Main(boot.Program[mailersvc.Config]{
		Name:       mailersvc.Name,
		Admin:      "127.0.0.1:9083",
		Migrations: migrations.Of(mailersvc.Name),
		New: func(c mailersvc.Config, d boot.Deps) (boot.Service, error) {
			return mailersvc.New(c, mailersvc.Deps(d))
		},
		Secrets: mailersvc.Secrets(),
	},
		kong.DynamicCommand("deliveries", "List mails that were handed to a mail server, by default those of which nobody knows whether it took them.", "", &mailersvc.DeliveriesCommand{}),
		kong.DynamicCommand("resend", "Hand an unknown or refused mail to the mail server again.", "", &mailersvc.ResendCommand{}),
		kong.DynamicCommand("prepare-pickup", "Make the pickup folder for a mailer that runs as another user (as root).", "", &mailersvc.PrepareCommand{}),
	)
}
