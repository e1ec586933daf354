// Package bench is "suite bench": measurements that a user repeats on a machine of
// her own, with the real parts and durable writes. What it does goes to a
// scratch folder that is removed at the end.
package bench

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/pillarbox/pillarbox/migrations"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Commands is "suite bench".
type Commands struct {
	Headline Headline `cmd:"" help:"Write 1,000 mails of 512 KB that wait in the queue, with one and with ten processors, beside writing such files alone."`
	Drain    Drain    `cmd:"" help:"Let a service work off a full queue, and read messages per minute from the queue's length."`
}

// scratch is a folder with a broker of its own in it.
type scratch struct {
	dir    string
	server *embedded.Server
	conn   *broker.Conn
}

// newScratch makes one below parent (empty: the system's folder for temporary files).
func newScratch(ctx context.Context, parent string, maxBytes int64) (_ *scratch, err error) {
	s := &scratch{}
	if s.dir, err = os.MkdirTemp(parent, "pillarbox-bench-"); err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	s.server, err = embedded.Start(ctx, embedded.Config{Dir: filepath.Join(s.dir, "nats"), MaxStore: 2 * maxBytes, DontListen: true}, logs.Discard())
	if err != nil {
		return nil, err
	}
	s.conn, err = broker.Connect(broker.Config{Name: "bench", Server: s.server, Token: s.server.Token()}, logs.Discard())
	if err != nil {
		return nil, err
	}
	if _, err := s.conn.EnsureStream(ctx, broker.StreamConfig{Name: events.StreamOrders, MaxBytes: maxBytes}); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *scratch) close() {
	if s.conn != nil {
		s.conn.Close()
	}
	if s.server != nil {
		s.server.Stop()
	}
	_ = os.RemoveAll(s.dir) // it holds nothing of worth
}

// database makes the service's SQLite file.
func (s *scratch) database(ctx context.Context, service string) (*database.DB, error) {
	url := "sqlite:" + filepath.Join(s.dir, service+".db")
	if err := database.Migrate(ctx, url, migrations.Of(service), database.Options{}); err != nil {
		return nil, err
	}
	return database.Open(url, database.Options{})
}

// interruptible ends at Ctrl-C, so that the scratch folder goes.
func interruptible() (context.Context, context.CancelFunc) {
	return signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
}
