package letter

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/bojanz/currency"

	"github.com/pillarbox/pillarbox/shared/events"
)

// money formats amounts of one currency in the customer's locale.
type money struct {
	code      string
	formatter *currency.Formatter
}

func newMoney(code, locale string) money {
	if locale == "" {
		locale = "en"
	}
	return money{code: code, formatter: currency.NewFormatter(currency.NewLocale(locale))}
}

// show formats a decimal number, "9.00" as "€9.00". A currency that this
// release does not know is written with its code: the number is right anyway.
func (m money) show(number string) (string, error) {
	if err := checkDecimal(number); err != nil {
		return "", err
	}
	if !currency.IsValid(m.code) {
		return clean(number + " " + clip(m.code, shortID)), nil
	}
	amount, err := currency.NewAmount(number, m.code)
	if err != nil {
		return "", fmt.Errorf("amount: %w", err)
	}
	return m.formatter.Format(amount), nil
}

// line formats the price of all pieces of an item, "" in a currency that this
// release does not know.
func (m money) line(item events.Item) (string, error) {
	if !currency.IsValid(m.code) {
		return "", nil
	}
	if err := checkDecimal(item.UnitPrice); err != nil {
		return "", err
	}
	price, err := currency.NewAmount(item.UnitPrice, m.code)
	if err != nil {
		return "", fmt.Errorf("unit price: %w", err)
	}
	all, err := price.Mul(strconv.FormatInt(item.Quantity, 10))
	if err != nil {
		return "", fmt.Errorf("line total: %w", err)
	}
	return m.formatter.Format(all), nil
}

// checkDecimal takes digits with at most one point, "4.50". The library also
// takes exponents, and "1e999999999" would be a gigabyte of zeros.
func checkDecimal(number string) error {
	const most = 40
	whole, fraction, point := strings.Cut(number, ".")
	digits := func(s string) bool {
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' }) < 0
	}
	if len(number) > most || !digits(whole) || point && !digits(fraction) {
		return fmt.Errorf("%q is not a decimal number", clip(clean(number), most))
	}
	return nil
}
