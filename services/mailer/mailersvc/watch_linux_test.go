package mailersvc_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// appearance records in which order files appear, as the kernel tells it.
type appearance struct {
	mu   sync.Mutex // guards seen
	seen []string
}

// watch records until the end of the test.
func watch(t *testing.T, folder string) *appearance {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	require.NoError(t, err)
	_, err = unix.InotifyAddWatch(fd, folder, unix.IN_MOVED_TO)
	require.NoError(t, err)
	a, queue, ended := &appearance{}, os.NewFile(uintptr(fd), "inotify"), make(chan struct{})
	go func() {
		defer close(ended)
		buffer := make([]byte, 64<<10)
		for {
			n, err := queue.Read(buffer)
			if err != nil {
				return // closed
			}
			a.note(buffer[:n])
		}
	}()
	t.Cleanup(func() {
		require.NoError(t, queue.Close())
		<-ended
	})
	return a
}

// note reads struct inotify_event: wd, mask, cookie, len, each 32 bits; then the name.
func (a *appearance) note(buffer []byte) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for len(buffer) >= unix.SizeofInotifyEvent {
		length := int(binary.NativeEndian.Uint32(buffer[12:]))
		name := string(bytes.TrimRight(buffer[unix.SizeofInotifyEvent:unix.SizeofInotifyEvent+length], "\x00"))
		if !strings.HasPrefix(name, ".") {
			a.seen = append(a.seen, name)
		}
		buffer = buffer[unix.SizeofInotifyEvent+length:]
	}
}

// names returns the names once there are as many as wanted.
func (a *appearance) names(t *testing.T, wanted int) []string {
	t.Helper()
	var names []string
	require.Eventually(t, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		names = append([]string(nil), a.seen...)
		return len(names) >= wanted
	}, patience, 5*time.Millisecond)
	require.Len(t, names, wanted)
	return names
}
