package httpapi

import (
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/strictjson"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// decodePlacement reads the body of POST /orders and checks it.
func decodePlacement(body []byte) (order.Placement, *httpserver.Problem) {
	v, err := strictjson.Parse(body)
	if err != nil {
		return order.Placement{}, syntaxProblem(err)
	}
	var dec strictjson.Decoder
	var d order.Draft
	draft(&dec, &d)(v, "")
	placement, broken := order.CheckDraft(d)
	return placement, fieldProblem(dec.Errors, broken, maxFieldErrors)
}

// draft reads an order as a client asks for it. What has the wrong shape is listed and left at its zero value.
func draft(dec *strictjson.Decoder, d *order.Draft) func(v strictjson.Value, at string) {
	return func(v strictjson.Value, at string) {
		dec.Object(v, at, strictjson.Fields{
			{Name: "customer", Read: func(v strictjson.Value, at string) {
				dec.Object(v, at, strictjson.Fields{
					{Name: "email", Read: dec.String(&d.Customer.Email)},
					{Name: "name", Read: dec.String(&d.Customer.Name)},
					{Name: "locale", Read: dec.String(&d.Customer.Locale)},
				})
			}},
			{Name: "currency", Read: dec.String(&d.Currency)},
			{Name: "items", Read: items(dec, &d.Items)},
			{Name: "reference", Read: dec.String(&d.Reference)},
		})
	}
}

// decodeRevision reads the body of PATCH /orders/{id}.
func decodeRevision(body []byte) (d order.RevisionDraft, wrong []strictjson.FieldError, err error) {
	v, err := strictjson.Parse(body)
	if err != nil {
		return d, nil, err
	}
	var dec strictjson.Decoder
	dec.Object(v, "", strictjson.Fields{
		{Name: "customer", Read: func(v strictjson.Value, at string) {
			dec.Object(v, at, strictjson.Fields{
				{Name: "name", Read: func(v strictjson.Value, at string) {
					d.CustomerName = new(string)
					dec.String(d.CustomerName)(v, at)
				}},
			})
		}},
		{Name: "items", Read: func(v strictjson.Value, at string) {
			d.Items = &[]order.DraftItem{}
			items(&dec, d.Items)(v, at)
		}},
	})
	return d, dec.Errors, nil
}

// decodeNothing reads a body that may only be an empty object.
func decodeNothing(body []byte) (wrong []strictjson.FieldError, err error) {
	v, err := strictjson.Parse(body)
	if err != nil {
		return nil, err
	}
	var dec strictjson.Decoder
	dec.Object(v, "", strictjson.Fields{})
	return dec.Errors, nil
}

func items(dec *strictjson.Decoder, to *[]order.DraftItem) func(v strictjson.Value, at string) {
	return func(v strictjson.Value, at string) {
		// One more than allowed, so that the rule about their number sees it.
		dec.Array(v, at, order.MaxItems+1, func(v strictjson.Value, at string) {
			var item order.DraftItem
			dec.Object(v, at, strictjson.Fields{
				{Name: "sku", Read: dec.String(&item.SKU)},
				{Name: "name", Read: dec.String(&item.Name)},
				{Name: "quantity", Read: dec.Integer(&item.Quantity)},
				{Name: "unit_price", Read: dec.String(&item.UnitPrice)},
			})
			*to = append(*to, item)
		})
	}
}

// maxFieldErrors bounds an answer; it is enough for every field of the largest order.
const maxFieldErrors = 2100

// fieldProblem is the answer to a body with wrong fields, nil when there are none: 400 when
// any has the wrong shape, else 422. It names at most most of them.
func fieldProblem(wrong []strictjson.FieldError, broken []order.Violation, most int) *httpserver.Problem {
	p := &httpserver.Problem{Status: http.StatusUnprocessableEntity, Detail: "the order breaks a rule"}
	if len(wrong) > 0 {
		p.Status, p.Detail = http.StatusBadRequest, "the body does not have the right shape"
	}
	blamed := make(map[string]bool, len(wrong))
	for _, e := range wrong {
		blamed[e.Pointer] = true
		p.Errors = append(p.Errors, httpserver.FieldError{Pointer: e.Pointer, Detail: e.Detail})
	}
	for _, v := range broken {
		if !covered(blamed, v.Pointer) {
			p.Errors = append(p.Errors, httpserver.FieldError{Pointer: v.Pointer, Detail: v.Detail})
		}
	}
	if len(p.Errors) == 0 {
		return nil
	}
	if more := len(p.Errors) - most; more > 0 {
		p.Errors = p.Errors[:most:most]
		p.Detail += fmt.Sprintf(", and %d more", more)
	}
	return p
}

// covered reports that the field or one that holds it was not read, so that what a rule says
// about it is only an echo.
func covered(blamed map[string]bool, pointer string) bool {
	for {
		if blamed[pointer] {
			return true
		}
		i := strings.LastIndexByte(pointer, '/')
		if i < 0 {
			return false
		}
		pointer = pointer[:i]
	}
}

func syntaxProblem(err error) *httpserver.Problem {
	p := &httpserver.Problem{Status: http.StatusBadRequest, Detail: "the body is not well-formed JSON"}
	var syntax *strictjson.SyntaxError
	switch {
	case !errors.As(err, &syntax):
	case syntax.Values:
		// It may be good JSON; it is far more than the rules of an order allow.
		p.Status = http.StatusUnprocessableEntity
		p.Detail = fmt.Sprintf("the body has more than %d JSON values; an order has at most %d items", strictjson.MaxValues, order.MaxItems)
	default:
		p.Detail += ": " + syntax.Error()
	}
	return p
}
