package intake_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// crashEnv names the database of the process that dies; acceptEnv makes it accept orders instead.
const crashEnv, acceptEnv = "INTAKE_CRASH_DATABASE", "INTAKE_CRASH_ACCEPT"

// crashFlush is the flush count of the process that dies.
const crashFlush = 10

// crashChild makes this process the one that dies: it places one order with the key k, or accepts
// orders and prints their ids. It reports whether it was that process.
func crashChild() bool {
	url := os.Getenv(crashEnv)
	if url == "" {
		return false
	}
	fatal := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	db, err := database.Open(url, database.Options{Schema: "store"})
	fatal(err)
	c := intake.Config{FlushEvery: time.Millisecond, FlushCount: crashFlush}
	if os.Getenv(acceptEnv) != "" {
		c.Mode = intake.ModeAsync
	}
	in, err := intake.New(c, intake.Deps{
		DB: db, Log: logs.Discard(), Registry: prometheus.NewRegistry(), Admit: func() error { return nil }, Wake: func() {},
		Render: func(o order.Order) []byte { return []byte(o.ID) },
	})
	fatal(err)
	go func() { fatal(in.Run(context.Background())) }()
	p, _ := order.CheckDraft(order.Draft{
		Customer: order.Customer{Email: "a@b.example"}, Currency: "EUR",
		Items: []order.DraftItem{{SKU: "A", Quantity: 1, UnitPrice: "1"}},
	})
	for c.Mode == intake.ModeAsync { // until it is killed
		if id, err := in.Accept(p, intake.Trace{}, 1, func() {}); err == nil {
			_, err = os.Stdout.WriteString(id + "\n")
			fatal(err)
		}
	}
	_, err = in.Place(context.Background(), p, keyed("k", "f"), intake.Trace{}, 1)
	fatal(err)
	return true
}

func TestCrashAroundTheCommit(t *testing.T) {
	t.Parallel()
	if !failpoint.Enabled {
		t.Skip("needs -tags failpoint")
	}
	for step, stored := range map[string]int{"store.intake.before_commit": 0, "store.intake.after_commit": 1} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			databasetest.EachURL(t, "store", func(t *testing.T, db *database.DB, url string) {
				self, err := os.Executable()
				require.NoError(t, err)
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), crashEnv+"="+url, failpoint.Environment+"="+step+":1")
				output, _ := cmd.CombinedOutput()
				status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
				require.True(t, ok)
				require.Equal(t, syscall.SIGKILL, status.Signal(), "%s", output)
				require.Equal(t, stored, count(t, db, "orders"))

				d := newDesk(t, db, intake.Config{})
				d.start()
				a, err := d.place(keyed("k", "f"))
				require.NoError(t, err)
				require.Equal(t, stored == 1, a.Replayed)
				require.Equal(t, 1, count(t, db, "orders"))
				require.Equal(t, 1, count(t, db, "outbox"))
			})
		})
	}
}

// A crash loses of what was accepted at most what fills and what is being written.
func TestCrashLosesAtMostTwoFlushes(t *testing.T) {
	t.Parallel()
	if !failpoint.Enabled {
		t.Skip("needs -tags failpoint")
	}
	for _, step := range []string{"store.intake.before_commit", "store.intake.after_commit"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			databasetest.EachURL(t, "store", func(t *testing.T, db *database.DB, url string) {
				self, err := os.Executable()
				require.NoError(t, err)
				cmd := exec.Command(self)
				cmd.Env = append(os.Environ(), crashEnv+"="+url, acceptEnv+"=1", failpoint.Environment+"="+step+":5")
				output, _ := cmd.Output()
				status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
				require.True(t, ok)
				require.Equal(t, syscall.SIGKILL, status.Signal())

				accepted := strings.Fields(string(output))
				lost := 0
				for _, id := range accepted {
					_, err := orderdb.Get(t.Context(), db.Read(), id)
					if err != nil {
						require.ErrorIs(t, err, orderdb.ErrNotFound)
						lost++
					}
				}
				require.LessOrEqual(t, lost, 2*crashFlush)
				require.Less(t, lost, len(accepted), "four flushes are stored")
				require.Equal(t, count(t, db, "orders"), count(t, db, "outbox"))
			})
		})
	}
}
