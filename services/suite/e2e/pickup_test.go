package e2e_test

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
	"github.com/pillarbox/pillarbox/shared/failpoint"
)

// eachMailer runs the test with a suite and with a separate mailer, each a
// process, which start starts.
func eachMailer(t *testing.T, test func(t *testing.T, start func() (e2e.Line, *e2e.Process))) {
	t.Helper()
	t.Run("suite", func(t *testing.T) {
		t.Parallel()
		test(t, func() (e2e.Line, *e2e.Process) {
			suite := startSuiteProcess(t)
			return suite.Line(), suite.Process
		})
	})
	t.Run("separate", func(t *testing.T) {
		t.Parallel()
		test(t, func() (e2e.Line, *e2e.Process) {
			cluster := startCluster(t, 1)
			return cluster.Line(), cluster.Services["mailer"][0]
		})
	})
}

// folderFault spoils a pickup folder and gives it back.
type folderFault struct {
	name        string
	says        string // part of the reason that the mailer gives
	spoil, heal func(t *testing.T)
}

// pausesAndGoesOn is what the mailer does about a fault: it pauses and says why,
// in its log and on its admin port; the shop goes on meanwhile and no mail appears;
// and it goes on by itself once the folder is back.
func (f folderFault) pausesAndGoesOn(t *testing.T, line e2e.Line, mailer *e2e.Process, facts func() int, count func() int) {
	t.Helper()
	grow(t, facts, 15)
	from := len(mailer.LogSince(0))
	f.spoil(t)
	logged(t, mailer, from, "consumer paused", f.says)
	require.Eventually(t, func() bool { return strings.Contains(line.Failing(t.Context())["mailer"], f.says) },
		deadline, 10*time.Millisecond, "%s: the mailer is ready, or does not say why", f.name)
	grow(t, facts, 5) // what had the folder open before the fault has ended
	before := count()
	grow(t, facts, 20)
	require.Equal(t, before, count(), "%s: mails appeared", f.name)
	healed := time.Now()
	f.heal(t)
	require.Eventually(t, func() bool { return count() > before }, deadline, 5*time.Millisecond, "%s: no mail after it", f.name)
	first := time.Since(healed).Round(time.Millisecond)
	isReady(t, line)
	logged(t, mailer, from, "consumer goes on")
	t.Logf("%s: first mail %s after", f.name, first)
}

// mounts are file systems that a test has mounted. Their cleanup runs after that
// of whatever is started later.
type mounts struct {
	t    *testing.T
	made []string
}

// newMounts skips where nothing can be mounted.
func newMounts(t *testing.T) *mounts {
	t.Helper()
	m := &mounts{t: t}
	trial := t.TempDir()
	if err := unix.Mount("tmpfs", trial, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("NOT CHECKED: cannot mount here (%v; it needs root), so no file system was unmounted, made read-only or filled", err)
	}
	require.NoError(t, unix.Unmount(trial, 0))
	t.Cleanup(func() {
		for _, path := range slices.Backward(m.made) {
			require.NoError(t, m.unmount(path))
		}
	})
	return m
}

func (m *mounts) tmpfs(size string) string {
	dir := m.t.TempDir()
	require.NoError(m.t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size))
	m.made = append(m.made, dir)
	return dir
}

func (m *mounts) bind(from, to string) {
	require.NoError(m.t, unix.Mount(from, to, "", unix.MS_BIND, ""))
	m.made = append(m.made, to)
}

// unmount is lazy: whoever has the folder open still sees it.
func (m *mounts) unmount(path string) error {
	if !slices.Contains(m.made, path) {
		return nil // a test has done it already
	}
	m.made = slices.DeleteFunc(m.made, func(p string) bool { return p == path })
	return unix.Unmount(path, unix.MNT_DETACH)
}

// moveContent moves all files of one folder into another, dot files too.
func moveContent(t *testing.T, from, to string) {
	t.Helper()
	require.NoError(t, os.Mkdir(to, 0o770))
	out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput()
	require.NoError(t, err, string(out))
	entries, err := os.ReadDir(from)
	require.NoError(t, err)
	for _, e := range entries {
		require.NoError(t, os.RemoveAll(filepath.Join(from, e.Name())))
	}
}

