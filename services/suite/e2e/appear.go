package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Appearance records every mail that appears in a folder, in order, as the
// kernel tells it: the time stamps of a rename cannot. It may also take mails
// away, as a mail server does.
type Appearance struct {
	folder    string
	taken     string
	takeEvery int
	queue     *os.File // inotify; closing it ends the reader
	done      chan struct{}

	received int // only the reader's

	mu    sync.Mutex // guards mails and err
	mails []Mail
	err   error
}

// WatchAppearance starts to record; Stop ends it. With takeEvery > 0 every n-th
// mail is moved to the folder taken at once.
func WatchAppearance(folder, taken string, takeEvery int) (*Appearance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", folder, err)
	}
	if _, err := unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", folder, err), unix.Close(fd))
	}
	// A non-blocking descriptor in an os.File is read through the poller, so Close ends a Read.
	a := &Appearance{folder: folder, taken: taken, takeEvery: takeEvery, queue: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{})}
	go a.read()
	return a, nil
}

func (a *Appearance) read() {
	defer close(a.done)
	buffer := make([]byte, 64<<10)
	for {
		n, err := a.queue.Read(buffer)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				a.note(Mail{}, err)
			}
			return
		}
		for offset := 0; offset+unix.SizeofInotifyEvent <= n; {
			// struct inotify_event: wd, mask, cookie, len, each 32 bits; then the name.
			header := buffer[offset : offset+unix.SizeofInotifyEvent]
			mask, length := binary.NativeEndian.Uint32(header[4:]), int(binary.NativeEndian.Uint32(header[12:]))
			offset += unix.SizeofInotifyEvent
			name := string(bytes.TrimRight(buffer[offset:offset+length], "\x00"))
			offset += length
			if mask&unix.IN_Q_OVERFLOW != 0 {
				a.note(Mail{}, errors.New("inotify queue overflow"))
			}
			if strings.HasSuffix(name, ".eml") {
				a.note(a.receive(name))
			}
		}
	}
}

// receive reads one mail, and takes it away when it is its turn.
func (a *Appearance) receive(name string) (Mail, error) {
	path, now := filepath.Join(a.folder, name), time.Now()
	m, err := ReadMail(path)
	m.Appeared = now
	if err != nil || a.takeEvery == 0 {
		return m, err
	}
	a.received++
	if a.received%a.takeEvery != 0 {
		return m, nil
	}
	return m, os.Rename(path, filepath.Join(a.taken, fmt.Sprint(a.received, "-", name)))
}

func (a *Appearance) note(m Mail, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err != nil {
		a.err = errors.Join(a.err, err)
		return
	}
	a.mails = append(a.mails, m)
}

// Mails returns the mails so far in their order of appearance.
func (a *Appearance) Mails() ([]Mail, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.mails), a.err
}

// Stop ends the recording; it may be called again.
func (a *Appearance) Stop() error {
	err := a.queue.Close()
	<-a.done
	if errors.Is(err, os.ErrClosed) {
		return nil
	}
	return err
}

// InVersionOrder reports the first mail that appeared before its predecessor.
func InVersionOrder(mails []Mail) error {
	last := map[string]int64{}
	for _, m := range mails {
		if m.Version != last[m.Order]+1 {
			return fmt.Errorf("order %s: mail of version %d appeared after version %d", m.Order, m.Version, last[m.Order])
		}
		last[m.Order] = m.Version
	}
	return nil
}
