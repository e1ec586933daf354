// Package rules holds the structure of the project as tests: who imports whom,
// what packages are called, how large files grow. It has no code of its own.
package rules_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "github.com/pillarbox/pillarbox/"

// pkg is what go list says of one package; paths are relative to the module.
type pkg struct {
	ImportPath   string
	Name         string
	Imports      []string
	TestImports  []string
	XTestImports []string
}

func packages(t *testing.T) []pkg {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Name,Imports,TestImports,XTestImports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []pkg
	for decoder := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		err := decoder.Decode(&p)
		if errors.Is(err, io.EOF) {
			return all
		}
		require.NoError(t, err)
		p.ImportPath = strings.TrimPrefix(p.ImportPath, module)
		all = append(all, p)
	}
}

// ours returns the imports of this module, shortened.
func ours(imports []string) []string {
	var short []string
	for _, i := range imports {
		if rest, ok := strings.CutPrefix(i, module); ok {
			short = append(short, rest)
		}
	}
	return short
}

// service returns the service that a path belongs to, or "".
func service(path string) string {
	rest, ok := strings.CutPrefix(path, "services/")
	if !ok {
		return ""
	}
	name, _, _ := strings.Cut(rest, "/")
	return name
}

func TestImportRules(t *testing.T) {
	t.Parallel()
	var broken []string
	for _, p := range packages(t) {
		for _, imported := range ours(p.Imports) {
			if why := forbidden(p.ImportPath, imported); why != "" {
				broken = append(broken, p.ImportPath+" → "+imported+": "+why)
			}
		}
		for _, imported := range p.Imports {
			if why := forbiddenOutside(p.ImportPath, imported); why != "" {
				broken = append(broken, p.ImportPath+" → "+imported+": "+why)
			}
		}
	}
	require.Empty(t, broken, strings.Join(broken, "\n"))
}

// forbidden says why one of our packages may not import another, or "".
func forbidden(from, to string) string {
	mine, theirs := service(from), service(to)
	switch {
	case strings.HasPrefix(from, "shared/") && strings.HasPrefix(to, "services/"):
		return "shared never imports services"
	case strings.HasPrefix(from, "shared/events") && to != from:
		return "events imports the standard library only"
	case theirs != "" && theirs != "internal" && mine != theirs && mine != "suite":
		return "services never import each other"
	case mine == "suite" && theirs != "" && theirs != "suite" && theirs != "internal" && !strings.HasSuffix(to, theirs+"svc"):
		return "the suite sees only the svc package"
	case mine == "internal" && theirs != "" && theirs != "internal":
		return "boot knows no service"
	case strings.HasSuffix(from, "svc") && mine == theirs && !strings.Contains(to, "/internal/"):
		return "svc imports only its own internal packages"
	case strings.Contains(from, "/internal/") && mine == theirs && mine != "internal" && strings.HasSuffix(to, mine+"svc"):
		return "internal never imports svc"
	case strings.HasSuffix(to, "test") && !strings.Contains(from, "test") && strings.HasPrefix(to, "shared/"):
		return "only tests import test helpers"
	case to == "shared/broker/embedded" && mine != "suite" && !strings.Contains(from, "test"):
		return "only the suite and tests embed a server"
	}
	return ""
}

// forbiddenOutside says why a package may not import a third-party one, or "".
func forbiddenOutside(from, to string) string {
	third := strings.Contains(strings.Split(to, "/")[0], ".") && !strings.HasPrefix(to, module)
	driver := strings.HasPrefix(to, "github.com/jackc/pgx") || strings.HasPrefix(to, "modernc.org/sqlite")
	server := strings.HasPrefix(to, "github.com/nats-io/nats-server")
	switch {
	case from == "shared/events" && third:
		return "events imports the standard library only"
	case driver && !strings.HasPrefix(from, "shared/database"):
		return "only database imports a driver"
	case server && !strings.HasPrefix(from, "shared/broker/"):
		return "only broker/embedded and brokertest import the server"
	}
	return ""
}

func TestImportRuleTableCatches(t *testing.T) {
	t.Parallel()
	for _, c := range [][2]string{
		{"shared/outbox", "services/store/storesvc"},
		{"shared/events", "shared/logs"},
		{"services/mailer/internal/ledger", "services/store/internal/order"},
		{"services/mailer", "services/store/storesvc"},
		{"services/suite/all", "services/store/internal/order"},
		{"services/store/internal/order", "services/store/storesvc"},
		{"services/internal/boot", "services/store/storesvc"},
		{"services/store/storesvc", "shared/database/databasetest"},
		{"services/store/storesvc", "shared/broker/embedded"},
	} {
		require.NotEmpty(t, forbidden(c[0], c[1]), "%s → %s", c[0], c[1])
	}
	for _, c := range [][2]string{
		{"shared/events", "github.com/google/uuid"},
		{"shared/outbox", "github.com/jackc/pgx/v5"},
		{"services/store/storesvc", "modernc.org/sqlite"},
		{"shared/broker", "github.com/nats-io/nats-server/v2/server"},
	} {
		require.NotEmpty(t, forbiddenOutside(c[0], c[1]), "%s → %s", c[0], c[1])
	}
	require.Empty(t, forbidden("services/suite/all", "services/store/storesvc"))
	require.Empty(t, forbidden("services/store", "services/internal/boot"))
}

func TestPackageNamesMeanSomething(t *testing.T) {
	t.Parallel()
	banned := []string{"util", "utils", "common", "helper", "helpers", "base", "core", "types", "models", "manager"}
	for _, p := range packages(t) {
		require.NotContains(t, banned, p.Name, p.ImportPath)
	}
}

// TestSharedPackagesAreShared keeps shared from becoming a drawer: each package
// has two users, or is one of the parts that DESIGN names for the library.
func TestSharedPackagesAreShared(t *testing.T) {
	t.Parallel()
	named := []string{"shared/outbox", "shared/lease", "shared/admin", "shared/broker/embedded", "shared/coalesce", "shared/dispatch", "shared/pace"}
	users := map[string]map[string]bool{}
	all := packages(t)
	for _, p := range all {
		for _, imported := range ours(slices.Concat(p.Imports, p.TestImports, p.XTestImports)) {
			user := p.ImportPath
			if s := service(user); s != "" {
				user = s
			}
			if imported != p.ImportPath {
				if users[imported] == nil {
					users[imported] = map[string]bool{}
				}
				users[imported][user] = true
			}
		}
	}
	for _, p := range all {
		if !strings.HasPrefix(p.ImportPath, "shared/") || strings.Contains(p.ImportPath, "test") || slices.Contains(named, p.ImportPath) {
			continue
		}
		require.GreaterOrEqual(t, len(users[p.ImportPath]), 2, "%s has fewer than two users", p.ImportPath)
	}
}
