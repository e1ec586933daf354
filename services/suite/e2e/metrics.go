package e2e

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Metric sums a metric over all processes of the line: every series whose name
// is name and whose labels contain each of the given texts.
func (l Line) Metric(ctx context.Context, name string, labels ...string) (float64, error) {
	var sum float64
	for _, admin := range l.Admins {
		n, err := metricOf(ctx, admin, name, labels)
		if err != nil {
			return 0, err
		}
		sum += n
	}
	return sum, nil
}

func metricOf(ctx context.Context, admin, name string, labels []string) (float64, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", nil)
	if err != nil {
		return 0, err
	}
	answer, err := reader.Do(request)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return 0, fmt.Errorf("GET %s/metrics: %s", admin, answer.Status)
	}
	var sum float64
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		series, value, ok := strings.Cut(lines.Text(), " ")
		if !ok || !matches(series, name, labels) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, fmt.Errorf("metric %s: %w", series, err)
		}
		sum += n
	}
	return sum, lines.Err()
}

func matches(series, name string, labels []string) bool {
	if series != name && !strings.HasPrefix(series, name+"{") {
		return false
	}
	for _, label := range labels {
		if !strings.Contains(series, label) {
			return false
		}
	}
	return true
}
