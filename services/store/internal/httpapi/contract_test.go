package httpapi_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
)

func TestPlaceReadChangeCancel(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := open(t, db)
		const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
		placed := s.do("POST", "/orders", tea, "X-Request-ID", "req-1", "Traceparent", parent).is(201)
		o := placed.order()
		id, err := uuid.Parse(o.ID)
		require.NoError(t, err)
		require.EqualValues(t, 7, id.Version())
		require.Equal(t, "/orders/"+o.ID, placed.header.Get("Location"))
		require.Equal(t, `"1"`, placed.header.Get("ETag"))
		require.Equal(t, "req-1", placed.header.Get("X-Request-ID"))
		require.JSONEq(t, fmt.Sprintf(`{"id":%q,"version":1,"status":"placed","placed_at":%q,"total":"9.00",`, o.ID, o.PlacedAt)+
			tea[1:], string(placed.body))

		got := s.do("GET", "/orders/"+o.ID, "").is(200)
		require.Equal(t, placed.body, got.body)
		require.Equal(t, `"1"`, got.header.Get("ETag"))
		s.do("GET", "/orders/"+o.ID, "", "If-None-Match", `"7", W/"1"`).is(304)
		s.do("GET", "/orders/"+o.ID, "", "If-None-Match", `"2"`).is(200)
		head := s.do("HEAD", "/orders/"+o.ID, "").is(200)
		require.Equal(t, got.header.Get("Content-Length"), head.header.Get("Content-Length"))

		path := "/orders/" + o.ID
		changed := s.do("PATCH", path, `{"items":[{"sku":"TEA-02","quantity":3,"unit_price":"0.1"}],"customer":{"name":"Ada L."}}`,
			"If-Match", `"1"`).is(200)
		require.Equal(t, `"2"`, changed.header.Get("ETag"))
		require.Equal(t, "0.30", changed.order().Total)
		require.Equal(t, "0.10", changed.order().Items[0].UnitPrice)
		require.Equal(t, "Ada L.", changed.order().Customer.Name)
		require.Equal(t, o.PlacedAt, changed.order().PlacedAt)
		require.Equal(t, changed.body, s.do("GET", path, "").is(200).body)

		cancelled := s.do("POST", path+"/cancel", "").is(200)
		require.Equal(t, "cancelled", cancelled.order().Status)
		require.EqualValues(t, 3, cancelled.order().Version)
		again := s.do("POST", path+"/cancel", "{}", "If-Match", `"1"`).is(200)
		require.Equal(t, cancelled.body, again.body)
		require.Equal(t, cancelled.body, s.do("GET", path, "").is(200).body)

		var timeline struct {
			Events []struct {
				EventID   string `json:"event_id"`
				Type      string `json:"type"`
				Version   int64  `json:"version"`
				Published bool   `json:"published"`
			} `json:"events"`
		}
		require.NoError(t, db.Tx(t.Context(), func(ctx context.Context, tx *database.Tx) error {
			_, err := tx.ExecContext(ctx, "DELETE FROM outbox WHERE seq = (SELECT min(seq) FROM outbox)")
			return err
		}))
		require.NoError(t, json.Unmarshal(s.do("GET", path+"/timeline", "").is(200).body, &timeline))
		require.Len(t, timeline.Events, 3)
		for i, want := range []string{events.TypePlaced, events.TypeChanged, events.TypeCancelled} {
			require.Equal(t, want, timeline.Events[i].Type)
			require.EqualValues(t, i+1, timeline.Events[i].Version)
			require.Equal(t, i == 0, timeline.Events[i].Published)
		}
		require.Equal(t, 3, count(t, db, "events"))

		var payload []byte
		require.NoError(t, db.Read().QueryRowContext(t.Context(), "SELECT payload FROM events WHERE version = 1").Scan(&payload))
		e, err := events.Decode(payload)
		require.NoError(t, err)
		require.Equal(t, timeline.Events[0].EventID, e.ID)
		require.Equal(t, "req-1", e.CorrelationID)
		require.Equal(t, parent, e.Traceparent)
		require.JSONEq(t, string(placed.body), string(e.Data))
	})
}

