package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// The contract at the admin port, below /admin/<service>/reconcile/. All of it only reads. A question is a page of at
// most MaxEvents events; unknown fields are ignored on both sides, so that either may be the newer one.
//
//	of the store      GET  overview?since=&order=            Overview
//	                  GET  events?since=&order=&after=&up_to= [Event]
//	                  GET  orders?since=&order=&after=       OrderPage
//	                  POST places   {subscriber, events}     [Place], in the order of the events
//	                  POST unknown  {ids}                    [id]
//	of a subscriber   POST states   {events}                 Answer, its states in the order of the events
//	                  GET  held?since=&order=&cursor=        HeldPage
//	of both           GET  role                              {"role": "store"} or {"role": "subscriber"}
const (
	// Part is where an account is mounted below its service (admin.Checks.MountPart).
	Part = "reconcile"

	pathPrefix = "/" + Part + "/"
	// maxBody has room for a page of events with the longest ids.
	maxBody = 1 << 20
	// answerTimeout bounds one answer.
	answerTimeout = 30 * time.Second
)

// Roles of a service.
const (
	roleStore      = "store"
	roleSubscriber = "subscriber"
)

type role struct {
	Role string `json:"role"`
}

type placesQuestion struct {
	Subscriber string  `json:"subscriber"`
	Events     []Event `json:"events"`
}

type statesQuestion struct {
	Events []Event `json:"events"`
}

type unknownQuestion struct {
	IDs []string `json:"ids"`
}

// StoreHandler serves s.
func StoreHandler(s Store, log *slog.Logger) http.Handler {
	return routes(roleStore, log, func(h handler) {
		h.Get("/overview", h.answer(func(r *http.Request) (any, error) {
			w, err := window(r)
			if err != nil {
				return nil, err
			}
			return s.Overview(r.Context(), w)
		}))
		h.Get("/events", h.answer(func(r *http.Request) (any, error) {
			w, err := window(r)
			after, first := strconv.ParseInt(r.FormValue("after"), 10, 64)
			upTo, second := strconv.ParseInt(r.FormValue("up_to"), 10, 64)
			if err := errors.Join(err, first, second); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrInvalid, err)
			}
			return s.Events(r.Context(), w, after, upTo)
		}))
		h.Get("/orders", h.answer(func(r *http.Request) (any, error) {
			w, err := window(r)
			if err != nil {
				return nil, err
			}
			return s.Orders(r.Context(), w, r.FormValue("after"))
		}))
		h.Post("/places", h.answer(func(r *http.Request) (any, error) {
			q, err := read[placesQuestion](r)
			if err != nil {
				return nil, err
			}
			return s.Places(r.Context(), q.Subscriber, q.Events)
		}))
		h.Post("/unknown", h.answer(func(r *http.Request) (any, error) {
			q, err := read[unknownQuestion](r)
			if err != nil {
				return nil, err
			}
			return s.Unknown(r.Context(), q.IDs)
		}))
	})
}

// SubscriberHandler serves s.
func SubscriberHandler(s Subscriber, log *slog.Logger) http.Handler {
	return routes(roleSubscriber, log, func(h handler) {
		h.Post("/states", h.answer(func(r *http.Request) (any, error) {
			q, err := read[statesQuestion](r)
			if err != nil {
				return nil, err
			}
			return s.States(r.Context(), q.Events)
		}))
		h.Get("/held", h.answer(func(r *http.Request) (any, error) {
			w, err := window(r)
			if err != nil {
				return nil, err
			}
			return s.Held(r.Context(), w, r.FormValue("cursor"))
		}))
	})
}

type handler struct {
	chi.Router
	log *slog.Logger
}

func routes(name string, log *slog.Logger, add func(handler)) http.Handler {
	root := chi.NewRouter()
	root.NotFound(httpserver.NotFound)
	root.MethodNotAllowed(httpserver.MethodNotAllowed)
	root.Route(strings.TrimSuffix(pathPrefix, "/"), func(r chi.Router) {
		h := handler{r, log}
		h.Get("/role", h.answer(func(*http.Request) (any, error) { return role{name}, nil }))
		add(h)
	})
	return root
}

func (h handler) answer(do func(*http.Request) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
		defer cancel()
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		answer, err := do(r.WithContext(ctx))
		if err != nil {
			h.refuse(ctx, w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Cache-Control", "no-store")
		// The status line is out; an error here means that the client has gone.
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// refuse answers an error. What the database or the broker said stays in the log.
func (h handler) refuse(ctx context.Context, w http.ResponseWriter, err error) {
	var tooLarge *http.MaxBytesError
	p := httpserver.Problem{Status: http.StatusServiceUnavailable, Detail: "its database or the broker cannot be asked now", RetryAfter: time.Second}
	switch {
	case errors.As(err, &tooLarge):
		p = httpserver.Problem{Status: http.StatusRequestEntityTooLarge}
	case errors.Is(err, ErrInvalid):
		p = httpserver.Problem{Status: http.StatusBadRequest, Detail: err.Error()}
	default:
		h.log.WarnContext(ctx, "question about events not answered", logs.Error, err)
	}
	p.Write(w)
}

func read[T any](r *http.Request) (v T, err error) {
	if err := json.NewDecoder(r.Body).Decode(&v); err != nil {
		return v, fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	return v, nil
}

func window(r *http.Request) (w Window, err error) {
	w.Order = r.FormValue("order")
	if text := r.FormValue("since"); text != "" {
		if w.Since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return w, fmt.Errorf("%w: since must be a time such as 2026-11-30T11:00:00Z", ErrInvalid)
		}
	}
	return w, nil
}

// CheckPage reports a question that is too long.
func CheckPage(n int) error {
	if n > MaxEvents {
		return fmt.Errorf("%w: at most %d events in one question", ErrInvalid, MaxEvents)
	}
	return nil
}
