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
	seen, err := l.Scrape(ctx)
	if err != nil {
		return 0, err
	}
	return seen.Sum(name, labels...), nil
}

// Scrape is what the processes of a line showed, each at one moment.
type Scrape []sample

type sample struct {
	series string
	value  float64
}

// Scrape reads each process once, so that the series of one process fit together.
func (l Line) Scrape(ctx context.Context) (Scrape, error) {
	var all Scrape
	for _, admin := range l.Admins {
		seen, err := scrape(ctx, admin)
		if err != nil {
			return nil, err
		}
		all = append(all, seen...)
	}
	return all, nil
}

// Sum adds every series whose name is name and whose labels contain each of the given texts.
func (s Scrape) Sum(name string, labels ...string) float64 {
	var sum float64
	for _, one := range s {
		if matches(one.series, name, labels) {
			sum += one.value
		}
	}
	return sum
}

func scrape(ctx context.Context, admin string) (Scrape, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, admin+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := reader.Do(request)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET %s/metrics: %s", admin, answer.Status)
	}
	var seen Scrape
	lines := bufio.NewScanner(answer.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		n, err := strconv.ParseFloat(lines.Text()[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("metric %s: %w", lines.Text(), err)
		}
		seen = append(seen, sample{lines.Text()[:at], n})
	}
	return seen, lines.Err()
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
