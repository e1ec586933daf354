package httpapi_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/store/internal/httpapi"
	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
)

// async makes a store that answers first. Its first order is accepted when it runs.
func async(t *testing.T, db *database.DB, every time.Duration, count int) *shop {
	t.Helper()
	s := open(t, db, func(ic *intake.Config, hc *httpapi.Config) {
		ic.Mode, ic.FlushEvery, ic.FlushCount = intake.ModeAsync, every, count
		hc.Async, hc.BodyBudget = true, 64<<10
	})
	require.Eventually(t, func() bool { return s.do("POST", "/orders", tea).status == 202 }, 20*time.Second, time.Millisecond)
	return s
}

func TestAcceptedFirstAndStoredThen(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := async(t, db, time.Millisecond, 100)
		a := s.do("POST", "/orders", tea).is(202)
		var accepted map[string]string
		require.NoError(t, json.Unmarshal(a.body, &accepted))
		require.Equal(t, map[string]string{"status": "accepted", "id": accepted["id"]}, accepted)
		require.EqualValues(t, 7, uuid.MustParse(accepted["id"]).Version())
		path := "/orders/" + accepted["id"]
		require.Equal(t, path, a.header.Get("Location"))
		require.Eventually(t, func() bool { return s.do("GET", path, "").status == 200 }, 20*time.Second, time.Millisecond)
		o := s.do("GET", path, "").is(200).order()
		require.Equal(t, "9.00", o.Total)

		// The other operations are as ever, and so are batches and their keys.
		s.do("POST", path+"/cancel", "").is(200)
		results := s.batch("application/json", withKey("k", tea), withKey("k", tea), "1")
		require.Equal(t, []string{"created", "replayed", "400 "}, short(results))
		s.do("GET", "/orders/"+results[0].order(t).ID, "").is(200)

		s.do("POST", "/orders", tea, "Idempotency-Key", "k").is(400)
		s.do("POST", "/orders", "{").is(400)
		s.do("POST", "/orders", "{}").is(422)
		s.do("POST", "/orders", tea, "Content-Type", "-").is(415)
		s.stop()
		require.Equal(t, 3, count(t, db, "orders"))
		require.Equal(t, "1", s.do("POST", "/orders", tea).is(503).header.Get("Retry-After"))
	})
}

func TestFullMemoryRefuses(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := async(t, db, time.Hour, 100)
		// The body budget has room for 16 of 4 KiB; what is refused gives its share back.
		for range 15 {
			s.do("POST", "/orders", "{}").is(422)
			s.do("POST", "/orders", "{").is(400)
			s.do("POST", "/orders", tea).is(202)
		}
		for range 3 {
			require.Equal(t, "1", s.do("POST", "/orders", tea).is(503).header.Get("Retry-After"))
		}
		s.stop()
		require.Equal(t, 16, count(t, db, "orders"))

		s = async(t, db, time.Hour, 100)
		full := intake.ErrBusy
		s.refuse.Store(&full)
		for range 40 {
			require.Equal(t, "1", s.do("POST", "/orders", tea).is(503).header.Get("Retry-After"))
		}
		s.refuse.Store(nil)
		s.do("POST", "/orders", tea).is(202)
		s.stop()
		require.Equal(t, 18, count(t, db, "orders"))
	})
}
