package doctor

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/doctor"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"

	"github.com/pillarbox/pillarbox/services/internal/boot"
)

// examineFolder looks at a suite. When none runs the folder is held meanwhile, so that none starts.
func (c *Command) examineFolder(ctx context.Context, s all.Settings, l *look) (err error) {
	l.unused = []doctor.Check{doctor.Postgres}
	attached, err := inprocess.Attach(ctx, c.Data, logs.Discard())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, attached.Close()) }()
	if s.Mailer.Pickup == "" {
		s.Mailer.Pickup = filepath.Join(c.Data, "pickup")
	}
	inprocess.ExamineFolder(c.Data, l.Of(""))
	for _, e := range l.entries(s) {
		c.examineFile(ctx, e, attached.Alone, l)
	}
	slow := map[string]time.Duration{}
	if attached.Suite {
		slow = l.slow(ctx, s, map[string]string{"": attached.Admin})
	}
	attached.Conn.Examine(ctx, broker.Examination{
		Stream: events.StreamOrders, Syncs: true, Replicas: 1, Durables: true, Slow: slow,
	}, l.Of(""))
	boot.Compare(subjects(s), &l.Report)
	return nil
}

// examineFile looks at one service's database, and with it at what only the service knows.
func (c *Command) examineFile(ctx context.Context, e all.Entry, owned bool, l *look) {
	r, path := l.Of(e.Name), filepath.Join(c.Data, e.Name+".db")
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		r.Note(doctor.Schema, "SQLite, "+e.Name+".db", "does not exist yet; the suite makes it")
		return
	}
	mailer, isMailer := e.Settings.(mailersvc.Config)
	if err := database.ExamineFile(ctx, path, owned, e.Migrations, r); err != nil {
		r.Miss(doctor.SQLite, "SQLite, "+e.Name+".db", err)
		if isMailer {
			mailer.Miss(err, r)
		}
		return
	}
	if !isMailer {
		return
	}
	db, err := database.OpenToLook(path, owned)
	if err == nil {
		mailer.Examine(ctx, db, true, r)
		err = db.Close()
	}
	if err != nil {
		r.Miss(doctor.Folder, "SQLite, "+e.Name+".db", err)
	}
}