// TestPickupFolderOnAFailingMount has the pickup folder on a file system of its
// own, as on a server: it is unmounted and mounted again, read-only, and full.
func TestPickupFolderOnAFailingMount(t *testing.T) {
	t.Parallel()
	eachMailer(t, func(t *testing.T, start func() (e2e.Line, *e2e.Process)) {
		m := newMounts(t)
		disk := m.tmpfs("4m")
		line, mailer := start()
		content, taken, filler := filepath.Join(disk, "pickup"), filepath.Join(disk, "taken"), filepath.Join(disk, "filler")
		require.NoError(t, os.Mkdir(taken, 0o700))
		require.NoError(t, mailer.Stop())
		moveContent(t, line.Pickup, content)
		m.bind(content, line.Pickup)
		require.NoError(t, mailer.Run(t.Context()))
		access := func(flags uintptr) func(t *testing.T) {
			return func(t *testing.T) {
				// Busy while somebody writes a file.
				require.Eventually(t, func() bool {
					return unix.Mount("", line.Pickup, "", unix.MS_BIND|unix.MS_REMOUNT|flags, "") == nil
				}, deadline, 5*time.Millisecond)
			}
		}
		faults := []folderFault{
			{
				"unmounted", "not the pickup folder",
				func(t *testing.T) { require.NoError(t, m.unmount(line.Pickup)) },
				func(*testing.T) { m.bind(content, line.Pickup) },
			},
			{"read-only", "read-only file system", access(unix.MS_RDONLY), access(0)},
			{
				"full", "no space left on device",
				func(t *testing.T) { fill(t, filler) },
				func(t *testing.T) { require.NoError(t, os.Remove(filler)) },
			},
		}
		watchedLoad(t, line, crashSeed(t), content, taken, func(_ context.Context, facts func() int) {
			for _, f := range faults {
				// By the folder itself: its path is what is taken away.
				f.pausesAndGoesOn(t, line, mailer, facts, filesIn(t, content, taken))
			}
			grow(t, facts, 10)
		})
		require.NoError(t, mailer.Stop()) // before its folder goes
		require.NoError(t, m.unmount(line.Pickup))
		left, err := os.ReadDir(line.Pickup)
		require.NoError(t, err)
		require.Empty(t, left, "the mailer wrote under the mount")
		m.bind(content, line.Pickup)
		require.NoError(t, mailer.Run(t.Context()))
	})
}

// fill takes the rest of a file system.
func fill(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	require.NoError(t, err)
	_, err = io.Copy(f, zeros{})
	require.ErrorIs(t, err, unix.ENOSPC)
	require.NoError(t, f.Close())
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// filesIn counts the mails that lie in those of the folders that exist.
func filesIn(t *testing.T, folders ...string) func() int {
	return func() int {
		n := 0
		for _, folder := range folders {
			entries, err := os.ReadDir(folder)
			require.NoError(t, ignoreMissing(err))
			for _, e := range entries {
				if strings.HasSuffix(e.Name(), ".eml") {
					n++
				}
			}
		}
		return n
	}
}

// TestPickupFolderReplaced takes the folder away, first without and then with an
// empty one in its place. The second time it goes between the commit that names
// the staged files and their publishing: that they are gone proves nothing.
func TestPickupFolderReplaced(t *testing.T) {
	t.Parallel()
	eachMailer(t, func(t *testing.T, start func() (e2e.Line, *e2e.Process)) {
		line, mailer := start()
		away := line.Pickup + ".away"
		missing := folderFault{
			"missing", "no such file or directory",
			func(t *testing.T) { require.NoError(t, os.Rename(line.Pickup, away)) },
			func(t *testing.T) { require.NoError(t, os.Rename(away, line.Pickup)) },
		}
		// At once, so that the folder is never missing.
		exchange := func(t *testing.T) {
			require.NoError(t, unix.Renameat2(unix.AT_FDCWD, away, unix.AT_FDCWD, line.Pickup, unix.RENAME_EXCHANGE))
		}
		replaced := folderFault{
			"replaced", "not the pickup folder",
			func(t *testing.T) {
				require.NoError(t, os.Mkdir(away, 0o770))
				exchange(t)
			},
			func(t *testing.T) {
				exchange(t)
				require.NoError(t, os.Remove(away), "something was written into the wrong folder")
			},
		}
		box := &e2e.Mailbox{Folder: line.Pickup} // it polls: a watch would follow the folder that went away
		loadInto(t, line, crashSeed(t), box, func(ctx context.Context, facts func() int) {
			count := filesIn(t, line.Pickup, away)
			missing.pausesAndGoesOn(t, line, mailer, facts, count)
			replaced.pausesAndGoesOn(t, line, mailer, facts, count)

			staged := frozenBeforePublishing(t, ctx, mailer, line.Pickup)
			from := len(mailer.LogSince(0))
			replaced.spoil(t)
			require.NoError(t, mailer.Thaw())
			logged(t, mailer, from, "consumer paused", replaced.says)
			replaced.heal(t)
			t.Logf("replaced with %d files staged and committed: ready %s after", staged, isReady(t, line))
		})
		strictlyParsed(t, line.Pickup)
	})
}

// frozenBeforePublishing restarts the mailer so that it freezes when rows are
// committed and their files, of which there are some, not yet published.
func frozenBeforePublishing(t *testing.T, ctx context.Context, mailer *e2e.Process, pickup string) int {
	t.Helper()
	for {
		require.NoError(t, mailer.Stop())
		freezeAt(t, ctx, mailer, "mailer.committed:3:pause")
		if staged := filesIn(t, filepath.Join(pickup, ".staging"))(); staged > 0 {
			return staged
		}
		require.NoError(t, mailer.Thaw()) // it was a group of repeated messages
	}
}

// freezeAt starts p and waits until it has stopped itself at the failpoint.
func freezeAt(t *testing.T, ctx context.Context, p *e2e.Process, setting string) {
	t.Helper()
	plain := p.Env
	p.Env = append(slices.Clone(plain), failpoint.Environment+"="+setting)
	require.NoError(t, p.Start())
	p.Env = plain
	t.Cleanup(func() { _ = p.Thaw() }) // or a failed test could not stop it
	require.NoError(t, p.WaitFrozen(ctx))
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
