package pickup_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/services/mailer/internal/pickuptest"
)

const marker = "7f1c2c0e-marker"

// onBoth runs a test on the real disk and on the one in memory, so that the
// second says what the first does.
func onBoth(t *testing.T, test func(t *testing.T, b *pickup.Box, at world)) {
	t.Run("system", func(t *testing.T) {
		t.Parallel()
		dir := filepath.Join(t.TempDir(), "deep", "pickup")
		b := pickup.New(pickup.Config{Dir: dir, Mode: 0o640}, pickup.System{})
		test(t, b, system{t, dir})
	})
	t.Run("memory", func(t *testing.T) {
		t.Parallel()
		disk := pickuptest.New()
		b := pickup.New(pickup.Config{Dir: "/deep/pickup", Mode: 0o640}, disk)
		test(t, b, memory{disk})
	})
}

// world is what others do to the folder.
type world interface {
	files(sub string) map[string]string
	put(name, data string)
	take(name string)
}

type system struct {
	t   *testing.T
	dir string
}

func (s system) files(sub string) map[string]string {
	found := map[string]string{}
	paths, err := filepath.Glob(filepath.Join(s.dir, sub, "*.eml"))
	require.NoError(s.t, err)
	for _, path := range paths {
		data, err := os.ReadFile(path)
		require.NoError(s.t, err)
		found[filepath.Base(path)] = string(data)
	}
	return found
}

func (s system) put(name, data string) {
	require.NoError(s.t, os.WriteFile(filepath.Join(s.dir, name), []byte(data), 0o600))
}

func (s system) take(name string) { require.NoError(s.t, os.Remove(filepath.Join(s.dir, name))) }

type memory struct{ disk *pickuptest.Disk }

func (m memory) files(sub string) map[string]string {
	found := map[string]string{}
	for name, data := range m.disk.Files("/deep/pickup/" + sub) {
		found[name] = string(data)
	}
	return found
}

func (m memory) put(name, data string) { m.disk.Put("/deep/pickup/"+name, []byte(data)) }
func (m memory) take(name string)      { m.disk.Take("/deep/pickup/" + name) }

func found(t *testing.T, b *pickup.Box) {
	t.Helper()
	require.NoError(t, b.Found(marker))
	b.Use(marker)
	require.NoError(t, b.Check())
}

// write stages mails, all at once.
func write(b *pickup.Box, mails ...pickup.Mail) ([]string, error) {
	names := make([]string, len(mails))
	err := b.Stage(func(s *pickup.Staging) error {
		var writers errgroup.Group
		for i, m := range mails {
			writers.Go(func() (err error) {
				names[i], err = s.Write(m)
				return err
			})
		}
		return writers.Wait()
	})
	return names, err
}

// stage stages files that say their delivery's name.
func stage(t *testing.T, b *pickup.Box, deliveries ...string) []pickup.Item {
	t.Helper()
	var mails []pickup.Mail
	for _, d := range deliveries {
		mails = append(mails, pickup.Mail{Delivery: d, Data: []byte(content(d))})
	}
	names, err := write(b, mails...)
	require.NoError(t, err)
	var items []pickup.Item
	for i, d := range deliveries {
		items = append(items, pickup.Item{Delivery: d, Staged: names[i], MessageID: d + "@test"})
	}
	return items
}

func content(delivery string) string { return "Message-ID: <" + delivery + "@test>\r\n\r\nhello\r\n" }

func TestStagedFilesAppearOnceAndWhole(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		items := stage(t, b, "a", "b", "c")
		require.Empty(t, at.files("."))
		require.Len(t, at.files(pickup.StagingName), 3)
		o, err := b.Publish(items, nil)
		require.NoError(t, err)
		require.Equal(t, pickup.Outcome{Moved: 3}, o)
		require.Equal(t, map[string]string{"a.eml": content("a"), "b.eml": content("b"), "c.eml": content("c")}, at.files("."))
		require.Empty(t, at.files(pickup.StagingName))
		o, err = b.Publish(items, nil)
		require.NoError(t, err)
		require.Equal(t, pickup.Outcome{Earlier: 3}, o, "again is nothing more")
	})
}

