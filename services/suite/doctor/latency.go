package doctor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/services/store/storesvc"
	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

const (
	metricsTimeout = 3 * time.Second
	maxMetrics     = 16 << 20
	// A hundredth of fewer groups would be no group.
	enoughGroups = 100
	quantile     = 0.99
)

// slow reads from the services' metrics how long handling a group takes, by consumer. admins are the admin addresses
// by service; "" is that of all.
func (l *look) slow(ctx context.Context, s all.Settings, admins map[string]string) map[string]time.Duration {
	found := map[string]time.Duration{}
	for _, service := range l.services {
		admin, ok := admins[service]
		if !ok {
			admin = admins[""]
		}
		if service == storesvc.Name {
			continue // consumes nothing
		}
		if service == mailersvc.Name && s.Mailer.Rate > 0 {
			l.Of(service).Note(doctor.Deadline, service, "its groups wait for PILLARBOX_MAILER_RATE, so their times are not compared with the ack deadline")
			continue
		}
		took, groups, err := groupTime(ctx, admin, service)
		switch {
		case err != nil:
			l.Of(service).Note(doctor.Deadline, service, "its times could not be read from %s, so they are not compared with the ack deadline: %s", admin, err)
		case groups >= enoughGroups:
			found[service] = took
		}
	}
	return found
}

// groupTime is the 99th percentile of the time that a service's groups took since it started, and how many they are.
func groupTime(ctx context.Context, admin, service string) (time.Duration, float64, error) {
	host, port, err := net.SplitHostPort(admin)
	if err != nil {
		return 0, 0, fmt.Errorf("admin address: %w", err)
	}
	if host == "" || host == "0.0.0.0" || host == "::" { // a service that listens everywhere is asked here
		host = "127.0.0.1"
	}
	ctx, cancel := context.WithTimeout(ctx, metricsTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/metrics", nil)
	if err != nil {
		return 0, 0, err
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = answer.Body.Close() }() // only read from
	if answer.StatusCode != http.StatusOK {
		return 0, 0, fmt.Errorf("%s", answer.Status)
	}
	buckets, err := readBuckets(io.LimitReader(answer.Body, maxMetrics), "pillarbox_"+service+"_consumer_group_seconds")
	if err != nil || len(buckets) == 0 {
		return 0, 0, err
	}
	seconds := percentile(buckets)
	return time.Duration(seconds * float64(time.Second)), buckets[len(buckets)-1].count, nil
}

// bucket counts the observations up to a bound.
type bucket struct{ upTo, count float64 }

// readBuckets reads a histogram from the text format, by rising bound.
func readBuckets(text io.Reader, name string) ([]bucket, error) {
	var buckets []bucket
	lines := bufio.NewScanner(text)
	for lines.Scan() {
		labels, value, ok := strings.Cut(strings.TrimPrefix(lines.Text(), name+"_bucket{"), "} ")
		if !ok || !strings.HasPrefix(lines.Text(), name+"_bucket{") {
			continue
		}
		_, bound, _ := strings.Cut(labels, `le="`)
		bound, _, _ = strings.Cut(bound, `"`)
		upTo, err := strconv.ParseFloat(bound, 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: bound of %s: %w", name, err)
		}
		count, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return nil, fmt.Errorf("read metrics: value of %s: %w", name, err)
		}
		buckets = append(buckets, bucket{upTo, count})
	}
	slices.SortFunc(buckets, func(a, b bucket) int {
		switch {
		case a.upTo < b.upTo:
			return -1
		case a.upTo > b.upTo:
			return 1
		}
		return 0
	})
	return buckets, lines.Err()
}

// percentile interpolates within the bucket, as Prometheus does; beyond the last bound it is that bound.
func percentile(buckets []bucket) float64 {
	rank := quantile * buckets[len(buckets)-1].count
	low, below := 0.0, 0.0
	for _, b := range buckets {
		if b.count >= rank && b.count > below {
			if math.IsInf(b.upTo, 1) {
				return low
			}
			return low + (b.upTo-low)*(rank-below)/(b.count-below)
		}
		low, below = b.upTo, b.count
	}
	return low
}
