//go:build failpoint && unix

package failpoint

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// stopped is a time within which the kernel has stopped every thread.
const stopped = 50 * time.Millisecond

// Enabled tells a test whether this build can die at a failpoint.
const Enabled = true

// armed is the failpoint of this process.
type armed struct {
	name  string
	count int64
	pause bool
	hits  atomic.Int64
}

// The environment is read once, at the first Hit.
var current = sync.OnceValue(func() *armed {
	a, err := parse(os.Getenv(Environment))
	if err != nil {
		panic(fmt.Sprintf("%s: %v", Environment, err))
	}
	return a
})

// Hit kills or stops the process when name is the armed failpoint and its count is reached.
func Hit(name string) {
	a := current()
	if a.name != name || a.hits.Add(1) != a.count {
		return
	}
	fmt.Fprintln(os.Stderr, "failpoint: "+name)
	if a.pause {
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		// The signal stops one thread after the other: this one shall do nothing until it is its turn.
		time.Sleep(stopped)
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // the signal is on its way: nothing after this step may happen
}

func parse(setting string) (*armed, error) {
	a := &armed{count: 1}
	if setting == "" {
		return a, nil
	}
	rest, pause := strings.CutSuffix(setting, ":pause")
	name, count, counted := strings.Cut(rest, ":")
	if counted {
		n, err := strconv.ParseInt(count, 10, 64)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("count %q is not a number from 1 up", count)
		}
		a.count = n
	}
	if name == "" || !counted && !pause {
		return nil, fmt.Errorf("%q is not name:count, name:count:pause or name:pause", setting)
	}
	a.name, a.pause = name, pause
	return a, nil
}
