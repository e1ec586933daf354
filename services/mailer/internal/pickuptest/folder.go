package pickuptest

import (
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
)

type folder struct {
	disk *Disk
	path string
}

func (f *folder) at(name string) string { return path.Join(f.path, name) }

func missing(op, name string) error { return &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist} }

func (f *folder) Create(name string, _ fs.FileMode) (pickup.File, error) {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("create", name); err != nil {
		return nil, err
	}
	full := f.at(name)
	if d.live[full] != nil {
		return nil, &fs.PathError{Op: "create", Path: name, Err: fs.ErrExist}
	}
	if parent := d.live[path.Dir(full)]; parent == nil || !parent.dir {
		return nil, missing("create", name)
	}
	n := &node{modified: d.now()}
	d.change(n, []string{path.Dir(full)}, func(m map[string]*node) { m[full] = n })
	return &file{d, n, name}, nil
}

func (f *folder) Head(name string, most int64) ([]byte, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.off {
		return nil, ErrPower
	}
	n := f.disk.live[f.at(name)]
	if n == nil {
		return nil, missing("read", name)
	}
	return slices.Clone(n.data[:min(int64(len(n.data)), most)]), nil
}

func (f *folder) Stat(name string) (pickup.Entry, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if f.disk.off {
		return pickup.Entry{}, ErrPower
	}
	n := f.disk.live[f.at(name)]
	if n == nil {
		return pickup.Entry{}, missing("stat", name)
	}
	return pickup.Entry{Name: path.Base(name), Modified: n.modified, Dir: n.dir}, nil
}

func (f *folder) Mkdir(name string, _ fs.FileMode) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("mkdir", name); err != nil {
		return err
	}
	full := f.at(name)
	if d.live[full] != nil {
		return nil
	}
	n := &node{dir: true, modified: d.now()}
	d.change(n, []string{f.path}, func(m map[string]*node) { m[full] = n })
	return nil
}

func (f *folder) Rename(oldName, newName string) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("rename", newName); err != nil {
		return err
	}
	from, to := f.at(oldName), f.at(newName)
	n := d.live[from]
	if n == nil {
		return missing("rename", oldName)
	}
	if d.live[to] != nil {
		return &fs.PathError{Op: "rename", Path: newName, Err: fs.ErrExist}
	}
	enter := func(m map[string]*node) { m[to] = n }
	leave := func(m map[string]*node) { delete(m, from) }
	if d.Split {
		d.change(n, []string{path.Dir(to)}, enter)
		d.change(n, []string{path.Dir(from)}, leave)
	} else {
		d.change(n, []string{path.Dir(from), path.Dir(to)}, func(m map[string]*node) { leave(m); enter(m) })
	}
	if path.Dir(newName) == "." && !strings.HasPrefix(newName, ".") {
		d.appeared = append(d.appeared, newName)
	}
	return nil
}

func (f *folder) Remove(name string) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.step("remove", name); err != nil {
		return err
	}
	full := f.at(name)
	n := d.live[full]
	if n == nil {
		return missing("remove", name)
	}
	d.change(n, []string{path.Dir(full)}, func(m map[string]*node) { delete(m, full) })
	return nil
}

func (f *folder) List(name string, bite int, visit func([]pickup.Entry) error) error {
	full := f.at(name)
	f.disk.mu.Lock()
	if f.disk.off {
		f.disk.mu.Unlock()
		return ErrPower
	}
	if n := f.disk.live[full]; n == nil || !n.dir {
		f.disk.mu.Unlock()
		return missing("list", name)
	}
	var entries []pickup.Entry
	for name, n := range f.disk.live {
		if path.Dir(name) == full && name != full {
			entries = append(entries, pickup.Entry{Name: path.Base(name), Modified: n.modified, Dir: n.dir})
		}
	}
	f.disk.mu.Unlock()
	for chunk := range slices.Chunk(entries, bite) {
		if err := visit(chunk); err != nil {
			return err
		}
	}
	return nil
}

func (f *folder) Sync(name string) error {
	d := f.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if n := d.live[f.at(name)]; n == nil || !n.dir {
		return missing("sync", name)
	}
	if err := d.step("syncdir", name); err != nil {
		d.failSync(f.at(name))
		return err
	}
	d.syncFolder(f.at(name))
	return nil
}

func (f *folder) Close() error { return nil }

type file struct {
	disk *Disk
	node *node
	name string
}

func (f *file) Write(data []byte) (int, error) {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.step("write", f.name); err != nil {
		return 0, err
	}
	f.node.data = append(f.node.data, data...)
	f.node.lost = false
	return len(data), nil
}

func (f *file) Sync() error {
	f.disk.mu.Lock()
	defer f.disk.mu.Unlock()
	if err := f.disk.step("sync", f.name); err != nil {
		f.node.lost = true
		return err
	}
	if !f.node.lost {
		f.node.onDisk = slices.Clone(f.node.data)
	}
	return nil
}

func (f *file) Close() error { return nil }
