package rules_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the module's folder.
func root(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// tree returns the files below the module by path, without what git ignores.
func tree(t *testing.T, suffix string) map[string]string {
	t.Helper()
	dir := root(t)
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != dir && (name == ".git" || name == "data" || name == "bin" || name == "pickup") && filepath.Dir(path) == dir {
			return filepath.SkipDir
		}
		if entry.IsDir() || !strings.HasSuffix(name, suffix) {
			return nil
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		files[rel] = string(body)
		return err
	})
	require.NoError(t, err)
	return files
}

func TestFileSizes(t *testing.T) {
	t.Parallel()
	for path, body := range tree(t, ".go") {
		limit := 600
		if strings.HasSuffix(path, "_test.go") {
			limit = 900
		}
		require.LessOrEqual(t, strings.Count(body, "\n"), limit, "%s is too long: split it by idea", path)
	}
	readme, err := os.ReadFile(filepath.Join(root(t), "README.md"))
	require.NoError(t, err)
	require.LessOrEqual(t, bytes.Count(readme, []byte("\n")), 150, "README.md")
}

func TestForbiddenText(t *testing.T) {
	t.Parallel()
	inTests := map[string]*regexp.Regexp{
		"a sleep in a test: use a signal or poll with a deadline": regexp.MustCompile(`\btime\.Sleep\(`),
		"assert: use require": regexp.MustCompile(`testify/assert"|testify/mock"`),
	}
	everywhere := map[string]*regexp.Regexp{
		"init function":               regexp.MustCompile(`(?m)^func init\(\)`),
		"to-do without an issue":      regexp.MustCompile(`TO` + `DO[^(]|FIX` + `ME|\bXXX\b`),
		"slog's default logger":       regexp.MustCompile(`slog\.(Default|SetDefault|Info|Warn|Error|Debug)\(`),
		"an unfinished function":      regexp.MustCompile(`panic\("skele` + `ton"\)`),
		"the promise nobody can keep": regexp.MustCompile(`(?i)exactly[- ]once deliver` + `y\b`),
	}
	for path, body := range tree(t, ".go") {
		if strings.HasPrefix(path, "services/internal/rules/") {
			continue
		}
		for what, pattern := range everywhere {
			require.NotRegexp(t, pattern, body, "%s: %s", path, what)
		}
		if strings.HasSuffix(path, "_test.go") {
			for what, pattern := range inTests {
				require.NotRegexp(t, pattern, body, "%s: %s", path, what)
			}
		}
	}
}

// TestLinks checks that every relative link in a Markdown file leads somewhere.
func TestLinks(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#\s]+)(#[^)]*)?\)`)
	for path, body := range tree(t, ".md") {
		for _, match := range link.FindAllStringSubmatch(body, -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			target := filepath.Join(root(t), filepath.Dir(path), match[1])
			_, err := os.Stat(target)
			require.NoError(t, err, "%s links to %s", path, match[1])
		}
	}
}

// TestSharedIsListed keeps shared/README.md whole: one line per package.
func TestSharedIsListed(t *testing.T) {
	t.Parallel()
	body, err := os.ReadFile(filepath.Join(root(t), "shared", "README.md"))
	require.NoError(t, err)
	for _, p := range packages(t) {
		if rest, ok := strings.CutPrefix(p.ImportPath, "shared/"); ok {
			require.Contains(t, string(body), "`"+rest+"`", "shared/README.md does not list %s", rest)
		}
	}
}
