package e2e

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/mail"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Mail is one e-mail of the pickup folder.
type Mail struct {
	File      string
	MessageID string
	To        string
	Order     string
	Version   int64
	Event     string
	Body      string // undecoded
}

// ReadMail parses one .eml file.
func ReadMail(path string) (Mail, error) {
	f, err := os.Open(path)
	if err != nil {
		return Mail{}, err
	}
	defer f.Close()
	message, err := mail.ReadMessage(f)
	if err != nil {
		return Mail{}, fmt.Errorf("%s: %w", path, err)
	}
	body, err := io.ReadAll(message.Body)
	if err != nil {
		return Mail{}, fmt.Errorf("%s: %w", path, err)
	}
	to, err := mail.ParseAddress(message.Header.Get("To"))
	if err != nil {
		return Mail{}, fmt.Errorf("%s: To: %w", path, err)
	}
	version, err := strconv.ParseInt(message.Header.Get("X-Pillarbox-Version"), 10, 64)
	if err != nil {
		return Mail{}, fmt.Errorf("%s: version: %w", path, err)
	}
	return Mail{
		File: filepath.Base(path), MessageID: message.Header.Get("Message-ID"), To: to.Address,
		Order: message.Header.Get("X-Pillarbox-Order"), Version: version,
		Event: message.Header.Get("X-Pillarbox-Event"), Body: string(body),
	}, nil
}

// Mailbox collects the mails of a pickup folder in the order in which it first
// sees them, as a mail server that polls the folder does.
type Mailbox struct {
	Folder string
	// Keep moves every n-th mail away, as a mail server would; 0 leaves all.
	TakeEvery int
	// Taken is where they go.
	Taken string

	mu   sync.Mutex // guards the rest
	seen map[string]bool
	all  []Mail
	err  error
}

// Poll reads what is new. Within one look the files are taken in version order
// of their orders only if the folder shows them so: a later version without its
// predecessor is an error that Err keeps.
func (m *Mailbox) Poll() {
	m.mu.Lock()
	defer m.mu.Unlock()
	entries, err := os.ReadDir(m.Folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.err = errors.Join(m.err, err)
	}
	if m.seen == nil {
		m.seen = map[string]bool{}
	}
	for _, e := range entries {
		name := e.Name()
		if e.IsDir() || !strings.HasSuffix(name, ".eml") || m.seen[name] {
			continue
		}
		parsed, err := ReadMail(filepath.Join(m.Folder, name))
		if err != nil {
			m.err = errors.Join(m.err, err)
			continue
		}
		m.all = append(m.all, parsed)
		if m.TakeEvery > 0 && len(m.all)%m.TakeEvery == 0 {
			// Forgotten as soon as it is gone: should it appear once more, it is a duplicate.
			m.err = errors.Join(m.err, os.Rename(filepath.Join(m.Folder, name), filepath.Join(m.Taken, fmt.Sprint(len(m.all), "-", name))))
			continue
		}
		m.seen[name] = true
	}
}

// PollUntil polls until done is closed, then once more.
func (m *Mailbox) PollUntil(done <-chan struct{}) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			m.Poll()
			return
		case <-tick.C:
			m.Poll()
		}
	}
}

// Mails returns what was seen so far, and what was wrong with it.
func (m *Mailbox) Mails() ([]Mail, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]Mail(nil), m.all...), m.err
}
