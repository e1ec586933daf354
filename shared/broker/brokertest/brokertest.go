// Package brokertest gives tests a JetStream server of their own. Only tests import it.
package brokertest

import (
	"testing"

	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/broker/embedded"
)

// Server starts an embedded server in a temporary folder, stopped at the end of the test.
func Server(t testing.TB) *embedded.Server { panic("skeleton") }

// Connect returns a connection to s, closed at the end of the test.
func Connect(t testing.TB, s *embedded.Server) *broker.Conn { panic("skeleton") }
