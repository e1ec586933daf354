// Package pickuptest is a disk in memory that loses power: afterwards only what
// was fsynced is left. Only tests import it.
//
// It is more cruel than file systems are: a new name survives only if its
// folder was fsynced afterwards, a file's content only if the file was. A
// rename survives whole or not at all; with Split it is two entries that
// survive apart. As in a kernel, a failed fsync forgets: the next one succeeds
// and makes nothing durable until there is something new to write.
package pickuptest

import (
	"errors"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
)

// ErrPower is what every step returns after the power went.
var ErrPower = errors.New("power is off")

// Step is one change or fsync, about to happen.
type Step struct {
	Kind string // create, write, sync, rename, remove, mkdir, syncdir
	Name string // within the folder
}

// Disk implements pickup.Disk. Its fields are set before use.
type Disk struct {
	Split bool
	Now   func() time.Time // default time.Now
	// Before is asked before each step; its error is the step's, and the step does not happen.
	Before func(Step) error

	mu       sync.Mutex // guards the rest
	live     map[string]*node
	durable  map[string]*node
	pending  []change
	appeared []string
	off      bool
}

// node is a file or, with dir, a folder.
type node struct {
	dir          bool
	data, onDisk []byte
	lost         bool // a failed fsync made data look clean
	modified     time.Time
}

// change is a change of entries that is not durable yet.
type change struct {
	apply   func(map[string]*node)
	folders []string // whose fsync makes it durable
	node    *node
	lost    bool // a failed fsync made it look clean
}

// New returns an empty disk with power.
func New() *Disk {
	return &Disk{live: map[string]*node{}, durable: map[string]*node{}}
}

// PowerLoss drops what was not fsynced and switches the power on again.
func (d *Disk) PowerLoss() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.live, d.pending, d.off = maps.Clone(d.durable), nil, false
	for _, n := range d.live {
		n.data, n.lost = slices.Clone(n.onDisk), false
	}
}

// Off makes every step fail until PowerLoss.
func (d *Disk) Off() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.off = true
}

// Wipe replaces everything by nothing, durably: an empty folder was mounted in place.
func (d *Disk) Wipe() (restore func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	live, durable := d.live, d.durable
	d.live, d.durable, d.pending = map[string]*node{}, map[string]*node{}, nil
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.live, d.durable = live, durable
	}
}

// Appeared returns the names that appeared in any pickup folder, in order.
func (d *Disk) Appeared() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.appeared)
}

// Files returns the contents of the files in a folder whose names end in .eml.
func (d *Disk) Files(folder string) map[string][]byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	found := map[string][]byte{}
	for name, n := range d.live {
		if path.Dir(name) == path.Clean(folder) && !n.dir && strings.HasSuffix(name, ".eml") {
			found[path.Base(name)] = slices.Clone(n.data)
		}
	}
	return found
}

// Put makes a durable file, as somebody else would.
func (d *Disk) Put(name string, data []byte) {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := &node{data: data, onDisk: data, modified: d.now()}
	d.live[path.Clean(name)], d.durable[path.Clean(name)] = n, n
}

// Take removes a file as a mail server does, with whatever durability its name had.
func (d *Disk) Take(name string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name = path.Clean(name)
	if d.durable[name] != nil {
		delete(d.durable, name)
	}
	d.change(d.live[name], []string{path.Dir(name)}, func(m map[string]*node) { delete(m, name) })
}

func (d *Disk) now() time.Time {
	if d.Now != nil {
		return d.Now()
	}
	return time.Now()
}

// step announces a step. The caller holds the lock.
func (d *Disk) step(kind, name string) error {
	if d.off {
		return ErrPower
	}
	if d.Before == nil {
		return nil
	}
	err := d.Before(Step{kind, name})
	if errors.Is(err, ErrPower) {
		d.off = true
	}
	return err
}

// change applies a change of entries to the live tree and remembers it.
func (d *Disk) change(n *node, folders []string, apply func(map[string]*node)) {
	apply(d.live)
	// New entries make the folder dirty again, with everything in it.
	for i := range d.pending {
		if slices.ContainsFunc(d.pending[i].folders, func(f string) bool { return slices.Contains(folders, f) }) {
			d.pending[i].lost = false
		}
	}
	d.pending = append(d.pending, change{apply: apply, folders: folders, node: n})
}

// syncFolder makes the changes of a folder durable, with the earlier ones of the same files.
func (d *Disk) syncFolder(folder string) {
	files := map[*node]bool{}
	for _, c := range d.pending {
		if slices.Contains(c.folders, folder) && !c.lost && !d.Split {
			files[c.node] = true
		}
	}
	d.pending = slices.DeleteFunc(d.pending, func(c change) bool {
		if c.lost || !slices.Contains(c.folders, folder) && !files[c.node] {
			return false
		}
		c.apply(d.durable)
		return true
	})
}

func (d *Disk) failSync(folder string) {
	for i := range d.pending {
		if slices.Contains(d.pending[i].folders, folder) {
			d.pending[i].lost = true
		}
	}
}

// Open opens a folder.
func (d *Disk) Open(name string) (pickup.Folder, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.off {
		return nil, ErrPower
	}
	name = path.Clean(name)
	if n := d.live[name]; n == nil || !n.dir {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &folder{d, name}, nil
}

// Make makes a folder, durably.
func (d *Disk) Make(name string, _ fs.FileMode) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	name = path.Clean(name)
	if d.live[name] != nil {
		return nil
	}
	if err := d.step("mkdir", name); err != nil {
		return err
	}
	n := &node{dir: true, modified: d.now()}
	d.live[name], d.durable[name] = n, n
	return nil
}
