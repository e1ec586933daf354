package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// Appearance records in which order files appear in a folder, as the kernel
// tells it: the time stamps of a rename cannot.
type Appearance struct {
	folder string
	fd     int
	wake   *os.File // closes the reader
	done   chan struct{}

	mu    sync.Mutex // guards mails and err
	mails []Mail
	err   error
}

// WatchAppearance starts to record. Stop ends it.
func WatchAppearance(folder string) (*Appearance, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", folder, err)
	}
	if _, err := unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO|unix.IN_CREATE); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", folder, err), unix.Close(fd))
	}
	// A non-blocking descriptor in an os.File is read through the poller, so Close ends a Read.
	a := &Appearance{folder: folder, fd: fd, wake: os.NewFile(uintptr(fd), "inotify"), done: make(chan struct{})}
	go a.read()
	return a, nil
}

func (a *Appearance) read() {
	defer close(a.done)
	buffer := make([]byte, 64<<10)
	for {
		n, err := a.wake.Read(buffer)
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
				a.note(ReadMail(filepath.Join(a.folder, name)))
			}
		}
	}
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

// Stop ends the recording and returns the mails in their order of appearance.
func (a *Appearance) Stop() ([]Mail, error) {
	err := a.wake.Close()
	<-a.done
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.mails, errors.Join(a.err, err)
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