func TestAFileTheMailServerTookIsNotPublishedAgain(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		items := stage(t, b, "a")
		_, err := b.Publish(items, nil)
		require.NoError(t, err)
		seen, err := b.See(append(items, stage(t, b, "b")...))
		require.NoError(t, err)
		require.Equal(t, []pickup.Sight{pickup.Published, pickup.Staged}, seen)
		at.take("a.eml")
		o, err := b.Publish(items, nil)
		require.NoError(t, err)
		require.Equal(t, pickup.Outcome{Earlier: 1, Missing: []string{"a"}}, o)
		require.Empty(t, at.files("."))
		seen, err = b.See(items)
		require.NoError(t, err)
		require.Equal(t, []pickup.Sight{pickup.Missing}, seen)
	})
}

func TestAForeignFileOfTheSameNameStaysAndTheMailAppearsBeside(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		items := stage(t, b, "a")
		at.put("a.eml", "foreign")
		o, err := b.Publish(items, nil)
		require.NoError(t, err)
		require.Equal(t, pickup.Outcome{Renamed: 1}, o)
		require.Equal(t, map[string]string{"a.eml": "foreign", items[0].Staged: content("a")}, at.files("."))
		o, err = b.Publish(items, nil)
		require.NoError(t, err)
		require.Equal(t, pickup.Outcome{Earlier: 1}, o)
	})
}

func TestTheSameMailUnderItsNameIsNotPublishedTwice(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		items := stage(t, b, "a")
		at.put("a.eml", content("a"))
		o, err := b.Publish(items, nil)
		require.NoError(t, err)
		require.Equal(t, pickup.Outcome{Earlier: 1}, o)
		require.Equal(t, map[string]string{"a.eml": content("a")}, at.files("."))
		require.Empty(t, at.files(pickup.StagingName))
	})
}

func TestNoNameLeavesTheFolder(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		for _, name := range []string{"", "..", "../x", "a/b", "A", ".a", "a.b", "a\x00", strings.Repeat("a", 65)} {
			_, err := write(b, pickup.Mail{Delivery: name})
			require.Error(t, err, name)
			_, err = b.Publish([]pickup.Item{{Delivery: name, Staged: "a.b.eml"}}, nil)
			require.Error(t, err, name)
			_, err = b.Publish([]pickup.Item{{Delivery: "a", Staged: name}}, nil)
			require.Error(t, err, name)
			require.Error(t, b.Discard([]string{name}), name)
		}
		require.Empty(t, at.files("."))
	})
}

func TestDiscardRemovesAndPresentTells(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		items := stage(t, b, "a", "b")
		require.NoError(t, b.Present([]string{items[0].Staged, items[1].Staged}))
		require.NoError(t, b.Discard([]string{items[0].Staged}))
		require.NoError(t, b.Discard([]string{items[0].Staged}), "twice is fine")
		require.ErrorIs(t, b.Present([]string{items[0].Staged, items[1].Staged}), pickup.ErrStagedGone)
		require.Len(t, at.files(pickup.StagingName), 1)
	})
}

