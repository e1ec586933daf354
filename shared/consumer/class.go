package consumer

// Class is what a failure means (DESIGN 5.7).
type Class int

const (
	// Transient: this message failed now; it is parked and tried again.
	Transient Class = iota
	// Outage: something that every message needs is down; the consumer pauses and burns no attempts.
	Outage
	// Permanent: this message can never work; it becomes a dead letter at once.
	Permanent
)

// AsOutage marks err as an outage, AsPermanent as permanent. Both wrap.
func AsOutage(err error) error { panic("skeleton") }

// AsPermanent marks err as permanent.
func AsPermanent(err error) error { panic("skeleton") }

// Classify returns the class of err: what it was marked as, an unavailable database is an outage, an
// undecodable event permanent, everything else transient.
func Classify(err error) Class { panic("skeleton") }
