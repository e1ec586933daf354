package operate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/pillarbox/pillarbox/shared/admin"
	"github.com/pillarbox/pillarbox/shared/consumer"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

const (
	// maxBody has room for the largest event, with its quotes escaped.
	maxBody = 2 << 20
	// requestTimeout bounds one action with its retries.
	requestTimeout = 30 * time.Second
)

// Handler serves o below the root it is mounted on (admin.Checks.Mount).
func Handler(o *consumer.Operator) http.Handler {
	h := &handler{o, o.Log()}
	r := chi.NewRouter()
	r.NotFound(httpserver.NotFound)
	r.MethodNotAllowed(httpserver.MethodNotAllowed)
	r.Get("/parked", h.answer(h.parked))
	r.Get("/parked/order", h.answer(h.parkedOrder))
	r.Post("/parked/retry", h.answer(h.retry))
	r.Post("/parked/skip", h.answer(h.skip))
	r.Post("/parked/fill", h.answer(h.fill))
	r.Get("/dead", h.answer(h.letters))
	r.Get("/dead/letter", h.answer(h.letter))
	r.Post("/dead/drop", h.answer(h.drop))
	r.Get("/redrives", h.answer(func(r *http.Request) (any, error) { return one(o.Redrives(r.Context())) }))
	r.Get("/redrives/one", h.answer(func(r *http.Request) (any, error) { return o.Redrive(r.Context(), r.FormValue("id")) }))
	r.Post("/redrives", h.answer(h.start))
	r.Post("/redrives/cancel", h.answer(h.cancel))
	r.Get("/actions", h.answer(h.actions))
	return r
}

type handler struct {
	o   *consumer.Operator
	log *slog.Logger
}

func one[T any](items []T, err error) (Page[T], error) { return Page[T]{Items: items}, err }

// answer turns what do returns into JSON, and its error into a problem document.
func (h *handler) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), requestTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		answer, err := do(r.WithContext(ctx))
		if err != nil {
			p := problemOf(err)
			if p.Status == http.StatusInternalServerError {
				h.log.ErrorContext(ctx, "operator's request failed", logs.Error, err)
			}
			p.Write(w)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// The status line is out; an error here means that the client has gone.
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// problemOf is the table of errors.
func problemOf(err error) httpserver.Problem {
	var tooLarge *http.MaxBytesError
	status := http.StatusInternalServerError
	switch {
	case errors.As(err, &tooLarge):
		status = http.StatusRequestEntityTooLarge
	case errors.Is(err, consumer.ErrInvalid):
		status = http.StatusBadRequest
	case errors.Is(err, consumer.ErrNotFound):
		status = http.StatusNotFound
	case errors.Is(err, consumer.ErrRefused):
		status = http.StatusConflict
	case database.Classify(err) == database.ClassUnavailable, database.Classify(err) == database.ClassConflict:
		return httpserver.Problem{Status: http.StatusServiceUnavailable, Detail: "the database is not available now", RetryAfter: time.Second}
	default:
		return httpserver.Problem{Status: status}
	}
	return httpserver.Problem{Status: status, Detail: err.Error()}
}

// read decodes the body, in which every field must be known: a misspelt filter must not mean everything.
func read[T any](r *http.Request) (v T, err error) {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	if err := d.Decode(&v); err != nil {
		return v, invalidBody(err)
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return v, fmt.Errorf("%w: the body must be one JSON object", consumer.ErrInvalid)
	}
	return v, nil
}

func invalidBody(err error) error {
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return err
	}
	return fmt.Errorf("%w: body: %w", consumer.ErrInvalid, err)
}

func (h *handler) actor(r *http.Request, reason string) consumer.Actor {
	who, err := url.PathUnescape(r.Header.Get(admin.HeaderOperator))
	if err != nil {
		who = r.Header.Get(admin.HeaderOperator) // named by hand
	}
	return consumer.Actor{Who: who, Reason: reason}
}

