package stock_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e/stock"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// consumerTables are those that shared/consumer needs, and those that keep what operators do with them.
var consumerTables = []string{
	"consumer_state", "dead_letters", "lanes", "leases", "operator_actions", "parked", "redrive_items", "redrives",
}

// TestTheExampleHasTheConsumersTables compares them with a service's: a release that adds to those must add here.
func TestTheExampleHasTheConsumersTables(t *testing.T) {
	t.Parallel()
	databasetest.EachURL(t, "loyalty", func(t *testing.T, service *database.DB, url string) {
		query := `SELECT table_name || '.' || column_name || ' ' || data_type || ' ' || is_nullable || ' ' || coalesce(column_default, '')
			FROM information_schema.columns WHERE table_schema = current_schema() AND table_name IN (LIST)`
		if !service.Dialect().Postgres() {
			url = "sqlite:" + filepath.Join(t.TempDir(), "stock.db")
			query = `SELECT name || ' ' || sql FROM sqlite_master WHERE sql IS NOT NULL AND tbl_name IN (LIST)`
		}
		query = strings.Replace(query, "LIST", "'"+strings.Join(consumerTables, "', '")+"'", 1)
		example, err := stock.Open(t.Context(), url, "stock")
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, example.Close()) })
		want := described(t, service, query)
		require.Greater(t, len(want), len(consumerTables))
		require.Equal(t, want, described(t, example, query))
	})
}

func described(t *testing.T, db *database.DB, query string) (all []string) {
	t.Helper()
	rows, err := db.Read().QueryContext(t.Context(), query)
	require.NoError(t, err)
	defer rows.Close()
	for rows.Next() {
		var text string
		require.NoError(t, rows.Scan(&text))
		all = append(all, text)
	}
	require.NoError(t, rows.Err())
	slices.Sort(all)
	return all
}
