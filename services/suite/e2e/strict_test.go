package e2e_test

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// strictParser reads every .eml of a folder with a parser that forgives nothing
// and that we did not write.
const strictParser = `
import email, email.policy, pathlib, sys
policy = email.policy.SMTP.clone(raise_on_defect=True)
n = 0
for path in pathlib.Path(sys.argv[1]).glob("*.eml"):
    raw = path.read_bytes()
    m = email.message_from_bytes(raw, policy=policy)
    for name in ("From", "To", "Subject", "Date", "Message-ID"):
        assert len(m.get_all(name, [])) == 1, (path, name)
    assert m["To"].addresses and not m["To"].defects, path
    assert m["Date"].datetime is not None, path
    kinds = [p.get_content_type() for p in m.walk()]
    assert kinds == ["multipart/alternative", "text/plain", "text/html"], (path, kinds)
    for p in m.iter_parts():
        assert p.get_content().strip(), path
    assert max(map(len, raw.split(b"\r\n"))) <= 998 and b"\n" not in raw.replace(b"\r\n", b""), path
    n += 1
print(n)
`

func strictlyParsed(t *testing.T, folder string) {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		require.Empty(t, os.Getenv("CI"), "python3 is missing")
		t.Log("NOT CHECKED: python3 is missing, so no strict parser has read the mails")
		return
	}
	out, err := exec.Command(python, "-c", strictParser, folder).CombinedOutput()
	require.NoError(t, err, string(out))
}
