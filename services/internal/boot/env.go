package boot

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

const (
	envPrefix = "PILLARBOX_"
	// fileSuffix marks an environment variable that names a file with the value,
	// as container platforms hand out secrets.
	fileSuffix = "_FILE"
	// maxSecret bounds such a file in bytes.
	maxSecret = 64 << 10
	// sharedDistance is how many letters a name may differ from a setting that no
	// service's name begins and still be taken for a slip: other programs may well
	// have names that begin with PILLARBOX_.
	sharedDistance = 2
)

// ReadSecretFiles sets each NAME in secrets from the file that NAME_FILE names,
// without line ends at its end. Both set is an error, since only one can be meant.
func ReadSecretFiles(secrets ...string) error {
	for _, name := range secrets {
		path, ok := os.LookupEnv(name + fileSuffix)
		if !ok {
			continue
		}
		if _, both := os.LookupEnv(name); both {
			return fmt.Errorf("%s and %s%s are both set", name, name, fileSuffix)
		}
		value, err := readSecret(path)
		if err == nil {
			err = os.Setenv(name, value)
		}
		if err != nil {
			return fmt.Errorf("%s%s: %w", name, fileSuffix, err)
		}
	}
	return nil
}

func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	// Not by its size: a pipe has none.
	value, err := io.ReadAll(io.LimitReader(f, maxSecret+1))
	if err != nil {
		return "", err
	}
	if len(value) > maxSecret {
		return "", fmt.Errorf("%s is larger than %d bytes", path, maxSecret)
	}
	return strings.TrimRight(string(value), "\r\n"), nil
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
// one of the services and are not known, and names that are almost a known one:
// a misspelt setting must not be silently without effect. secrets may also
// appear with _FILE.
func CheckEnv(environ, services, known, secrets []string) error {
	known = slices.Clone(known)
	for _, name := range secrets {
		known = append(known, name+fileSuffix)
	}
	var problems []string
	for _, entry := range environ {
		name, _, _ := strings.Cut(entry, "=")
		if !strings.HasPrefix(name, envPrefix) || slices.Contains(known, name) {
			continue
		}
		near, distance := nearest(name, known)
		ours := slices.ContainsFunc(services, func(service string) bool {
			return strings.HasPrefix(name, envPrefix+strings.ToUpper(service)+"_")
		})
		if !ours && distance > sharedDistance {
			continue
		}
		problem := name + " is not a setting"
		if distance <= (len(name)-len(envPrefix))/3 {
			problem += ", did you mean " + near + "?"
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
func nearest(name string, known []string) (best string, distance int) {
	distance = len(name)
	for _, k := range known {
		if d := editDistance(name, k); d < distance {
			best, distance = k, d
		}
	}
	return best, distance
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
