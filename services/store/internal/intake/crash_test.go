package intake_test

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const crashEnv = "INTAKE_CRASH_DATABASE"

// crashChild makes this process the one that dies: it places one order with the key k. It
// reports whether it was that process.
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
	in, err := intake.New(intake.Config{}, intake.Deps{
		DB: db, Log: logs.Discard(), Registry: prometheus.NewRegistry(), Admit: func() error { return nil }, Wake: func() {},
		Render: func(o order.Order) []byte { return []byte(o.ID) },
	})
	fatal(err)
	go func() { fatal(in.Run(context.Background())) }()
	p, _ := order.CheckDraft(order.Draft{
		Customer: order.Customer{Email: "a@b.example"}, Currency: "EUR",
		Items: []order.DraftItem{{SKU: "A", Quantity: 1, UnitPrice: "1"}},
	})
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
