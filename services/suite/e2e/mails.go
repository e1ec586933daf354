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
	Body      string    // undecoded
	Appeared  time.Time // when an Appearance saw it; else zero
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

// Mails is a source of the mails that were ever seen in a pickup folder.
type Mails interface {
	// Mails returns all mails so far, and what was wrong on the way.
	Mails() ([]Mail, error)
}

// Mailbox looks into a pickup folder whenever it is asked. It sees what lies
// there, not in which order it came; Appearance does.
type Mailbox struct {
	Folder string

	mu   sync.Mutex // guards the rest
	seen map[string]bool
	all  []Mail
	err  error
}

// Mails reads what is new and returns all.
func (m *Mailbox) Mails() ([]Mail, error) {
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
		m.seen[name] = true
		parsed, err := ReadMail(filepath.Join(m.Folder, name))
		if err != nil {
			m.err = errors.Join(m.err, err)
			continue
		}
		m.all = append(m.all, parsed)
	}
	return append([]Mail(nil), m.all...), m.err
}
