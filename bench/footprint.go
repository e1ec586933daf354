package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	suitebench "github.com/pillarbox/pillarbox/services/suite/bench"
	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// footprint starts a suite, waits, and places orders over HTTP until it holds many.
func footprint(ctx context.Context, e *env) (f figures, err error) {
	dir, err := e.folder("suite")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	api, err := freeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := freeAddress()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, e.Suite, "run", "--data", dir, "--http", api, "--admin", admin)
	cmd.Env = append(os.Environ(), "PILLARBOX_LOG_LEVEL=warn")
	begun := time.Now()
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		err = errors.Join(err, cmd.Wait())
	}()
	err = until(ctx, time.Minute, func() (bool, error) {
		answer, err := http.Get("http://" + admin + "/ready")
		if err != nil {
			return false, nil // not yet
		}
		_ = answer.Body.Close()
		return answer.StatusCode == http.StatusOK, nil
	})
	if err != nil {
		return nil, err
	}
	f = figures{"ready_ms": time.Since(begun).Seconds() * 1000}
	time.Sleep(5 * time.Second)
	if f["idle_mb"], err = rss(cmd.Process.Pid); err != nil {
		return nil, err
	}
	if err := placeOver(ctx, api, e.amount(100_000)); err != nil {
		return nil, err
	}
	time.Sleep(5 * time.Second)
	f["loaded_mb"], err = rss(cmd.Process.Pid)
	return f, err
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

func rss(pid int) (float64, error) { return suitebench.Memory(strconv.Itoa(pid), "VmRSS") }
