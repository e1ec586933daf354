package inprocess

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

// ExamineFolder adds to r what endangers a suite's data folder: the file system it is on, and who may change it. It
// opens none of the files, so it may run beside and within the suite.
func ExamineFolder(dir string, r *doctor.Report) {
	at := "folder " + dir
	switch magic, err := doctor.FileSystem(dir); {
	case err != nil:
		r.Miss(doctor.SQLite, at, err)
	default:
		if name, why := doctor.Unfit(magic); name != "" {
			r.Find(doctor.DataFileSystem, at, "it is on %s: %s", name, why)
		}
	}
	var open []string
	for _, name := range []string{".", "*.db", "*.db-wal", brokerDir, filepath.Join(brokerDir, "jetstream")} {
		paths, _ := filepath.Glob(filepath.Join(dir, name)) // the patterns are well-formed
		for _, path := range paths {
			info, err := os.Lstat(path)
			if errors.Is(err, fs.ErrNotExist) {
				continue // a log that was folded in meanwhile
			}
			if err != nil {
				r.Miss(doctor.Rights, at, err)
				return
			}
			if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSymlink == 0 {
				open = append(open, filepath.Base(path))
			}
		}
	}
	if len(open) > 0 {
		r.Find(doctor.OpenToAll, at, "everybody may write to %s", strings.Join(open, ", "))
	}
	if info, err := os.Lstat(filepath.Join(dir, "run.json")); err == nil && info.Mode().Perm()&0o077 != 0 {
		r.Find(doctor.SecretReadable, at, "run.json has mode %04o", info.Mode().Perm())
	}
}
