package events_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/events"
)

var update = flag.Bool("update", false, "write golden files that do not exist yet")

func order(version int64, status string) events.Order {
	return events.Order{
		ID: "01932c3e-7b1a-7c3e-9d1f-3a5b6c7d8e9f", Version: version, Status: status,
		Customer: events.Customer{Email: "ada@example.com", Name: "Ada <Lovelace>", Locale: "en"},
		Currency: "EUR", Total: "9.00", Reference: "web-1001",
		Items:    []events.Item{{SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.50"}},
		PlacedAt: time.Date(2026, 11, 30, 11, 0, 0, 123456000, time.UTC),
	}
}

func event(t *testing.T, kind string, o events.Order) events.Event {
	t.Helper()
	data, err := json.Marshal(o)
	require.NoError(t, err)
	return events.Event{
		ID: "01932c3e-7b1b-7000-8000-00000000000" + string(rune('0'+o.Version)), Source: events.Source, Type: kind,
		Time: o.PlacedAt.Add(time.Duration(o.Version) * time.Minute), Subject: o.ID, Version: o.Version,
		CorrelationID: "req-1", Traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Data: data,
	}
}

// TestGolden pins the wire form: the files are only ever added to, so that
// what an old release wrote stays readable for ever.
func TestGolden(t *testing.T) {
	t.Parallel()
	for kind, o := range map[string]events.Order{
		events.TypePlaced:    order(1, "placed"),
		events.TypeChanged:   order(2, "placed"),
		events.TypeCancelled: order(3, "cancelled"),
	} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			e := event(t, kind, o)
			got, err := e.Encode()
			require.NoError(t, err)
			path := filepath.Join("testdata", kind+".json")
			if _, err := os.Stat(path); *update && os.IsNotExist(err) {
				require.NoError(t, os.WriteFile(path, append(got, '\n'), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, strings.TrimSpace(string(want)), string(got))

			back, err := events.Decode(want)
			require.NoError(t, err)
			require.JSONEq(t, string(e.Data), string(back.Data))
			back.Data = e.Data
			require.EqualExportedValues(t, e, back)
			body, err := back.Order()
			require.NoError(t, err)
			require.Equal(t, o, body)
		})
	}
}

func TestDecodeIsLenientAboutWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	raw := alter(t, func(e map[string]any) {
		e["futureattribute"] = 7
		e["data"].(map[string]any)["gift"] = map[string]any{"wrap": true}
		delete(e, "datacontenttype")
		delete(e, "correlationid")
	})
	_, err := events.Decode(raw)
	require.NoError(t, err)
}

func TestDecodeRefuses(t *testing.T) {
	t.Parallel()
	set := func(key string, value any) []byte { return alter(t, func(e map[string]any) { e[key] = value }) }
	data := func(key string, value any) []byte {
		return alter(t, func(e map[string]any) { e["data"].(map[string]any)[key] = value })
	}
	for name, raw := range map[string][]byte{
		"empty":               nil,
		"spaces":              []byte("  \n"),
		"not JSON":            []byte("hello"),
		"array":               []byte("[]"),
		"null":                []byte("null"),
		"noise":               bytes.Repeat([]byte{0xff, 0x00, 0x80}, 300_000),
		"bad UTF-8":           bytes.Replace(alter(t, func(map[string]any) {}), []byte("Ada"), []byte("A\xffa"), 1),
		"no id":               set("id", ""),
		"id a number":         set("id", 7),
		"id too long":         set("id", strings.Repeat("x", 65)),
		"id with a line feed": set("id", "a\nb"),
		"no subject":          set("subject", nil),
		"other specversion":   set("specversion", "2.0"),
		"unknown type":        set("type", "order.eaten.v1"),
		"unknown version":     set("type", "order.placed.v9"),
		"version 0":           set("orderversion", 0),
		"version text":        set("orderversion", "1"),
		"version huge":        set("orderversion", int64(1)<<40),
		"bad time":            set("time", "yesterday"),
		"other content type":  set("datacontenttype", "text/xml"),
		"no data":             set("data", nil),
		"data text":           set("data", "x"),
		"other order":         data("id", "another"),
		"other version":       data("version", 2),
		"no address":          data("customer", map[string]any{}),
		"no total":            data("total", ""),
		"no placed_at":        data("placed_at", "0001-01-01T00:00:00Z"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := events.Decode(raw)
			require.ErrorIs(t, err, events.ErrInvalid)
			require.Less(t, len(err.Error()), 300)
		})
	}
}

func TestEncodeRefusesWhatDecodeWould(t *testing.T) {
	t.Parallel()
	good := event(t, events.TypePlaced, order(1, "placed"))
	for name, change := range map[string]func(*events.Event){
		"id":      func(e *events.Event) { e.ID = "" },
		"type":    func(e *events.Event) { e.Type = "order.placed" },
		"version": func(e *events.Event) { e.Version = 0 },
		"data":    func(e *events.Event) { e.Data = nil },
		"time":    func(e *events.Event) { e.Time = time.Time{} },
	} {
		e := good
		change(&e)
		_, err := e.Encode()
		require.ErrorIs(t, err, events.ErrInvalid, name)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"specversion":"1.0"}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := events.Decode(raw)
		if err != nil {
			require.ErrorIs(t, err, events.ErrInvalid)
			return
		}
		again, err := e.Encode()
		require.NoError(t, err)
		back, err := events.Decode(again)
		require.NoError(t, err)
		require.Equal(t, e.ID, back.ID)
	})
}

// alter returns a good event's bytes after a change to its JSON.
func alter(t *testing.T, change func(map[string]any)) []byte {
	t.Helper()
	raw, err := event(t, events.TypePlaced, order(1, "placed")).Encode()
	require.NoError(t, err)
	var m map[string]any
	require.NoError(t, json.Unmarshal(raw, &m))
	change(m)
	raw, err = json.Marshal(m)
	require.NoError(t, err)
	return raw
}
