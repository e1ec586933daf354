package mailersvc_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/services/mailer/internal/lettertest"
	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

// eximConfig is a mail server that takes everything from one user, over TLS only, into one maildir.
const eximConfig = `
primary_hostname = mta.example
spool_directory = DIR/work/spool
log_file_path = DIR/work/%slog
pid_file_path = DIR/work/pid
tls_advertise_hosts = *
tls_certificate = DIR/work/cert.pem
tls_privatekey = DIR/work/key.pem
auth_advertise_hosts = ${if eq{$tls_in_cipher}{}{}{*}}
deliver_drop_privilege = true
acl_smtp_rcpt = check
host_lookup =
keep_environment =
begin acl
check:
  accept authenticated = *
  deny
begin routers
all:
  driver = accept
  transport = box
begin transports
box:
  driver = appendfile
  maildir_format = true
  directory = DIR/work/box
  user = Debian-exim
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  server_prompts = :
  server_condition = ${if and{{eq{$auth2}{shop}}{eq{$auth3}{secret}}}}
  server_set_id = $auth2
`

// exim starts Debian's Exim, a mail server that we did not write, with STARTTLS and AUTH on a free port. Every
// mail lands in the returned maildir.
func exim(t *testing.T, authority *smtptest.Authority) (port, maildir string) {
	t.Helper()
	program, err := exec.LookPath("/usr/sbin/exim4")
	switch {
	case err != nil && os.Getenv("CI") != "":
		t.Fatal("exim4-daemon-light is missing: no real mail server has taken these mails")
	case err != nil:
		t.Skip("NOT CHECKED: exim4-daemon-light is missing, so no real mail server has taken these mails")
	case os.Geteuid() != 0:
		t.Skip("NOT CHECKED: exim must be started as root")
	}
	dir, err := os.MkdirTemp("", "pillarbox-exim") // t.TempDir is closed to exim's user
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	require.NoError(t, os.Chmod(dir, 0o755))
	file := filepath.Join(dir, "exim.conf") // its owner and mode are checked
	require.NoError(t, os.WriteFile(file, []byte(strings.ReplaceAll(eximConfig, "DIR", dir)), 0o644))
	work := filepath.Join(dir, "work")
	maildir = filepath.Join(work, "box")
	require.NoError(t, os.MkdirAll(maildir, 0o755))
	certificate := authority.Certificate(t)
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	require.NoError(t, err)
	for name, block := range map[string]pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: certificate.Certificate[0]}, "key.pem": {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(work, name), pem.EncodeToMemory(&block), 0o600))
	}
	require.NoError(t, exec.Command("chown", "-R", "Debian-exim", work).Run())

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, port, err = net.SplitHostPort(free.Addr().String())
	require.NoError(t, err)
	require.NoError(t, free.Close())
	server := exec.Command(program, "-C", file, "-bdf", "-oX", "127.0.0.1."+port)
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	require.NoError(t, server.Start())
	t.Cleanup(func() {
		require.NoError(t, server.Process.Signal(syscall.SIGTERM))
		_ = server.Wait() // its status after a signal says nothing
		if t.Failed() {
			log, _ := os.ReadFile(filepath.Join(work, "mainlog"))
			t.Log(string(log))
		}
	})
	require.Eventually(t, func() bool {
		c, err := net.Dial("tcp", "127.0.0.1:"+port)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, patience, 10*time.Millisecond)
	return port, maildir
}

// TestARealMailServerDeliversWhatWeHandOver goes the whole way: event, STARTTLS, AUTH, a mail server of
// others, its maildir, and a strict parser that shares nothing with either.
func TestARealMailServerDeliversWhatWeHandOver(t *testing.T) {
	t.Parallel()
	authority := smtptest.NewAuthority(t)
	port, maildir := exim(t, authority)
	roots := filepath.Join(t.TempDir(), "roots.pem")
	require.NoError(t, os.WriteFile(roots, authority.PEM, 0o600))
	db, _ := databasetest.SQLite(t, "mailer")
	b := setup(t, db)
	s, _ := b.startAs(t, mailersvc.Config{Sending: mailersvc.Sending{
		Transport: "smtp://shop@127.0.0.1:" + port + "?timeout=20s", SMTPPassword: "secret", Roots: roots,
	}})
	b.ready(t, s)
	want := []string{"mail-1"}
	bodies := [][]byte{requested(t, "mail-1")}
	for o := range 10 {
		for v := range 3 {
			bodies = append(bodies, event(t, fmt.Sprintf("o%d", o), int64(v+1), nil))
			want = append(want, fmt.Sprintf("o%d-%d", o, v+1))
		}
	}
	b.publish(t, bodies...)
	const extra = 1 // the request has two recipients, and each gets a copy
	var files []string
	require.Eventually(t, func() bool {
		var err error
		files, err = filepath.Glob(filepath.Join(maildir, "new", "*"))
		return err == nil && len(files) == len(want)+extra
	}, patience, 20*time.Millisecond)

	folder := t.TempDir()
	for i, file := range files {
		raw, err := os.ReadFile(file)
		require.NoError(t, err)
		// A maildir has the system's line ends.
		raw = bytes.ReplaceAll(raw, []byte("\n"), []byte("\r\n"))
		require.NoError(t, os.WriteFile(filepath.Join(folder, fmt.Sprintf("%d.eml", i)), raw, 0o600))
	}
	got := map[string]int{}
	for _, m := range lettertest.Judge(t, folder) {
		got[m.Event]++
	}
	for _, id := range want {
		n := 1
		if id == "mail-1" {
			n += extra
		}
		require.Equal(t, n, got[id], id)
	}
	require.Equal(t, len(want), b.count(t, "deliveries WHERE state = 'accepted'"))

	_, err := smtp.Dial(context.WithoutCancel(t.Context()), smtp.Config{Server: smtp.Server{
		Host: "127.0.0.1", Port: port, User: "shop", Password: "wrong", Security: smtp.Required, Timeout: 10 * time.Second,
	}, Name: "mailer.example", Roots: authority.Roots})
	require.ErrorContains(t, err, "AUTH: 535")
}