// window reads where a page begins and how long it is.
func window(r *http.Request) (after cursor, limit int, err error) {
	if after, err = readCursor(r.FormValue("after")); err != nil {
		return after, 0, err
	}
	limit = consumer.MaxPage
	if text := r.FormValue("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > consumer.MaxPage {
			return after, 0, fmt.Errorf("%w: limit must be 1 to %d", consumer.ErrInvalid, consumer.MaxPage)
		}
	}
	return after, limit, nil
}

func (h *handler) parked(r *http.Request) (any, error) {
	after, limit, err := window(r)
	if err != nil {
		return nil, err
	}
	items, err := h.o.Parked(r.Context(), consumer.ParkedFilter{
		Order: r.FormValue("order"), State: r.FormValue("state"),
		After: consumer.Place{Order: after.Key, Version: after.Version, Event: after.ID},
	}, limit)
	p := Page[consumer.ParkedEvent]{Items: items}
	if len(items) == limit {
		last := items[limit-1]
		p.Next = cursor{Key: last.Order, Version: last.Version, ID: last.Event}.String()
	}
	return p, err
}

func (h *handler) parkedOrder(r *http.Request) (any, error) {
	return one(h.o.ParkedOrder(r.Context(), r.FormValue("order")))
}

func (h *handler) retry(r *http.Request) (any, error) {
	ask, err := read[Retry](r)
	if err != nil {
		return nil, err
	}
	n, err := h.o.Retry(r.Context(), h.actor(r, ask.Reason), ask.RetryFilter)
	return Retried{n}, err
}

func (h *handler) skip(r *http.Request) (any, error) {
	ask, err := read[Skip](r)
	if err != nil {
		return nil, err
	}
	return Done{true}, h.o.Skip(r.Context(), h.actor(r, ask.Reason), ask.Order, ask.Range)
}

func (h *handler) fill(r *http.Request) (any, error) {
	ask, err := read[Fill](r)
	if err != nil {
		return nil, err
	}
	return Done{true}, h.o.Fill(r.Context(), h.actor(r, ask.Reason), ask.Order, []byte(ask.Body))
}

func (h *handler) letters(r *http.Request) (any, error) {
	after, limit, err := window(r)
	if err != nil {
		return nil, err
	}
	since, err := readTime(r.FormValue("since"))
	if err != nil {
		return nil, err
	}
	items, err := h.o.Letters(r.Context(), consumer.LetterFilter{
		Order: r.FormValue("order"), Since: since, Reason: r.FormValue("reason"),
	}, consumer.LetterPlace{At: database.Time(after.Number), ID: after.ID}, limit)
	p := Page[consumer.DeadLetter]{Items: items}
	if len(items) == limit {
		last := items[limit-1]
		p.Next = cursor{Number: database.Micros(last.At), ID: last.ID}.String()
	}
	return p, err
}

func (h *handler) letter(r *http.Request) (any, error) {
	return h.o.Letter(r.Context(), r.FormValue("id"))
}

func (h *handler) drop(r *http.Request) (any, error) {
	ask, err := read[Drop](r)
	if err != nil {
		return nil, err
	}
	return Done{true}, h.o.Drop(r.Context(), h.actor(r, ask.Reason), ask.ID)
}

func (h *handler) start(r *http.Request) (any, error) {
	ask, err := read[Start](r)
	if err != nil {
		return nil, err
	}
	return h.o.StartRedrive(r.Context(), h.actor(r, ask.Why), ask.LetterFilter, ask.Rate, ask.DryRun)
}

func (h *handler) cancel(r *http.Request) (any, error) {
	ask, err := read[Cancel](r)
	if err != nil {
		return nil, err
	}
	return Done{true}, h.o.CancelRedrive(r.Context(), h.actor(r, ask.Reason), ask.ID)
}

func (h *handler) actions(r *http.Request) (any, error) {
	after, limit, err := window(r)
	if err != nil {
		return nil, err
	}
	items, err := h.o.Actions(r.Context(), after.Number, limit)
	p := Page[consumer.Action]{Items: items}
	if len(items) == limit {
		p.Next = cursor{Number: items[limit-1].ID}.String()
	}
	return p, err
}
