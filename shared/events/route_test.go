package events_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/events"
)

func TestRoute(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "mailer", "mailer,audit,loyalty", "a-1,b_2", strings.Repeat("a", 64)} {
		route, err := events.ParseRoute(text)
		require.NoError(t, err, text)
		require.Equal(t, text, route.String())
	}
	var long []string
	for n := range events.MaxRoute {
		long = append(long, fmt.Sprint("c", n))
	}
	_, err := events.ParseRoute(strings.Join(long, ","))
	require.NoError(t, err)
	for _, text := range []string{
		",", "a,", ",a", "a,,b", "A", "a b", "a, b", "1a", "-a", "a.b", "a>", "ä", "a,a", "b,a,b", "a\n",
		strings.Repeat("a", 65), strings.Join(append(long, "more"), ","), strings.Repeat("x", 1<<20),
	} {
		_, err := events.ParseRoute(text)
		require.ErrorIs(t, err, events.ErrRoute, "%.80q", text)
	}
}

func TestRoutesAreJoined(t *testing.T) {
	t.Parallel()
	require.Equal(t, "a,b,c,d", events.Route{"a", "b", "c"}.With(events.Route{"b", "a", "d"}).String())
	require.Equal(t, "a", events.Route{"a"}.With(nil).String())
	require.Equal(t, "a", events.Route(nil).With(events.Route{"a"}).String())
}
