package pickup_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// onDisk is the answer of a file system that keeps what it is told.
func onDisk(string) (int64, error) { return 0xEF53, nil }

func TestExamine(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil  func(t *testing.T, dir string)
		change func(*pickup.Examination)
		want   []doctor.Code
	}{
		"nothing":       {},
		"not tried out": {change: func(e *pickup.Examination) { e.Try = false }},
		"NFS":           {change: kind(0x6969), want: []doctor.Code{doctor.FolderFileSystem}},
		"SMB":           {change: kind(0xFF534D42), want: []doctor.Code{doctor.FolderFileSystem}},
		"9p":            {change: kind(0x01021997), want: []doctor.Code{doctor.FolderFileSystem}},
		"FUSE":          {change: kind(0x65735546), want: []doctor.Code{doctor.FolderFileSystem}},
		"in memory":     {change: kind(0x01021994), want: []doctor.Code{doctor.FolderFileSystem}},
		"folder gone":   {spoil: func(t *testing.T, dir string) { require.NoError(t, os.RemoveAll(dir)) }, want: []doctor.Code{doctor.FolderUnmarked}},
		"staging gone": {spoil: func(t *testing.T, dir string) {
			require.NoError(t, os.RemoveAll(filepath.Join(dir, pickup.StagingName)))
		},
			want: []doctor.Code{doctor.FolderUnmarked}},
		"another marker": {change: func(e *pickup.Examination) { e.Marker = "another" }, want: []doctor.Code{doctor.FolderUnmarked}},
		"staging is a link": {spoil: func(t *testing.T, dir string) {
			require.NoError(t, os.Remove(filepath.Join(dir, pickup.StagingName)))
			require.NoError(t, os.Symlink(t.TempDir(), filepath.Join(dir, pickup.StagingName)))
		}, want: []doctor.Code{doctor.FolderApart}},
		"open to all": {spoil: func(t *testing.T, dir string) { require.NoError(t, os.Chmod(dir, 0o777)) }, want: []doctor.Code{doctor.FolderOpen}},
		"staging open to a group": {spoil: func(t *testing.T, dir string) {
			require.NoError(t, os.Chmod(filepath.Join(dir, pickup.StagingName), 0o770))
		}, want: []doctor.Code{doctor.FolderOpen}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "pickup")
			config := pickup.Config{Dir: dir, Mode: 0o640}
			require.NoError(t, pickup.New(config, pickup.System{}).Found(marker))
			e := pickup.Examination{Marker: marker, Try: true, FileSystem: onDisk}
			if c.change != nil {
				c.change(&e)
			}
			if c.spoil != nil {
				c.spoil(t, dir)
			}
			var r doctor.Report
			pickup.Examine(config, e, &r)
			require.Empty(t, r.Unseen)
			require.Equal(t, c.want, r.Codes(), "%v", r.Findings)
			left, err := filepath.Glob(filepath.Join(dir, "*", "*"))
			require.NoError(t, err)
			require.Empty(t, left, "a trial leaves nothing behind")
		})
	}
}

// TestANewFolderAsTheFindingSays: its two steps make an empty folder the right one.
func TestANewFolderAsTheFindingSays(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	config := pickup.Config{Dir: dir, Mode: 0o640}
	box := pickup.New(config, pickup.System{})
	box.Use(marker)
	problem := box.Check()
	require.ErrorIs(t, problem, pickup.ErrUnmarked)
	var r doctor.Report
	e := pickup.Examination{Marker: marker, Try: true, FileSystem: onDisk}
	pickup.Examine(config, e, &r)
	require.Equal(t, []doctor.Code{doctor.FolderUnmarked}, r.Codes())
	for _, text := range []string{problem.Error(), r.Findings[0].Problem + r.Findings[0].Fix} {
		for _, part := range []string{marker, pickup.MarkerName, pickup.StagingName} {
			require.Contains(t, text, part)
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, pickup.MarkerName), []byte(marker), 0o600))
	require.NoError(t, os.Mkdir(filepath.Join(dir, pickup.StagingName), 0o700))
	require.NoError(t, box.Prove())
	r = doctor.Report{}
	pickup.Examine(config, e, &r)
	require.Empty(t, r.Codes())
}

func kind(magic int64) func(*pickup.Examination) {
	return func(e *pickup.Examination) { e.FileSystem = func(string) (int64, error) { return magic, nil } }
}

func TestExamineBeforeTheFirstMail(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "pickup")
	var r doctor.Report
	pickup.Examine(pickup.Config{Dir: dir, Mode: 0o600}, pickup.Examination{Try: true, FileSystem: onDisk}, &r)
	require.Empty(t, r.Findings)
	require.NoDirExists(t, dir)
	require.NoError(t, os.Mkdir(dir, 0o700))
	pickup.Examine(pickup.Config{Dir: dir, Mode: 0o600}, pickup.Examination{Try: true, FileSystem: onDisk}, &r)
	require.Empty(t, r.Findings)
	require.Empty(t, r.Unseen)
	require.Len(t, r.Notes, 3, "%v", r.Notes)
	pickup.Examine(pickup.Config{Dir: dir}, pickup.Examination{FileSystem: func(string) (int64, error) { return 0, errors.New("?") }}, &r)
	require.Len(t, r.Unseen, 1)
}

// TestExamineOnMemory is on a real file system of another kind.
func TestExamineOnMemory(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/dev/shm", "pillarbox-pickup-")
	if err != nil {
		t.Skip("NOT RUN: no tmpfs at /dev/shm")
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	config := pickup.Config{Dir: dir, Mode: 0o640}
	require.NoError(t, pickup.New(config, pickup.System{}).Found(marker))
	var r doctor.Report
	pickup.Examine(config, pickup.Examination{Marker: marker, Try: true}, &r)
	require.Equal(t, []doctor.Code{doctor.FolderFileSystem}, r.Codes())
	require.Contains(t, r.Findings[0].Problem, "tmpfs")
}
