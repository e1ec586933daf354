package boot

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// fileSuffix marks an environment variable that names a file with the value, as
// container platforms hand out secrets.
const fileSuffix = "_FILE"

// maxSecret bounds such a file in bytes.
const maxSecret = 64 << 10

// ReadSecretFiles sets each NAME in secrets from the file that NAME_FILE names.
// Both set is an error, since only one can be meant.
func ReadSecretFiles(secrets ...string) error {
	for _, name := range secrets {
		path, ok := os.LookupEnv(name + fileSuffix)
		if !ok {
			continue
		}
		if _, both := os.LookupEnv(name); both {
			return fmt.Errorf("%s and %s%s are both set", name, name, fileSuffix)
		}
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%s%s: %w", name, fileSuffix, err)
		}
		if info.Size() > maxSecret {
			return fmt.Errorf("%s%s: %s is larger than %d bytes", name, fileSuffix, path, maxSecret)
		}
		value, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("%s%s: %w", name, fileSuffix, err)
		}
		if err := os.Setenv(name, strings.TrimRight(string(value), "\r\n")); err != nil {
			return fmt.Errorf("%s%s: %w", name, fileSuffix, err)
		}
	}
	return nil
}

// KnownEnv returns every environment name that the model reads.
func KnownEnv(model *kong.Application) []string {
	var names []string
	// The visitor never fails, so Visit does not either.
	_ = kong.Visit(model, func(node kong.Visitable, next kong.Next) error {
		if flag, ok := node.(*kong.Flag); ok {
			names = append(names, flag.Envs...)
		}
		return next(nil)
	})
	return names
}

// CheckEnv refuses names in environ that begin with PILLARBOX_<service>_ for
// one of the services and are not known: a misspelt setting must not be
// silently without effect. secrets may also appear with _FILE.
func CheckEnv(environ, services, known, secrets []string) error {
	for _, name := range secrets {
		known = append(known, name+fileSuffix)
	}
	var problems []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		ours := slices.ContainsFunc(services, func(service string) bool {
			return strings.HasPrefix(name, "PILLARBOX_"+strings.ToUpper(service)+"_")
		})
		if !ours || slices.Contains(known, name) {
			continue
		}
		problem := name + " is not a setting"
		if near := nearest(name, known); near != "" {
			problem += "; did you mean " + near + "?"
		}
		problems = append(problems, problem)
	}
	if len(problems) == 0 {
		return nil
	}
	slices.Sort(problems)
	return fmt.Errorf("environment: %s", strings.Join(problems, "; "))
}

// nearest returns the known name with the smallest edit distance.
func nearest(name string, known []string) string {
	best, distance := "", len(name)
	for _, k := range known {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	return best
}

// editDistance is the Levenshtein distance of two ASCII names.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
