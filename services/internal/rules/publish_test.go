package rules_test

import (
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWhoPublishes: events come into the stream by the relay and go on by a consumer's step on a route. What else sends
// anything sends hints, answers, acknowledgements, or is an operator's command.
func TestWhoPublishes(t *testing.T) {
	t.Parallel()
	publishes := regexp.MustCompile(`\.(Publish(One|Atomic|All|Msg|Async|MsgAsync|Request)|Request(Msg)?(WithContext)?|Respond)\(|NATS\.Publish\(|[cC]onn\.Publish\(`)
	may := map[string]string{
		"shared/broker/":               "the publisher, acknowledgements, pull requests",
		"shared/outbox/":               "the relay, its replays and hints, registrations",
		"shared/consumer/route.go":     "the step along a route",
		"shared/lease/hints.go":        "hints of a lease that is free",
		"services/suite/queue/send.go": "an operator's command",
	}
	for path, body := range tree(t, ".go") {
		if strings.HasSuffix(path, "_test.go") || allowed(path, may) {
			continue
		}
		if strings.Contains(body, "nats") || strings.Contains(body, "broker") {
			require.NotRegexp(t, publishes, body, path)
		}
	}
}

func allowed(path string, may map[string]string) bool {
	for prefix := range may {
		if strings.HasPrefix(path, prefix) || strings.Contains(path, "bench/") { // measurements
			return true
		}
	}
	return false
}
