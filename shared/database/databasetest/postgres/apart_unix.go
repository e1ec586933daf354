//go:build unix

package postgres

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"strconv"
	"syscall"
)

// account returns the user as whom the server runs: nil for ourselves, another
// one when we are root.
func account() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uidErr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gidErr := strconv.ParseUint(u.Gid, 10, 32)
		if uidErr == nil && gidErr == nil {
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
		}
	}
	return nil, errors.New("a PostgreSQL server does not run as root, and there is no user postgres or nobody")
}

// runApart makes cmd run as account, in a process group of its own: a Ctrl-C in
// the terminal is for us, who then stop the server in order.
func runApart(cmd *exec.Cmd) error {
	credential, err := account()
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Credential: credential}
	return nil
}

// giveAway makes account the owner of folder.
func giveAway(folder string) error {
	credential, err := account()
	if err != nil || credential == nil {
		return err
	}
	if err := os.Chown(folder, int(credential.Uid), int(credential.Gid)); err != nil {
		return fmt.Errorf("give cluster folder away: %w", err)
	}
	return nil
}
