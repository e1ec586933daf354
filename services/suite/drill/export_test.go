package drill

import "github.com/pillarbox/pillarbox/services/suite/e2e"

// Environment is for tests.
var Environment = environment

// Mails are orders and versions in the order of their appearance.
func (r *Report) Mails(facts []e2e.Fact, mails ...e2e.Fact) {
	var places []place
	for _, m := range mails {
		places = append(places, place{m.Order, m.Version})
	}
	r.match("mail", facts, places)
	r.order(places)
}
