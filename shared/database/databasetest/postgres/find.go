package postgres

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrNotFound means that this machine has no PostgreSQL server programs.
var ErrNotFound = errors.New("no PostgreSQL server programs found")

// Find returns the folder with initdb and postgres: from the PATH, from
// pg_config, or the newest of the places where packages put them.
func Find() (string, error) {
	var folders []string
	if path, err := exec.LookPath("postgres"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			folders = append(folders, filepath.Dir(path))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		folders = append(folders, strings.TrimSpace(string(out)))
	}
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin",
		"/usr/local/opt/postgresql@*/bin", "/usr/local/pgsql/bin",
	} {
		found, _ := filepath.Glob(pattern) // the patterns are well-formed
		slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })
		folders = append(folders, found...)
	}
	for _, folder := range folders {
		if runnable(filepath.Join(folder, "initdb")) && runnable(filepath.Join(folder, "postgres")) {
			return folder, nil
		}
	}
	return "", ErrNotFound
}

func runnable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}

// version is the first number in a folder's name, so that 9 comes before 17.
func version(folder string) int {
	digits := strings.FieldsFunc(folder, func(r rune) bool { return r < '0' || r > '9' })
	if len(digits) == 0 {
		return 0
	}
	n, _ := strconv.Atoi(digits[0]) // an absurdly long number counts as 0
	return n
}
