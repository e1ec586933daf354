package mailersvc

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
)

// Owners of PreparePickup.
type Owners struct {
	// HostUID is who may read and remove the mails: the owner of the folder.
	HostUID int
	// ServiceUID and ServiceGID are whom the mailer runs as.
	ServiceUID, ServiceGID int
}

// PreparePickup makes the pickup folder and its staging folder, or corrects
// those that exist, for a mailer that runs as another user than the person who
// is to read the mails. It needs the right to change owners (root), changes
// nothing below the two folders and may be run again at any time.
//
// The person owns the pickup folder, so she may remove any file in it; the
// mailer writes through its group; nobody else can enter, so that the files
// themselves may be readable for all (file mode 0644), which is how the person,
// who is in no group of the mailer, reads them. The staging folder is the
// mailer's alone.
func PreparePickup(dir string, o Owners) (err error) {
	const folderMode, stagingMode = 0o770, 0o700
	if err := os.MkdirAll(dir, folderMode); err != nil {
		return fmt.Errorf("make pickup folder: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open pickup folder: %w", err)
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	if err := root.Mkdir(pickup.StagingName, stagingMode); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make staging folder: %w", err)
	}
	// The name is in a folder that others may write to: root must not follow a link there.
	if info, err := root.Lstat(pickup.StagingName); err != nil || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s in the pickup folder is not a folder", pickup.StagingName))
	}
	return errors.Join(
		own(root, pickup.StagingName, o.ServiceUID, o.ServiceGID, stagingMode),
		own(root, ".", o.HostUID, o.ServiceGID, folderMode),
	)
}

// own sets owner, then mode: changing the owner may clear bits of the mode.
func own(root *os.Root, name string, uid, gid int, mode fs.FileMode) error {
	if err := root.Lchown(name, uid, gid); err != nil {
		return fmt.Errorf("change owner: %w", err)
	}
	if err := root.Chmod(name, mode); err != nil {
		return fmt.Errorf("change mode: %w", err)
	}
	return nil
}

// PrepareCommand is the subcommand "prepare-pickup", for a one-shot container
// that runs as root before the mailers start.
type PrepareCommand struct {
	Pickup     string `name:"pickup" env:"PILLARBOX_MAILER_PICKUP" default:"pickup" help:"The pickup folder."`
	OwnerOf    string `name:"owner-of" placeholder:"PATH" help:"The owner of this file or folder may read and remove the mails, e.g. the mounted project folder (default: the pickup folder itself)."`
	ServiceUID int    `name:"service-uid" default:"65532" help:"User id that the mailers run as."`
	ServiceGID int    `name:"service-gid" default:"65532" help:"Group id that the mailers run as."`
}

// Run prepares the folder.
func (c *PrepareCommand) Run() error {
	if err := os.MkdirAll(c.Pickup, 0o770); err != nil {
		return fmt.Errorf("make pickup folder: %w", err)
	}
	if c.OwnerOf == "" {
		c.OwnerOf = c.Pickup
	}
	uid, err := ownerOf(c.OwnerOf)
	if err != nil {
		return err
	}
	return PreparePickup(c.Pickup, Owners{HostUID: uid, ServiceUID: c.ServiceUID, ServiceGID: c.ServiceGID})
}

func ownerOf(path string) (int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("find owner: %w", err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0, fmt.Errorf("owner of %s is not known on this system", path)
	}
	return int(stat.Uid), nil
}
