package httpapi

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/services/store/internal/strictjson"
	"github.com/pillarbox/pillarbox/shared/httpserver"
)

// maxEntryErrors bounds the wrong fields that are named of one order in a batch, so that a small
// batch cannot ask for a huge answer.
const maxEntryErrors = 20

// entry is one order of a batch: to be stored, or refused already.
type entry struct {
	item    intake.Item
	problem *httpserver.Problem
}

// decodeBatch reads the orders of a batch. A problem is one of the whole batch.
func decodeBatch(kind string, body []byte) ([]entry, *httpserver.Problem) {
	var elements []strictjson.Element
	if kind == typeNDJSON {
		elements = lines(body)
	} else {
		var err error
		if elements, err = strictjson.Elements(body, MaxBatch+1); err != nil {
			return nil, syntaxProblem(err)
		}
	}
	if len(elements) > MaxBatch {
		return nil, &httpserver.Problem{
			Status: http.StatusRequestEntityTooLarge, Detail: fmt.Sprintf("a batch has at most %d orders", MaxBatch),
		}
	}
	entries := make([]entry, len(elements))
	for i, e := range elements {
		var err error
		entries[i], err = decodeEntry(e.Text)
		var syntax *strictjson.SyntaxError
		switch {
		case err == nil:
		case kind == typeJSON && errors.As(err, &syntax) && !syntax.Limit:
			// Where one element ends is only sure in an array that is well-formed throughout.
			return nil, syntaxProblem(&strictjson.SyntaxError{Offset: e.Offset + syntax.Offset, Detail: syntax.Detail})
		default:
			entries[i].problem = syntaxProblem(err)
		}
	}
	return entries, nil
}

// lines are the lines that are not blank, at most one more than a batch may have.
func lines(body []byte) (found []strictjson.Element) {
	for at := 0; at < len(body) && len(found) <= MaxBatch; {
		end := len(body)
		if n := bytes.IndexByte(body[at:], '\n'); n >= 0 {
			end = at + n
		}
		if len(bytes.Trim(body[at:end], " \t\r")) > 0 {
			found = append(found, strictjson.Element{Text: body[at:end], Offset: at})
		}
		at = end + 1
	}
	return found
}

// decodeEntry reads one order, or an object of an order and its idempotency key. An error is one of syntax.
func decodeEntry(text []byte) (entry, error) {
	if len(text) > MaxBody {
		return entry{problem: tooLarge("the order", MaxBody)}, nil
	}
	v, err := strictjson.Parse(text)
	if err != nil {
		return entry{}, err
	}
	var dec strictjson.Decoder
	var d order.Draft
	var key string
	var asSent string // the order's text
	at, keyed := "", wrapped(v)
	if keyed {
		at = "/order"
		dec.Object(v, "", strictjson.Fields{
			{Name: "idempotency_key", Read: dec.String(&key)},
			{Name: "order", Read: func(v strictjson.Value, at string) {
				asSent = v.Text
				draft(&dec, &d)(v, at)
			}},
		})
	} else {
		draft(&dec, &d)(v, "")
	}
	placement, broken := order.CheckDraft(d)
	for i := range broken {
		broken[i].Pointer = at + broken[i].Pointer
	}
	const keyAt = "/idempotency_key"
	misread := func(e strictjson.FieldError) bool { return e.Pointer == keyAt }
	if keyed && !validKey(key) && !slices.ContainsFunc(dec.Errors, misread) {
		dec.Errors = append(dec.Errors, strictjson.FieldError{Pointer: keyAt, Detail: "must be 1 to 255 printable ASCII characters"})
	}
	if p := fieldProblem(dec.Errors, broken, maxEntryErrors); p != nil {
		return entry{problem: p}, nil
	}
	e := entry{item: intake.Item{Placement: placement, Size: len(text)}}
	if keyed {
		// As POST /orders has it, so that an order may be repeated either way.
		e.item.Keyed = &intake.Keyed{
			Key: orderdb.Key{Caller: caller, Name: key}, Fingerprint: fingerprint(http.MethodPost, "/orders", []byte(asSent)),
		}
	}
	return e, nil
}

// wrapped reports that v is an order with a key around it. No order has a member of these names.
func wrapped(v strictjson.Value) bool {
	for _, m := range v.Members {
		if m.Name == "idempotency_key" || m.Name == "order" {
			return true
		}
	}
	return false
}
