package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/shared/events"
)

// ErrSlow: what Until waits for takes too long.
var ErrSlow = errors.New("it takes too long")

// Until polls.
func Until(ctx context.Context, every, limit time.Duration, done func() (bool, error)) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	deadline := time.Now().Add(limit)
	for time.Now().Before(deadline) {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return ErrSlow
}

// Placed is the n-th of many placed orders, of 5,000 customers, as an event and its bytes.
func Placed(n int) (events.Event, []byte, error) {
	now := time.Now().UTC().Truncate(time.Microsecond)
	o := events.Order{
		ID: uuid.NewString(), Version: 1, Status: "placed", Currency: "EUR", Total: "38.00", PlacedAt: now,
		Customer: events.Customer{Email: fmt.Sprintf("customer%d@example.com", n%5000), Name: "Ada Lovelace"},
		Items: []events.Item{
			{SKU: "TEA-01", Name: "Green tea", Quantity: 2, UnitPrice: "4.50"},
			{SKU: "CUP-07", Name: "Cup, white, 0.3 l", Quantity: 4, UnitPrice: "7.25"},
		},
	}
	data, err := json.Marshal(o)
	if err != nil {
		return events.Event{}, nil, err
	}
	e := events.Event{
		ID: uuid.Must(uuid.NewV7()).String(), Source: events.Source, Type: events.TypePlaced, Time: now, Subject: o.ID, Version: 1, Data: data,
	}
	raw, err := e.Encode()
	return e, raw, err
}

// WriteFiles writes files of data into the folder, ten at a time: each is written, fsynced and renamed, which is the
// limit of the disk for a mailer that did nothing else.
func WriteFiles(dir string, files int, data []byte) error {
	work := make(chan int)
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			for n := range work {
				if errs[i] == nil {
					errs[i] = writeFile(filepath.Join(dir, fmt.Sprintf("%d.eml", n)), data)
				}
			}
		})
	}
	for n := range files {
		work <- n
	}
	close(work)
	wg.Wait()
	return errors.Join(errs...)
}

func writeFile(path string, data []byte) error {
	f, err := os.Create(path + ".tmp")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(path+".tmp", path)
}

// Memory is a figure of a process in MB, from its status in /proc: VmRSS, or VmHWM for the most so far. It is
// 0 where there is no such file.
func Memory(process, figure string) (float64, error) {
	data, err := os.ReadFile("/proc/" + process + "/status")
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil // not Linux
	}
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var kb float64
		if n, _ := fmt.Sscanf(line, figure+": %f kB", &kb); n == 1 {
			return kb / 1024, nil
		}
	}
	return 0, nil
}
