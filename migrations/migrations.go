// Package migrations embeds every service's schema. Each folder is one service,
// each of its folders one engine; files are only ever added.
package migrations

import (
	"embed"
	"io/fs"
)

//go:embed */postgres/*.sql */sqlite/*.sql
var files embed.FS

// Of returns the migrations of one service (store, mailer, audit or loyalty),
// with the folders postgres and sqlite. It panics on another name.
func Of(service string) fs.FS {
	sub, err := fs.Sub(files, service)
	if err != nil {
		panic(err) // only a malformed constant path gets here
	}
	return sub
}
