package rules_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAlertRules has Prometheus' own tool read the rules and try them on series.
func TestAlertRules(t *testing.T) {
	t.Parallel()
	promtool, err := exec.LookPath("promtool")
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "promtool is missing (Debian: prometheus)")
		t.Skip("NOT CHECKED: promtool is missing, so nobody has read the alert rules (Debian: apt-get install prometheus)")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yml"}, {"test", "rules", "alerts_test.yml"}} {
		cmd := exec.Command(promtool, args...)
		cmd.Dir = filepath.Join(root(t), "services", "deploy")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "promtool %v: %s", args, out)
	}
}

// TestAlertsAreTried keeps the tests of the rules whole, and each rule with something to do about it.
func TestAlertsAreTried(t *testing.T) {
	t.Parallel()
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(root(t), "services", "deploy", name))
		require.NoError(t, err)
		return string(text)
	}
	rules, tests := read("alerts.yml"), read("alerts_test.yml")
	count := func(text, pattern string) int { return len(regexp.MustCompile(pattern).FindAllString(text, -1)) }
	alerts := count(rules, `(?m)^      - alert: Pillarbox\w+$`)
	require.Equal(t, alerts, count(rules, `labels: \{severity: (page|ticket)\}`))
	require.Equal(t, alerts, count(rules, `(?m)^          summary: ".+"$`))
	require.Equal(t, alerts, count(rules, `(?m)^          run: ".+"$`))
	for _, metric := range regexp.MustCompile(`pillarbox_(?:\.\+_)?([a-z_]+)`).FindAllStringSubmatch(rules, -1) {
		require.Contains(t, tests, metric[1], "no test has a series of it")
	}
}