func TestPreconditions(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := open(t, db)
		path := "/orders/" + s.do("POST", "/orders", tea).is(201).order().ID
		const name = `{"customer":{"name":"B"}}`
		s.do("PATCH", path, name).is(428)
		for _, bad := range []string{"1", `"1`, `"1" "2"`, "", `"1",`, `w/"1"`} {
			s.do("PATCH", path, name, "If-Match", bad).is(400)
		}
		s.do("PATCH", path, name, "If-Match", `"2"`).is(412)
		s.do("PATCH", path, name, "If-Match", `W/"1"`).is(412)
		require.EqualValues(t, 2, s.do("PATCH", path, name, "If-Match", `"7", "1"`).is(200).order().Version)
		same := s.do("PATCH", path, name, "If-Match", "*").is(200)
		require.EqualValues(t, 2, same.order().Version, "a change that changes nothing is no event")
		s.do("PATCH", path, "{}", "If-Match", `"2"`).is(200)
		require.Equal(t, 2, count(t, db, "events"))
		s.do("POST", path+"/cancel", "", "If-Match", `"1"`).is(412)
		s.do("POST", path+"/cancel", "", "If-Match", `"2"`).is(200)
		s.do("PATCH", path, name, "If-Match", `"3"`).is(409)
		missing := "/orders/" + uuid.Must(uuid.NewV7()).String()
		for _, p := range []string{missing, "/orders/x", "/orders/" + strings.ToUpper(missing[8:])} {
			s.do("GET", p, "").is(404)
			s.do("GET", p+"/timeline", "").is(404)
			s.do("PATCH", p, name, "If-Match", "*").is(404)
			s.do("POST", p+"/cancel", "").is(404)
		}
	})
}

func TestPages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := open(t, db)
		var ids []string
		for range 7 {
			ids = append(ids, s.do("POST", "/orders", tea).is(201).order().ID)
		}
		type page struct {
			Orders []view
			Next   *string
		}
		var walked []string
		query := "?limit=3"
		for pages := 1; ; pages++ {
			var p page
			require.NoError(t, json.Unmarshal(s.do("GET", "/orders"+query, "").is(200).body, &p))
			for _, o := range p.Orders {
				walked = append([]string{o.ID}, walked...)
			}
			if p.Next == nil {
				require.Equal(t, 3, pages)
				break
			}
			query = "?limit=3&after=" + *p.Next
		}
		require.Equal(t, ids, walked)
		for _, bad := range []string{
			"limit=0", "limit=201", "limit=x", "limit=", "limit=1&limit=2", "after=x", "offset=1", "a=%zz",
			"after=" + strings.ToUpper(ids[0]),
		} {
			s.do("GET", "/orders?"+bad, "").is(400)
		}
		for _, bad := range []string{"limit=0", "limit=1001", "after=-1", "x=1"} {
			s.do("GET", "/orders/"+ids[0]+"/timeline?"+bad, "").is(400)
		}
	})
}

func TestTimelinePages(t *testing.T) {
	t.Parallel()
	databasetest.Each(t, "store", func(t *testing.T, db *database.DB) {
		s := open(t, db)
		path := "/orders/" + s.do("POST", "/orders", tea).is(201).order().ID
		for v := 1; v < 5; v++ {
			s.do("PATCH", path, fmt.Sprintf(`{"customer":{"name":"n%d"}}`, v), "If-Match", fmt.Sprintf(`"%d"`, v)).is(200)
		}
		var versions []int64
		after := int64(0)
		for {
			var p struct {
				Events []struct{ Version int64 }
				Next   *int64
			}
			require.NoError(t, json.Unmarshal(
				s.do("GET", fmt.Sprintf("%s/timeline?limit=2&after=%d", path, after), "").is(200).body, &p))
			for _, e := range p.Events {
				versions = append(versions, e.Version)
			}
			if p.Next == nil {
				break
			}
			after = *p.Next
		}
		require.Equal(t, []int64{1, 2, 3, 4, 5}, versions)
		s.do("GET", path+"/timeline?after=5", "").is(200)
	})
}

func TestOtherPathsAndMethods(t *testing.T) {
	t.Parallel()
	db, _ := databasetest.SQLite(t, "store")
	s := open(t, db)
	s.do("GET", "/", "").is(404)
	s.do("GET", "/orders/", "").is(404)
	require.Equal(t, "GET, HEAD, POST", s.do("DELETE", "/orders", "").is(405).header.Get("Allow"))
	require.Equal(t, "GET, HEAD, PATCH", s.do("PUT", "/orders/x", "").is(405).header.Get("Allow"))
	require.Equal(t, "POST", s.do("GET", "/orders/x/cancel", "").is(405).header.Get("Allow"))
	require.Contains(t, string(s.do("GET", "/openapi.yaml", "").is(200).body), "openapi: 3.1.0")
}
