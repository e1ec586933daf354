//go:build compose

package e2e_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

// compose runs docker-compose on a copy of the checkout that belongs to a user
// who is neither root, nor 1000, nor the services' own.
type compose struct {
	t       *testing.T
	dir     string
	command []string
}

const (
	cloneUID  = 4321
	project   = "pillarboxtest"
	buildTime = 15 * time.Minute
)

func newCompose(t *testing.T) *compose {
	t.Helper()
	if _, err := exec.LookPath("docker"); err != nil {
		t.Skip("NOT RUN: docker is missing")
	}
	// Not a test's own folder: those of the testing package cannot be entered by others.
	dir, err := os.MkdirTemp("", "pillarbox-compose-")
	require.NoError(t, err)
	c := &compose{t: t, dir: dir, command: []string{"docker-compose"}}
	if exec.Command("docker", "compose", "version").Run() == nil {
		c.command = []string{"docker", "compose"}
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	out, err := exec.Command("bash", "-c", "cp -a ../../../{go.mod,go.sum,migrations,shared,services,docker-compose.yml,.dockerignore} "+dir).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Mkdir(filepath.Join(dir, "pickup"), 0o755))
	out, err = exec.Command("chown", "-R", fmt.Sprint(cloneUID, ":", cloneUID), dir).CombinedOutput()
	require.NoError(t, err, string(out))
	return c
}

// run runs a compose command and returns its output.
func (c *compose) run(args ...string) string {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), buildTime)
	defer cancel()
	args = append(append(c.command[1:], "-p", project), args...)
	cmd := exec.CommandContext(ctx, c.command[0], args...)
	cmd.Dir = c.dir
	// That anything starts shows that the checks find nothing, and that a password may look like a number.
	cmd.Env = append(os.Environ(), "PILLARBOX_STRICT=1", "PILLARBOX_MAILER_NATS_PASSWORD=12345")
	out, err := cmd.CombinedOutput()
	require.NoError(c.t, err, "%v: %s", args, out)
	return string(out)
}

// containers returns the ids of a service's containers.
func (c *compose) containers(service string) []string {
	c.t.Helper()
	return strings.Fields(c.run("ps", "-q", service))
}

func docker(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.Command("docker", args...).CombinedOutput()
	require.NoError(t, err, "docker %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// TestCompose is the deployment as people run it: up, first mail, three
// mailers, one killed, both servers restarted, all under load.
func TestCompose(t *testing.T) {
	c := newCompose(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.run("logs", "--tail=40"))
		}
		c.run("down", "-v", "--remove-orphans", "--rmi", "local")
	})
	started := time.Now()
	up := c.run("up", "--build", "-d")
	require.NotContains(t, strings.ToLower(up), "obsolete")
	line := e2e.Line{
		Stores: []string{"http://127.0.0.1:8080"}, Audit: "http://127.0.0.1:8081", Loyalty: "http://127.0.0.1:8082",
		Pickup: filepath.Join(c.dir, "pickup"),
	}
	truth := &e2e.Truth{}
	client := e2e.NewClient(truth, line.Stores...)
	client.GiveUp = 2 * time.Minute
	box := &e2e.Mailbox{Folder: line.Pickup}
	_, err := client.Place(t.Context(), e2e.Body("ada@example.com", "EUR", 2, "4.50"))
	require.NoError(t, err)
	require.NoError(t, line.WaitConserved(t.Context(), truth, box, deadline))
	t.Logf("cold up --build to the first mail: %s", time.Since(started).Round(time.Second))
	c.hardened()
	c.readableByCloner()

	c.run("up", "-d", "--no-build", "--scale", "mailer=3")
	mailers := c.containers("mailer")
	require.Len(t, mailers, 3)
	underComposeLoad(t, line, truth, client, box, func(facts func() int) {
		grow(t, facts, 100)
		docker(t, "kill", mailers[1])
		grow(t, facts, 100)
		c.run("restart", "postgres")
		grow(t, facts, 100)
		c.run("restart", "nats")
		grow(t, facts, 100)
		docker(t, "start", mailers[1])
		grow(t, facts, 50)
	})
	c.healthy("mailer", 3)
	strictlyParsed(t, line.Pickup)
}

// underComposeLoad is underLoad for a folder in which the watcher started late.
func underComposeLoad(t *testing.T, line e2e.Line, truth *e2e.Truth, client *e2e.Client, box e2e.Mails, do func(facts func() int)) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	loaded := make(chan error, 1)
	go func() {
		loaded <- e2e.Load{Client: client, Workers: 6, Seed: 7, Pause: 60 * time.Millisecond}.Run(ctx)
	}()
	do(truth.Count)
	stop()
	require.NoError(t, <-loaded)
	require.NoError(t, line.WaitConserved(t.Context(), truth, box, 2*time.Minute))
	t.Logf("%d facts conserved; %d requests tried again", truth.Count(), client.Retried.Load())
}

// hardened checks what the containers may do.
func (c *compose) hardened() {
	c.t.Helper()
	for _, service := range []string{"store", "mailer", "audit", "loyalty"} {
		id := c.containers(service)[0]
		require.Equal(c.t, "65532:65532 true [ALL] [no-new-privileges:true]", docker(c.t, "inspect", "-f",
			"{{.Config.User}} {{.HostConfig.ReadonlyRootfs}} {{.HostConfig.CapDrop}} {{.HostConfig.SecurityOpt}}", id), service)
	}
}

// readableByCloner reads and removes a mail as the user who cloned, and checks
// that nobody else can.
func (c *compose) readableByCloner() {
	c.t.Helper()
	as := func(uid int, script string) error {
		cmd := exec.Command("setpriv", fmt.Sprint("--reuid=", uid), fmt.Sprint("--regid=", uid), "--clear-groups", "bash", "-ec", script)
		cmd.Dir = c.dir
		return cmd.Run()
	}
	require.NoError(c.t, as(cloneUID, "cat pickup/*.eml >/dev/null"))
	require.Error(c.t, as(5555, "ls pickup/"), "others must not enter")
	require.Error(c.t, as(cloneUID, "ls pickup/.staging"), "staging is the mailer's alone")
	require.NoError(c.t, as(cloneUID, `f=$(ls pickup/*.eml | head -1); cp "$f" /tmp/removed.eml; rm -f "$f"; test ! -e "$f"; mv /tmp/removed.eml "$f"`))
}

// healthy waits until n containers of the service are healthy.
func (c *compose) healthy(service string, n int) {
	c.t.Helper()
	require.Eventually(c.t, func() bool {
		ok := 0
		for _, id := range c.containers(service) {
			if docker(c.t, "inspect", "-f", "{{.State.Health.Status}}", id) == "healthy" {
				ok++
			}
		}
		return ok == n
	}, deadline, time.Second)
}