func TestMarker(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		_, err := write(b, pickup.Mail{Delivery: "a"})
		require.ErrorIs(t, err, pickup.ErrNoMarker)
		b.Use(marker)
		require.Error(t, b.Check(), "no folder yet, and it is not made in passing")

		var replicas sync.WaitGroup
		problems := make(chan error, 8)
		for range cap(problems) {
			replicas.Go(func() { problems <- b.Found(marker) })
		}
		replicas.Wait()
		close(problems)
		for err := range problems {
			require.NoError(t, err)
		}
		require.NoError(t, b.Check())
		require.NoError(t, b.Prove())
		require.ErrorIs(t, b.Found("another"), pickup.ErrUnmarked, "the folder is somebody's")

		items := stage(t, b, "a")
		for _, spoil := range []func(){
			func() { at.put(pickup.MarkerName, "another\n") },
			func() { at.put(pickup.MarkerName, "") },
			func() { at.take(pickup.MarkerName) },
		} {
			spoil()
			require.ErrorIs(t, b.Check(), pickup.ErrUnmarked)
			require.ErrorIs(t, b.Prove(), pickup.ErrUnmarked)
			_, err := write(b, pickup.Mail{Delivery: "b"})
			require.ErrorIs(t, err, pickup.ErrUnmarked)
			_, err = b.Publish(items, nil)
			require.ErrorIs(t, err, pickup.ErrUnmarked)
			require.ErrorIs(t, b.Discard([]string{items[0].Staged}), pickup.ErrUnmarked)
			require.ErrorIs(t, b.Leftovers(time.Now(), 10, nil), pickup.ErrUnmarked)
		}
		require.Len(t, at.files(pickup.StagingName), 1)
		at.put(pickup.MarkerName, marker)
		o, err := b.Publish(items, nil)
		require.NoError(t, err, "the folder is back, by itself or by a person who wrote the marker")
		require.Equal(t, pickup.Outcome{Moved: 1}, o)
	})
}

func TestLeftoversAreOldStagedFilesInBites(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		stage(t, b, "a", "b", "c", "d", "e")
		at.put(pickup.StagingName+"/note.txt", "?")
		at.put("foreign.eml", "mail server's")
		require.NoError(t, b.Leftovers(time.Now().Add(-time.Hour), 2, nil), "none is so old")
		seen, bites := map[string]int{}, 0
		require.NoError(t, b.Leftovers(time.Now().Add(time.Hour), 2, func(found []pickup.Leftover) (bool, error) {
			bites++
			require.LessOrEqual(t, len(found), 2)
			for _, l := range found {
				seen[l.Delivery]++
			}
			return true, nil
		}))
		require.Equal(t, map[string]int{"a": 1, "b": 1, "c": 1, "d": 1, "e": 1, "": 1}, seen)
		require.Equal(t, 3, bites)
		calls := 0
		require.NoError(t, b.Leftovers(time.Now().Add(time.Hour), 2, func([]pickup.Leftover) (bool, error) {
			calls++
			return false, nil
		}))
		require.Equal(t, 1, calls)
	})
}

func TestAFailedStageLeavesNothing(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		halfway := errors.New("halfway")
		err := b.Stage(func(s *pickup.Staging) error {
			_, err := s.Write(pickup.Mail{Delivery: "a"})
			require.NoError(t, err)
			require.Len(t, at.files(pickup.StagingName), 1)
			return halfway
		})
		require.ErrorIs(t, err, halfway)
		require.Empty(t, at.files(pickup.StagingName))
	})
}

func TestManyPublishersMoveEachFileOnce(t *testing.T) {
	t.Parallel()
	onBoth(t, func(t *testing.T, b *pickup.Box, at world) {
		found(t, b)
		var deliveries []string
		for i := range 50 {
			deliveries = append(deliveries, fmt.Sprintf("d-%02d", i))
		}
		items := stage(t, b, deliveries...)
		var publishers sync.WaitGroup
		moved := make(chan int, 8)
		for range cap(moved) {
			publishers.Go(func() {
				o, err := b.Publish(items, nil)
				if err == nil && o.Moved+o.Earlier == len(items) {
					moved <- o.Moved
				}
			})
		}
		publishers.Wait()
		require.Len(t, moved, cap(moved), "every publisher came through")
		close(moved)
		total := 0
		for n := range moved {
			total += n
		}
		require.Equal(t, len(items), total)
		require.Len(t, at.files("."), len(items))
	})
}

