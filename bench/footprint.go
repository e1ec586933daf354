package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/all"
	suitebench "github.com/pillarbox/pillarbox/services/suite/bench"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// settle is how long a process is left alone before it is looked at.
const settle = 5 * time.Second

// measureFootprint starts the programs and looks at them from outside.
func measureFootprint(ctx context.Context, e *env) error {
	r, err := measure(ctx, e, []benchCase{
		{"suite", func(ctx context.Context) (figures, error) { return suiteFootprint(ctx, e) }},
		{"services", func(ctx context.Context) (figures, error) { return servicesFootprint(ctx, e) }},
	})
	if err != nil {
		return err
	}
	e.atMost("T7", "suite-ready-of-1s", r.median("suite", "ready_ms")/1000, 1)
	e.atMost("T7", "suite-idle-rss-of-60MB", r.median("suite", "idle_mb")/60, 1)
	e.atMost("T7", "suite-loaded-rss-of-150MB", r.median("suite", "loaded_mb")/150, 1)
	e.atMost("T7", "suite-more-to-loaded-rss", r.within("suite", "more_mb", "loaded_mb"), 1.1)
	for _, service := range all.Names() {
		e.atMost("T7", service+"-idle-rss-of-30MB", r.median("services", service+"_mb")/30, 1)
		e.atMost("T7", service+"-ready-of-1s", r.median("services", service+"_ready_ms")/1000, 1)
		info, err := os.Stat(e.program(service))
		if err != nil {
			return fmt.Errorf("%w: \"make build\" makes it", err)
		}
		e.atMost("T7", service+"-binary-of-30MB", float64(info.Size())/(30<<20), 1)
	}
	return nil
}

// program is the path of a service's program, which lies beside the suite's.
func (e *env) program(name string) string { return filepath.Join(filepath.Dir(e.Suite), name) }

// suiteFootprint starts a suite, waits, and places orders over HTTP until it holds many, and then half as many more.
func suiteFootprint(ctx context.Context, e *env) (f figures, err error) {
	dir, err := e.folder("suite")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	p, api, err := program(e.Suite, dir+".log", "run", "--data", dir)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	f = figures{}
	if f["ready_ms"], err = runTimed(ctx, p); err != nil {
		return nil, err
	}
	if f["idle_mb"], err = settled(ctx, p); err != nil {
		return nil, err
	}
	for _, load := range []struct {
		figure string
		orders int
	}{{"loaded_mb", 100_000}, {"more_mb", 50_000}} {
		if err := placeOver(ctx, api, e.amount(load.orders)); err != nil {
			return nil, err
		}
		if f[load.figure], err = settled(ctx, p); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// servicesFootprint starts each service as a program of its own. The store comes first: it makes the stream that the others wait for.
func servicesFootprint(ctx context.Context, e *env) (f figures, err error) {
	server, _, stop, err := e.broker(ctx)
	if err != nil {
		return nil, err
	}
	defer stop()
	f = figures{}
	var running []*e2e.Process
	defer func() {
		for _, p := range running {
			err = errors.Join(err, p.Stop())
		}
	}()
	for _, service := range all.Names() {
		dir, err := e.folder(service)
		if err != nil {
			return nil, err
		}
		url, drop, err := e.postgres(ctx, service)
		if err != nil {
			return nil, err
		}
		defer drop()
		p, _, err := program(e.program(service), dir+".log")
		if err != nil {
			return nil, err
		}
		p.Env = append(p.Env, "PILLARBOX_DATABASE_URL="+url, "PILLARBOX_MAILER_PICKUP="+filepath.Join(dir, "pickup"),
			"PILLARBOX_NATS_URL="+strings.Replace(server.ClientURL(), "://", "://"+server.Token()+"@", 1))
		running = append(running, p)
		if f[service+"_ready_ms"], err = runTimed(ctx, p); err != nil {
			return nil, err
		}
	}
	for n, service := range all.Names() {
		if f[service+"_mb"], err = settled(ctx, running[n]); err != nil {
			return nil, err
		}
	}
	return f, nil
}

// program is a process that is ready when its admin port says so, and the address of its API.
func program(path, log string, args ...string) (p *e2e.Process, api string, err error) {
	api, err = freeAddress()
	if err != nil {
		return nil, "", err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, "", err
	}
	name := filepath.Base(path)
	args = append(args, "--admin", admin)
	if name != "mailer" { // which has no API
		args = append(args, "--http", api)
	}
	return &e2e.Process{
		Name: name, Path: path, Args: args, Env: []string{"PILLARBOX_LOG_LEVEL=warn"}, Log: log,
		Ready: func(context.Context) error {
			answer, err := http.Get("http://" + admin + "/ready")
			if err != nil {
				return err
			}
			if err := answer.Body.Close(); err != nil || answer.StatusCode == http.StatusOK {
				return err
			}
			return errors.New(answer.Status)
		},
	}, api, nil
}

// runTimed starts p and returns the milliseconds until it was ready.
func runTimed(ctx context.Context, p *e2e.Process) (float64, error) {
	begun := time.Now()
	err := p.Run(ctx)
	return time.Since(begun).Seconds() * 1000, err
}

// settled waits and returns the resident memory of p in megabytes.
func settled(ctx context.Context, p *e2e.Process) (float64, error) {
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	return suitebench.Memory(strconv.Itoa(p.PID()), "VmRSS")
}

func placeOver(ctx context.Context, api string, orders int) error {
	var left atomic.Int64
	left.Store(int64(orders))
	errs := make([]error, 16)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = client(ctx, api, &left) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func freeAddress() (string, error) {
	port, err := e2e.FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
