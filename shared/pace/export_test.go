package pace

import (
	"context"
	"time"
)

// SetClocks replaces this process's clock and the database's, an SQL expression.
func (p *Pacer) SetClocks(now func() time.Time, database func() string) {
	p.now, p.databaseNow = now, database
}

// Step is one step of Wait: 0 when n events passed, else how long to wait for the next.
func (p *Pacer) Step(ctx context.Context, n int) (time.Duration, error) { return p.step(ctx, n) }

// Lease takes a lease without spending it.
func (p *Pacer) Lease(ctx context.Context, n int) error { return p.lease(ctx, n) }

// Hold gives the Pacer events to spend.
func (p *Pacer) Hold(n int, valid time.Duration) {
	now := p.now()
	p.held = shares{{n: n, from: now, void: now.Add(valid)}}
}

// Held is how many events it holds, void or not.
func (p *Pacer) Held() (n int) {
	for _, h := range p.held {
		n += h.n
	}
	return n
}

// Chunk is the most it leases for one event, Cost how long the budget takes to grow by n.
func (p *Pacer) Chunk() int { return p.law.chunk }

// Cost is how long the budget takes to grow by n events.
func (p *Pacer) Cost(n int) time.Duration { return time.Duration(p.law.cost(n)) * time.Microsecond }

// Validity of an event.
func (p *Pacer) Validity() time.Duration { return time.Duration(p.law.validity) * time.Microsecond }

// Tolerance of the budget.
func (p *Pacer) Tolerance() time.Duration { return time.Duration(p.law.tolerance) * time.Microsecond }
