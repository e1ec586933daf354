package httpapi

import (
	"errors"
	"net/http"
	"time"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/coalesce"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/httpserver"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// problem says what a client is told about an error. What is not listed is a bare 500. The
// error's own text never gets into an answer: it may hold SQL.
func problem(err error) (p httpserver.Problem, listed bool) {
	const (
		soon  = time.Second
		later = 5 * time.Second
	)
	for _, known := range []struct {
		err    error
		status int
		retry  time.Duration
		detail string
	}{
		{orderdb.ErrNotFound, 404, 0, "there is no order with this id"},
		{order.ErrCancelled, 409, 0, "the order is cancelled and can no longer change"},
		{coalesce.ErrDeclined, 409, soon, "a request with this Idempotency-Key is under way"},
		{coalesce.ErrGaveUp, 409, soon, "a request with this Idempotency-Key is under way"},
		{intake.ErrVersion, 412, 0, "the order is at another version than If-Match names; read it again"},
		{intake.ErrTooLarge, 413, 0, "the order is too large to be published as an event"},
		{intake.ErrKeyReused, 422, 0, "the Idempotency-Key belongs to another request"},
		{coalesce.ErrDiffers, 422, 0, "the Idempotency-Key belongs to another request"},
		{coalesce.ErrFull, 503, soon, "too many requests are waiting"},
		{intake.ErrBusy, 503, soon, "too many requests are waiting"},
		{intake.ErrStopping, 503, soon, "the service is stopping or starting"},
		{intake.ErrBacklog, 503, later, "too many events wait for the broker"},
		{intake.ErrUnavailable, 503, soon, "the database is away"},
		// Only for requests that are safe to repeat; placementProblem answers for the others.
		{intake.ErrUnknown, 503, soon, "the connection to the database broke; repeat the request"},
	} {
		if errors.Is(err, known.err) {
			return httpserver.Problem{Status: known.status, Detail: known.detail, RetryAfter: known.retry}, true
		}
	}
	switch database.Classify(err) {
	case database.ClassUnavailable, database.ClassConflict:
		return httpserver.Problem{
			Status: http.StatusServiceUnavailable, Detail: "the database is away", RetryAfter: soon,
		}, true
	}
	return httpserver.Problem{Status: http.StatusInternalServerError}, false
}

// placementProblem is problem for an order that was to be placed, with an idempotency key or without.
func placementProblem(err error, keyed bool) (p httpserver.Problem, listed bool) {
	if errors.Is(err, intake.ErrUnknown) && !keyed {
		// A 503 invites a repetition, which could make a second order here.
		return httpserver.Problem{
			Status: http.StatusInternalServerError,
			Detail: "the connection to the database broke while the order was stored: it may have been placed or not; " +
				"look for it before repeating, and send an idempotency key to make repeating safe",
		}, true
	}
	return problem(err)
}

// fail answers with what problem says.
func (a *api) fail(w http.ResponseWriter, r *http.Request, err error) {
	p, listed := problem(err)
	a.refuse(w, r, p, listed, err)
}

// refuse answers with p. The error behind it is logged when the list does not know it.
func (a *api) refuse(w http.ResponseWriter, r *http.Request, p httpserver.Problem, listed bool, err error) {
	if !listed && r.Context().Err() == nil {
		a.Log.ErrorContext(r.Context(), "request failed", logs.Error, err)
	}
	p.Write(w)
}
