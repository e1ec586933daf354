package inprocess_test

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/inprocess"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// TestEveryMetricOfTheAlertsExists asks a running suite: a rule on a metric that nobody has never fires.
func TestEveryMetricOfTheAlertsExists(t *testing.T) {
	t.Parallel()
	// Those that a suite with its default settings does not have, and the files that make them.
	elsewhere := map[string]string{
		"pillarbox_mailer_oldest_queued_delivery_seconds": "../../mailer/internal/sender/metrics.go",
		"pillarbox_mailer_smtp_down":                      "../../mailer/internal/sender/metrics.go",
		"pillarbox_mailer_unknown_deliveries":             "../../mailer/internal/sender/metrics.go",
		"pillarbox_reconcile_findings":                    "../reconcile/watch.go",
		"pillarbox_reconcile_last_run_timestamp_seconds":  "../reconcile/watch.go",
		"pillarbox_reconcile_not_answered":                "../reconcile/watch.go",
	}
	rules, err := os.ReadFile(filepath.Join("..", "..", "deploy", "alerts.yml"))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	suite, err := inprocess.Start(ctx, inprocess.Config{Data: t.TempDir(), HTTP: "127.0.0.1:0", Admin: "127.0.0.1:0"}, logs.Discard())
	require.NoError(t, err)
	series := shown(t, suite.Admin())
	cancel()
	require.NoError(t, suite.Wait())

	// A metric by its name, or by a pattern for that of any service; with the label that a rule asks for.
	uses := regexp.MustCompile(`(?:__name__=~")?(pillarbox_[a-z_.+]+)"?(?:, (state|result)="(\w+)")?`).FindAllStringSubmatch(string(rules), -1)
	require.Greater(t, len(uses), 20)
	for _, use := range uses {
		pattern := regexp.MustCompile("^" + use[1] + `(\{|$)`)
		if file, ok := elsewhere[use[1]]; ok {
			source, err := os.ReadFile(file)
			require.NoError(t, err)
			require.Contains(t, string(source), `"`+strings.TrimPrefix(use[1], "pillarbox_mailer_")+`"`)
			continue
		}
		require.True(t, slices.ContainsFunc(series, func(s string) bool {
			return pattern.MatchString(s) && (use[2] == "" || strings.Contains(s, use[2]+`="`+use[3]+`"`))
		}), "no process has %s", use[0])
	}
}

// shown are the series at an admin address, without their values.
func shown(t *testing.T, admin string) []string {
	t.Helper()
	answer, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Get("http://" + admin + "/metrics")
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	var series []string
	for line := range strings.Lines(string(text)) {
		if name, _, ok := strings.Cut(line, " "); ok && !strings.HasPrefix(line, "#") {
			series = append(series, name)
		}
	}
	return series
}