func TestFileModeIsAsConfiguredWhateverTheUmask(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	b := pickup.New(pickup.Config{Dir: dir, Mode: 0o666}, pickup.System{})
	found(t, b)
	_, err := b.Publish(stage(t, b, "a"), nil)
	require.NoError(t, err)
	info, err := os.Stat(filepath.Join(dir, "a.eml"))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o666), info.Mode())
	staging, err := os.Stat(filepath.Join(dir, pickup.StagingName))
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), staging.Mode().Perm())
}

func TestEveryFailingStepIsAnErrorAndNothingIsBelieved(t *testing.T) {
	t.Parallel()
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, syscall.EROFS} {
		for _, kind := range []string{"create", "write", "sync", "syncdir", "rename"} {
			t.Run(fmt.Sprint(kind, " ", fault), func(t *testing.T) {
				t.Parallel()
				disk := pickuptest.New()
				b := pickup.New(pickup.Config{Dir: "/pickup", Mode: 0o640}, disk)
				found(t, b)
				earlier := stage(t, b, "earlier")
				failing := true
				disk.Before = func(s pickuptest.Step) error {
					if failing && s.Kind == kind {
						return fault
					}
					return nil
				}
				_, stageErr := write(b, pickup.Mail{Delivery: "a", Data: []byte("x")})
				_, publishErr := b.Publish(earlier, nil)
				require.ErrorIs(t, errors.Join(stageErr, publishErr), fault)
				if kind == "syncdir" {
					require.ErrorIs(t, stageErr, fault)
					require.ErrorIs(t, publishErr, fault)
				}
				require.ErrorIs(t, b.Prove(), fault)
				if stageErr != nil {
					require.LessOrEqual(t, len(disk.Files("/pickup/.staging")), 1, "a failed file is not kept")
				}
				failing = false
				require.NoError(t, b.Prove())
				_, err := b.Publish(earlier, nil)
				require.NoError(t, err)
				disk.PowerLoss()
				require.Equal(t, []byte(content("earlier")), disk.Files("/pickup")["earlier.eml"],
					"what Publish promised survives, though the fsync after a failed one writes nothing by itself")
			})
		}
	}
}

func TestPowerLossAfterEachStepOfFoundingLeavesAFolderThatCanBeFounded(t *testing.T) {
	t.Parallel()
	for step := 0; ; step++ {
		disk, count := pickuptest.New(), 0
		disk.Before = func(pickuptest.Step) error {
			if count++; count > step {
				return pickuptest.ErrPower
			}
			return nil
		}
		b := pickup.New(pickup.Config{Dir: "/pickup", Mode: 0o640}, disk)
		err := b.Found(marker)
		disk.Before = nil
		disk.PowerLoss()
		if err == nil {
			b.Use(marker)
			require.NoError(t, b.Check(), "what Found promised survives")
			require.Greater(t, step, 5)
			return
		}
		require.ErrorIs(t, err, pickuptest.ErrPower)
		found(t, b)
	}
}

func TestTheNewNameIsDurableBeforeTheOldOneGoes(t *testing.T) {
	t.Parallel()
	for step := 0; ; step++ {
		disk := pickuptest.New()
		disk.Split = true // a file system that may keep one half of a rename
		b := pickup.New(pickup.Config{Dir: "/pickup", Mode: 0o640}, disk)
		found(t, b)
		items, count := stage(t, b, "a"), 0
		disk.Before = func(pickuptest.Step) error {
			if count++; count > step {
				return pickuptest.ErrPower
			}
			return nil
		}
		_, err := b.Publish(items, nil)
		disk.Before = nil
		disk.PowerLoss()
		_, again := b.Publish(items, nil)
		require.NoError(t, again)
		require.Equal(t, map[string][]byte{"a.eml": []byte(content("a"))}, disk.Files("/pickup"), "after step %d", step)
		require.Empty(t, disk.Files("/pickup/.staging"))
		if err == nil {
			require.Greater(t, step, 2)
			return
		}
	}
}
