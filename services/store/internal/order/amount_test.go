package order_test

import (
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/bojanz/currency"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/events"
)

// anyCurrency draws a code of the library's own list.
func anyCurrency(t *rapid.T) (code string, decimals uint8) {
	code = rapid.SampledFrom(currency.GetCurrencyCodes()).Draw(t, "currency")
	decimals, known := order.Decimals(code)
	if !known {
		t.Fatalf("%s is not known", code)
	}
	return code, decimals
}

// An amount's text is what the currency library makes of it, and reads back as the same amount.
func TestAmountText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		code, decimals := anyCurrency(t)
		a := order.Amount{Minor: rapid.Int64Min(0).Draw(t, "minor"), Decimals: decimals}
		want, err := currency.NewAmountFromInt64(a.Minor, code)
		require.NoError(t, err)
		require.Equal(t, want.Number(), a.String())
		back, err := order.ParseAmount(a.String())
		require.NoError(t, err)
		require.Equal(t, a, back)
	})
}

// The total is the exact sum, or the draft is refused because it does not fit.
func TestTotalIsExact(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		code, decimals := anyCurrency(t)
		d := order.Draft{Customer: order.Customer{Email: "a@b.example"}, Currency: code}
		sum := new(big.Int)
		for range rapid.IntRange(1, 20).Draw(t, "items") {
			price := order.Amount{Minor: rapid.Int64Range(0, 1<<rapid.IntRange(1, 62).Draw(t, "bits")).Draw(t, "minor"), Decimals: decimals}
			quantity := rapid.Int64Range(1, order.MaxQuantity).Draw(t, "quantity")
			d.Items = append(d.Items, order.DraftItem{SKU: "A", Quantity: quantity, UnitPrice: price.String()})
			sum.Add(sum, new(big.Int).Mul(big.NewInt(quantity), big.NewInt(price.Minor)))
		}
		p, broken := order.CheckDraft(d)
		most := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(decimals)), nil)
		most.Mul(most, big.NewInt(events.MaxTotal))
		if !sum.IsInt64() || sum.Cmp(most) > 0 {
			require.Equal(t, []order.Violation{{Pointer: "/items", Detail: "add up to a total that is too large"}}, broken)
			return
		}
		require.Empty(t, broken)
		want, err := currency.NewAmountFromBigInt(sum, code)
		require.NoError(t, err)
		require.Equal(t, want.Number(), p.Order("id", noon).Total.String())
	})
}

// Whatever is not plain decimal text is refused, without a panic.
func TestParseAmountTakesOnlyPlainText(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.OneOf(rapid.String(), rapid.StringMatching(`-?[0-9]{0,22}\.?[0-9]{0,4}(e[0-9])?`)).Draw(t, "text")
		a, err := order.ParseAmount(text)
		if err != nil {
			require.Equal(t, order.Amount{}, a)
			return
		}
		require.Equal(t, text, a.String())
	})
}

func TestAmountsThatAreRefused(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "decimal", " 1": "decimal", "1 ": "decimal", "+1": "decimal", "1.": "decimal", ".5": "decimal", "01": "decimal", "00": "decimal",
		"1e3": "decimal", "0x1": "decimal", "1_0": "decimal", "1,5": "decimal", "Infinity": "decimal", "NaN": "decimal", "--1": "decimal",
		"١": "decimal", "1.2.3": "decimal", "-": "decimal", "-1": "negative", "-0": "negative", "-0.00": "negative",
		"9223372036854775808": "too large", "92233720368547758.08": "too large", strings.Repeat("9", 65): "decimal",
	} {
		_, err := order.ParseAmount(text)
		require.ErrorContains(t, err, want, "%q", text)
	}
}

func TestDecimalsOfCurrencies(t *testing.T) {
	t.Parallel()
	for code, want := range map[string]uint8{"EUR": 2, "JPY": 0, "BHD": 3} {
		decimals, known := order.Decimals(code)
		require.True(t, known)
		require.Equal(t, want, decimals)
	}
	for _, unknown := range []string{"", "eur", "EU", "XXL", "EURO"} {
		_, known := order.Decimals(unknown)
		require.False(t, known, unknown)
	}
	require.True(t, slices.Contains(currency.GetCurrencyCodes(), "EUR"))
}
