package order

import (
	"errors"
	"math"
	"math/bits"
	"strconv"
	"strings"

	"github.com/bojanz/currency"
)

// Amount is money as an exact count of the currency's smallest unit, with the number of
// decimals that its text shows: 9.00 is {900, 2}. It is never negative.
//
// The decimals travel with the amount, so that a stored order is read as it was written even
// if a later currency table says otherwise.
type Amount struct {
	Minor    int64
	Decimals uint8
}

// What is wrong with the text of an amount; each reads on from the name of the field.
var (
	errNotDecimal = errors.New(`must be a decimal number as text, such as "4.50"`)
	errNegative   = errors.New("must not be negative")
	errTooLarge   = errors.New("is too large")
	errDecimals   = errors.New("has more decimals than the currency")
)

// maxAmountText is far longer than any amount that fits; it bounds the work.
const maxAmountText = 64

// Decimals is the number of decimals of an ISO 4217 currency, false for an unknown code.
func Decimals(code string) (uint8, bool) {
	if !currency.IsValid(code) {
		return 0, false
	}
	return currency.GetDigits(code)
}

// ParseAmount reads plain decimal text: digits, or digits, a point and digits. No sign,
// exponent, grouping, white space or needless leading zero.
func ParseAmount(text string) (Amount, error) {
	whole, fraction, point := strings.Cut(text, ".")
	negative := strings.HasPrefix(whole, "-")
	whole = strings.TrimPrefix(whole, "-")
	switch {
	case len(text) > maxAmountText:
		return Amount{}, errNotDecimal
	case !digits(whole) || point && !digits(fraction):
		return Amount{}, errNotDecimal
	case len(whole) > 1 && whole[0] == '0':
		return Amount{}, errNotDecimal
	case negative:
		return Amount{}, errNegative
	}
	minor, err := strconv.ParseInt(whole+fraction, 10, 64)
	if err != nil {
		return Amount{}, errTooLarge
	}
	return Amount{Minor: minor, Decimals: uint8(len(fraction))}, nil // at most maxAmountText
}

func digits(s string) bool {
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s != ""
}

// in gives the amount with the currency's own number of decimals.
func (a Amount) in(decimals uint8) (Amount, error) {
	if a.Decimals > decimals {
		return Amount{}, errDecimals
	}
	for a.Decimals < decimals {
		if a.Minor > math.MaxInt64/10 {
			return Amount{}, errTooLarge
		}
		a.Minor *= 10
		a.Decimals++
	}
	return a, nil
}

// plusTimes is a + n*b for amounts of one currency and n ≥ 0, false when that does not fit.
func (a Amount) plusTimes(n int64, b Amount) (Amount, bool) {
	high, low := bits.Mul64(uint64(n), uint64(b.Minor))
	if high != 0 || low > uint64(math.MaxInt64-a.Minor) {
		return a, false
	}
	a.Minor += int64(low)
	return a, true
}

// exceeds reports whether a is more than a number of whole units.
func (a Amount) exceeds(units int64) bool {
	for range a.Decimals {
		if units > math.MaxInt64/10 {
			return false
		}
		units *= 10
	}
	return a.Minor > units
}

// String is the amount's decimal text.
func (a Amount) String() string {
	text := strconv.FormatInt(a.Minor, 10)
	d := int(a.Decimals)
	if d == 0 {
		return text
	}
	if missing := d + 1 - len(text); missing > 0 {
		text = strings.Repeat("0", missing) + text
	}
	return text[:len(text)-d] + "." + text[len(text)-d:]
}
