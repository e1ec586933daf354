package pickup_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/shared/doctor"
)

// mounted mounts something at path until the end of the test; it skips without the right to.
func mounted(t *testing.T, source, path, kind string, flags uintptr) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT RUN: only root mounts")
	}
	if err := unix.Mount(source, path, kind, flags, ""); err != nil {
		t.Skipf("NOT RUN: mount: %s", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(path, unix.MNT_DETACH)) })
}

func TestExamineMounts(t *testing.T) {
	t.Parallel()
	found := func(t *testing.T) (pickup.Config, string) {
		config := pickup.Config{Dir: filepath.Join(t.TempDir(), "pickup"), Mode: 0o640}
		require.NoError(t, pickup.New(config, pickup.System{}).Found(marker))
		return config, filepath.Join(config.Dir, pickup.StagingName)
	}
	codes := func(config pickup.Config) []doctor.Code {
		var r doctor.Report
		pickup.Examine(config, pickup.Examination{Marker: marker, Try: true, FileSystem: onDisk}, &r)
		return r.Codes()
	}
	t.Run("another file system", func(t *testing.T) {
		t.Parallel()
		config, staging := found(t)
		mounted(t, "none", staging, "tmpfs", 0)
		require.Equal(t, []doctor.Code{doctor.FolderApart}, codes(config))
	})
	t.Run("a folder of the same one", func(t *testing.T) {
		t.Parallel()
		config, staging := found(t)
		mounted(t, t.TempDir(), staging, "", unix.MS_BIND)
		require.NoError(t, os.Chmod(staging, 0o700))
		require.Equal(t, []doctor.Code{doctor.FolderApart}, codes(config))
	})
	t.Run("read only", func(t *testing.T) {
		t.Parallel()
		config, _ := found(t)
		mounted(t, config.Dir, config.Dir, "", unix.MS_BIND)
		require.NoError(t, unix.Mount("", config.Dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""))
		require.Equal(t, []doctor.Code{doctor.FolderTrial}, codes(config))
	})
}
