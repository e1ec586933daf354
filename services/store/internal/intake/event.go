package intake

import (
	"fmt"

	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/store/internal/order"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/outbox"
)

// event makes the event that says that j brought the order to where it is.
func (in *Intake) event(o order.Order, j *job) (outbox.Row, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return outbox.Row{}, fmt.Errorf("new event id: %w", err)
	}
	e := events.Event{
		ID: id.String(), Source: events.Source, Type: j.eventType, Time: o.UpdatedAt, Subject: o.ID, Version: o.Version,
		CorrelationID: j.trace.CorrelationID, Traceparent: j.trace.Traceparent,
	}
	payload, err := e.EncodeOrder(body(o))
	if err != nil {
		return outbox.Row{}, err
	}
	if len(payload) > in.config.MaxEvent {
		return outbox.Row{}, ErrTooLarge
	}
	return outbox.Row{Event: e, Payload: payload}, nil
}

func body(o order.Order) events.Order {
	items := make([]events.Item, len(o.Items))
	for i, item := range o.Items {
		items[i] = events.Item{
			SKU: item.SKU, Name: item.Name, Quantity: item.Quantity, UnitPrice: item.UnitPrice.String(),
		}
	}
	return events.Order{
		ID: o.ID, Version: o.Version, Status: string(o.Status),
		Customer: events.Customer{Email: o.Customer.Email, Name: o.Customer.Name, Locale: o.Customer.Locale},
		Currency: o.Currency, Items: items, Total: o.Total.String(), Reference: o.Reference, PlacedAt: o.PlacedAt,
	}
}
