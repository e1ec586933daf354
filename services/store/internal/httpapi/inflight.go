package httpapi

import (
	"context"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pillarbox/pillarbox/services/store/internal/intake"
	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/services/store/internal/orderdb"
	"github.com/pillarbox/pillarbox/shared/coalesce"
)

// inFlight are the placements with an idempotency key that this process works on. It keeps
// clients that repeat in a hurry away from the database, whose unique key is what decides.
type inFlight = coalesce.Group[orderdb.Key, intake.Answer]

func newInFlight(wait time.Duration, keys int, reg prometheus.Registerer) (*inFlight, error) {
	group, err := coalesce.New[orderdb.Key, intake.Answer](coalesce.Config{Name: "idempotency", Wait: wait, Keys: keys})
	if err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	if err := reg.Register(group); err != nil {
		return nil, fmt.Errorf("httpapi: %w", err)
	}
	return group, nil
}

// placeOnce places the order, or waits for the answer of a request with the same key that does.
func (a *api) placeOnce(ctx context.Context, p order.Placement, keyed *intake.Keyed, t intake.Trace, size int) (
	intake.Answer, error,
) {
	place := func(ctx context.Context) (intake.Answer, error) { return a.Writer.Place(ctx, p, keyed, t, size) }
	if keyed == nil {
		return place(ctx)
	}
	answer, shared, err := a.inFlight.Do(ctx, keyed.Key, string(keyed.Fingerprint), place)
	answer.Replayed = answer.Replayed || shared
	return answer, err
}
