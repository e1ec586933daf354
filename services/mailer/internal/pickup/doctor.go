package pickup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

// Examination says how Examine looks.
type Examination struct {
	// Marker is the folder's, as the database knows it; "" when it knows none yet.
	Marker string
	// Try goes through what publishing needs with a scratch file.
	Try bool
	// FileSystem finds out the type of the file system that a path is on. Default doctor.FileSystem.
	FileSystem func(path string) (int64, error)
}

// Examine adds to r what in the pickup folder endangers the mails in it. Unless told to try it out, it changes nothing.
func Examine(c Config, e Examination, r *doctor.Report) {
	if e.FileSystem == nil {
		e.FileSystem = doctor.FileSystem
	}
	at := "folder " + c.Dir
	pickup, err := os.Stat(c.Dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.Marker == "":
		r.Note(doctor.Folder, at, "does not exist yet; the mailer makes it")
		return
	case errors.Is(err, fs.ErrNotExist):
		r.Find(doctor.FolderUnmarked, at, "it does not exist; the database knows a folder with the marker %s", e.Marker)
		return
	case err != nil:
		r.Miss(doctor.Folder, at, err)
		return
	}
	staging, err := os.Lstat(filepath.Join(c.Dir, StagingName))
	switch {
	case errors.Is(err, fs.ErrNotExist) && e.Marker == "":
		r.Note(doctor.Folder, at, "holds no mails yet")
	case errors.Is(err, fs.ErrNotExist):
		r.Find(doctor.FolderUnmarked, at, "it has no folder %s; the database knows a folder with the marker %s", StagingName, e.Marker)
		return
	case err != nil:
		r.Miss(doctor.Folder, at, err)
		return
	}
	examineType(at, c.Dir, e, r)
	if pickup.Mode().Perm()&0o002 != 0 {
		r.Find(doctor.FolderOpen, at, "everybody may write to it (mode %04o)", pickup.Mode().Perm())
	}
	if c.Mode != 0 && c.Mode&0o044 == 0 {
		r.Note(doctor.Rights, at, "mails are readable for the mailer's user only (PILLARBOX_MAILER_FILE_MODE): the mail server must be that user, or root")
	}
	if staging == nil {
		return
	}
	examineStaging(at, c, e, pickup, staging, r)
}

func examineType(at, dir string, e Examination, r *doctor.Report) {
	magic, err := e.FileSystem(dir)
	if err != nil {
		r.Miss(doctor.Folder, at, err)
		return
	}
	if name, why := doctor.Unfit(magic); name != "" {
		r.Find(doctor.FolderFileSystem, at, "it is on %s: %s", name, why)
	}
}

// examineStaging looks at the staging folder, and whether files get from there to the pickup folder.
func examineStaging(at string, c Config, e Examination, pickup, staging fs.FileInfo, r *doctor.Report) {
	switch {
	case !staging.IsDir():
		r.Find(doctor.FolderApart, at, "%s in it is not a folder", StagingName)
		return
	case !doctor.SameDevice(pickup, staging):
		r.Find(doctor.FolderApart, at, "%s in it is on another device", StagingName)
		return
	}
	if staging.Mode().Perm()&0o022 != 0 {
		r.Find(doctor.FolderOpen, at, "others may write to %s in it (mode %04o)", StagingName, staging.Mode().Perm())
	}
	if e.Marker == "" {
		return
	}
	if uid, ok := doctor.Owner(staging); ok && uid != os.Geteuid() && os.Geteuid() != 0 {
		r.Miss(doctor.Folder, at, fmt.Errorf("%s belongs to another user (%d): run this as the mailer's user or as root", StagingName, uid))
		return
	}
	box := New(c, System{})
	box.Use(e.Marker)
	look := box.Check
	if e.Try {
		look = box.Prove
	}
	switch err := look(); {
	case err == nil:
	case errors.Is(err, ErrUnmarked):
		r.Find(doctor.FolderUnmarked, at, "%s", err)
	case errors.Is(err, syscall.EXDEV): // a mount of the same device
		r.Find(doctor.FolderApart, at, "a file cannot be moved out of %s: %s", StagingName, err)
	default:
		r.Find(doctor.FolderTrial, at, "%s", err)
	}
}
