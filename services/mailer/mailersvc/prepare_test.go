package mailersvc_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/pickup"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
)

// The person who cloned, and whom the service runs as: neither is the other, root or 1000.
const personUID, serviceUID, serviceGID = 12345, 65532, 65533

// rootOnly skips where owners cannot be changed.
func rootOnly(t *testing.T) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root, as the preparing container has it")
	}
}

// as runs a shell script as another user.
func as(t *testing.T, uid, gid uint32, script string) error {
	t.Helper()
	command := exec.CommandContext(t.Context(), "/bin/sh", "-c", script)
	command.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: gid}}
	out, err := command.CombinedOutput()
	t.Log(strings.TrimSpace(string(out)))
	return err
}

// project is a folder of the person, which every user can reach.
func project(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "pillarbox-prepare-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	require.NoError(t, os.Chown(dir, personUID, personUID))
	return dir
}

func TestPreparedPickupServesBothUsersAndNobodyElse(t *testing.T) {
	t.Parallel()
	rootOnly(t)
	dir := project(t)
	path := filepath.Join(dir, "pickup")
	prepare := mailersvc.PrepareCommand{Pickup: path, OwnerOf: dir, ServiceUID: serviceUID, ServiceGID: serviceGID}
	require.NoError(t, prepare.Run())
	require.NoError(t, prepare.Run(), "again changes nothing")

	// The service stages and publishes a mail with the mode that the compose file sets.
	staged := filepath.Join(path, pickup.StagingName, "a")
	require.NoError(t, as(t, serviceUID, serviceGID,
		"umask 077; echo mail > "+staged+" && chmod 0644 "+staged+" && mv "+staged+" "+path+"/a.eml && echo id > "+path+"/.pillarbox-pickup"))
	require.Error(t, as(t, 23456, 23456, "cat "+path+"/a.eml"), "a stranger on the host reads no mail")
	require.Error(t, as(t, personUID, personUID, "ls "+path+"/"+pickup.StagingName), "staging is the service's alone")
	require.NoError(t, as(t, personUID, personUID, "cat "+path+"/a.eml && rm "+path+"/a.eml"))
}

func TestPrepareCorrectsAFolderThatRootMade(t *testing.T) {
	t.Parallel()
	rootOnly(t)
	dir := project(t)
	path := filepath.Join(dir, "pickup")
	require.NoError(t, os.MkdirAll(filepath.Join(path, pickup.StagingName), 0o755)) // as a container engine does
	prepare := mailersvc.PrepareCommand{Pickup: path, OwnerOf: dir, ServiceUID: serviceUID, ServiceGID: serviceGID}
	require.NoError(t, prepare.Run())
	require.NoError(t, as(t, serviceUID, serviceGID, "touch "+path+"/.staging/a && mv "+path+"/.staging/a "+path+"/a.eml"))
	require.NoError(t, as(t, personUID, personUID, "rm "+path+"/a.eml"))
}

func TestPrepareDoesNotFollowALink(t *testing.T) {
	t.Parallel()
	rootOnly(t)
	dir := project(t)
	path, target := filepath.Join(dir, "pickup"), filepath.Join(dir, "target")
	require.NoError(t, os.Mkdir(path, 0o755))
	require.NoError(t, os.Mkdir(target, 0o755))
	require.NoError(t, os.Symlink("../target", filepath.Join(path, pickup.StagingName)))
	prepare := mailersvc.PrepareCommand{Pickup: path, OwnerOf: dir, ServiceUID: serviceUID, ServiceGID: serviceGID}
	require.ErrorContains(t, prepare.Run(), "is not a folder")
	info, err := os.Stat(target)
	require.NoError(t, err)
	require.EqualValues(t, 0, info.Sys().(*syscall.Stat_t).Uid)
	require.Equal(t, os.FileMode(0o755), info.Mode().Perm())
}
