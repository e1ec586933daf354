// Package lettertest judges mails with Python's strict e-mail parser, which
// shares no code with the mailer. Only tests import it.
package lettertest

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

//go:embed judge.py
var judge string

// Mail is what the judge read.
type Mail struct {
	File          string   `json:"file"`
	Error         string   `json:"error"`
	Headers       []string `json:"headers"` // names in lower case, sorted
	From          string   `json:"from"`
	To            string   `json:"to"`
	ToName        string   `json:"to_name"`
	Others        []string `json:"others"` // further recipients
	Subject       string   `json:"subject"`
	MessageID     string   `json:"message_id"`
	Date          string   `json:"date"`
	Event         string   `json:"event"`
	Order         string   `json:"order"` // "" when the mail is about none
	Version       int64    `json:"version"`
	AutoSubmitted string   `json:"auto_submitted"`
	Text          string   `json:"text"`
	HTML          string   `json:"html"`
}

// Judge parses all .eml files in folder, in the order of their names, and fails
// the test when one has a defect. Without Python the test is skipped; in CI it fails.
func Judge(t *testing.T, folder string) []Mail {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("python3 is missing: nobody judged the mails")
		}
		t.Skip("NOT JUDGED: python3 is missing, so no outside parser has seen these mails")
	}
	command := exec.CommandContext(t.Context(), python, "-c", judge, folder)
	command.WaitDelay = time.Second
	var problems bytes.Buffer
	command.Stderr = &problems
	out, err := command.Output()
	require.NoError(t, err, problems.String())
	var mails []Mail
	for decoder := json.NewDecoder(bytes.NewReader(out)); decoder.More(); {
		var m Mail
		require.NoError(t, decoder.Decode(&m))
		require.Empty(t, m.Error, m.File)
		mails = append(mails, m)
	}
	return mails
}
