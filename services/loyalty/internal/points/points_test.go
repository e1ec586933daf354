package points_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/services/loyalty/internal/points"
	"github.com/pillarbox/pillarbox/shared/events"
)

func TestWholeIsTheFloorOfDecimalText(t *testing.T) {
	t.Parallel()
	for amount, want := range map[string]int64{
		"9.00": 9, "9.99": 9, "0.99": 0, "0": 0, "1234": 1234, "12.345": 12, "007.5": 7,
		"1000000000000000.99": points.MaxPerOrder,
		"999999999999999.99":  999_999_999_999_999, // a float would round it up
		"":                    -1, ".": -1, ".5": -1, "5.": -1, "-1": -1, "+1": -1, "-0.5": -1, "1e3": -1, "1,000": -1, "1.2.3": -1, " 1": -1,
		"1 ": -1, "0x10": -1, "1_000": -1, "NaN": -1, "Inf": -1, "٣": -1, "1.٣": -1, "1\x00": -1,
		"1000000000000001": -1, "9223372036854775808": -1, strings.Repeat("9", 500): -1,
	} {
		got, ok := points.Whole(amount)
		require.Equal(t, want >= 0, ok, "%q", amount)
		if ok {
			require.Equal(t, want, got, "%q", amount)
		}
	}
}

func TestAccountIsTheAddressWithItsDomainInLowerCase(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"ada@example.com":               "ada@example.com",
		"Ada@EXAMPLE.Com":               "Ada@example.com",
		`"odd@Local"@Example.COM`:       `"odd@Local"@example.com`,
		"jörg@BÜCHER.example":           "jörg@bücher.example",
		"a/b+c%d@Example.com":           "a/b+c%d@example.com",
		"a@B":                           "a@b",
		"":                              "",
		"ada":                           "",
		"@example.com":                  "",
		"ada@":                          "",
		"ada@example.com\n":             "",
		"a\x00da@example.com":           "",
		"\xff@example.com":              "",
		strings.Repeat("a", 319) + "@b": "",
	} {
		got, ok := points.Account(address)
		require.Equal(t, want != "", ok, "%q", address)
		require.Equal(t, want, got, "%q", address)
		if ok {
			again, ok := points.Account(got)
			require.True(t, ok)
			require.Equal(t, got, again, "a key is its own key")
		}
	}
}

func event(t *testing.T, kind, total, email string) events.Event {
	t.Helper()
	at := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	data, err := json.Marshal(events.Order{ID: "o1", Version: 3, Status: "placed", Customer: events.Customer{Email: email},
		Currency: "EUR", Total: total, PlacedAt: at})
	require.NoError(t, err)
	return events.Event{ID: "e1", Source: events.Source, Type: kind, Time: at, Subject: "o1", Version: 3, Data: data}
}

func TestClaimOfEachType(t *testing.T) {
	t.Parallel()
	for kind, want := range map[string]struct {
		points int64
		reason points.Reason
	}{
		events.TypePlaced:    {9, points.Placed},
		events.TypeChanged:   {9, points.Changed},
		events.TypeCancelled: {0, points.Cancelled},
	} {
		e := event(t, kind, "9.99", "Ada@EXAMPLE.com")
		claim, err := points.ClaimOf(e)
		require.NoError(t, err)
		require.Equal(t, points.Claim{EventID: "e1", OrderID: "o1", Version: 3, Account: "Ada@example.com",
			Points: want.points, Reason: want.reason, At: e.Time}, claim)
	}
}

func TestClaimOfAnImpossibleEventIsInvalid(t *testing.T) {
	t.Parallel()
	notAnOrder := event(t, events.TypePlaced, "1", "ada@example.com")
	notAnOrder.Data = json.RawMessage(`[]`)
	for name, e := range map[string]events.Event{
		"data":    notAnOrder,
		"total":   event(t, events.TypePlaced, "-1", "ada@example.com"),
		"address": event(t, events.TypePlaced, "1", "ada"),
		"type":    event(t, "order.lost.v1", "1", "ada@example.com"),
	} {
		_, err := points.ClaimOf(e)
		require.ErrorIs(t, err, events.ErrInvalid, name)
		require.NotContains(t, err.Error(), "ada", name) // reasons are kept and logged
	}
}

func TestSettleReversesAtEveryAccountThatHoldsPoints(t *testing.T) {
	t.Parallel()
	credits := points.Credits{}
	settle := func(account string, worth int64) []points.Posting {
		return credits.Settle(points.Claim{Account: account, Points: worth})
	}
	require.Equal(t, []points.Posting{{"ada@x", 9}}, settle("ada@x", 9))
	require.Equal(t, []points.Posting{{"ada@x", 0}}, settle("ada@x", 9))
	require.Equal(t, []points.Posting{{"bob@x", 12}, {"ada@x", -9}}, settle("bob@x", 12))
	require.Equal(t, []points.Posting{{"bob@x", -12}}, settle("bob@x", 0))
	credits["cyd@x"], credits["bea@x"] = 1, 2
	require.Equal(t, []points.Posting{{"dan@x", 0}, {"bea@x", -2}, {"cyd@x", -1}}, settle("dan@x", 0))
}

// Whatever the claims, the postings add up to the last one: all its points at its
// account, none anywhere else.
func TestPostingsAddUpToTheLastClaim(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		credits, sums := points.Credits{}, map[string]int64{}
		n := rapid.IntRange(1, 30).Draw(t, "claims")
		for i := range n {
			claim := points.Claim{
				Account: fmt.Sprintf("a%d@x", rapid.IntRange(0, 3).Draw(t, "account")),
				Points:  rapid.Int64Range(0, points.MaxPerOrder).Draw(t, "points"),
			}
			postings := credits.Settle(claim)
			require.Equal(t, claim.Account, postings[0].Account)
			seen := map[string]bool{}
			for j, p := range postings {
				require.False(t, seen[p.Account], "one posting per account")
				require.True(t, j == 0 || p.Points < 0)
				seen[p.Account] = true
				sums[p.Account] += p.Points
			}
			for account, sum := range sums {
				if account == claim.Account {
					require.Equal(t, claim.Points, sum, "after claim %d", i)
				} else {
					require.Zero(t, sum, "after claim %d", i)
				}
			}
		}
	})
}
