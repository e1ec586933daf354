package mailersvc_test

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/dispatch"
)

// TestEveryStrategyWritesOneMailPerEventInOrder: with two replicas and a broker,
// the setting changes how fast, not what.
func TestEveryStrategyWritesOneMailPerEventInOrder(t *testing.T) {
	t.Parallel()
	for _, mode := range dispatch.Modes() {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			db, _ := databasetest.SQLite(t, "mailer")
			b := setup(t, db)
			config := mailersvc.Config{Dispatch: mode, Workers: 3, Batch: 20, Sweep: 200 * time.Millisecond}
			first, _ := b.startAs(t, config)
			b.ready(t, first)
			appearance := watch(t, b.dir)
			b.startAs(t, config)
			const orders, versions = 8, 5
			var bodies [][]byte
			for v := range versions {
				for o := range orders {
					bodies = append(bodies, event(t, fmt.Sprintf("o%d", o), int64(v+1), nil))
				}
			}
			b.publish(t, append(bodies, bodies[:10]...)...) // some come twice
			b.waitFor(t, orders*versions)
			b.settled(t)
			require.Len(t, b.files(t), orders*versions)
			next := map[string]int64{}
			for _, name := range appearance.names(t, orders*versions) {
				order, version := read(t, filepath.Join(b.dir, name))
				require.Equal(t, next[order]+1, version, "order %s", order)
				next[order] = version
			}
		})
	}
}
