package doctor_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

func TestRulesAreWhole(t *testing.T) {
	t.Parallel()
	checks := doctor.Checks()
	require.Len(t, checks, 10)
	covered := map[doctor.Check]bool{}
	var codes []doctor.Code
	for _, r := range doctor.Rules() {
		require.Contains(t, []doctor.Severity{doctor.Error, doctor.Warning}, r.Severity, r.Code)
		require.Regexp(t, regexp.MustCompile(`^P\d`), r.Endangers, "%s does not say which promise", r.Code)
		require.NotEmpty(t, r.Title)
		require.NotEmpty(t, r.Fix)
		number := slices.Index(checks, r.Check) + 1
		require.Regexp(t, fmt.Sprintf(`^PBX-%d\d\d$`, number), r.Code)
		covered[r.Check] = true
		codes = append(codes, r.Code)
	}
	require.Len(t, covered, 10, "each check has a rule")
	slices.Sort(codes)
	require.Equal(t, len(codes), len(slices.Compact(codes)), "a code is there twice")
	require.Panics(t, func() { doctor.RuleOf("PBX-000") })
}

// TestRulesAreDocumented keeps the table of docs/operations.md whole.
func TestRulesAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	require.NoError(t, err)
	for _, r := range doctor.Rules() {
		require.Contains(t, string(text), fmt.Sprintf("| %s | %s | %s |", r.Code, r.Severity, r.Title))
	}
	require.Equal(t, len(doctor.Rules()), strings.Count(string(text), "\n| PBX-"), "docs/operations.md has rows without a rule")
}

func TestTheSameFromTwoServicesIsOneFinding(t *testing.T) {
	t.Parallel()
	var r doctor.Report
	for _, service := range []string{"store", "mailer", "mailer"} {
		r.Of(service).Find(doctor.PGFsync, "PostgreSQL", "fsync is %s", "off")
		r.Note(doctor.Clock, "PostgreSQL", "%d", 1)
		r.Miss(doctor.Clock, "NATS", errors.New("away\n\tfor long"))
	}
	r.Of("audit").Find(doctor.PGFsync, "another", "fsync is off")
	require.Len(t, r.Findings, 2)
	require.Equal(t, []string{"store", "mailer"}, r.Findings[0].Services)
	require.Equal(t, []string{"store", "mailer"}, r.Notes[0].Services)
	require.Len(t, r.Notes, 1)
	require.Equal(t, "away; for long", r.Unseen[0].Text)
	require.Equal(t, []doctor.Code{doctor.PGFsync}, r.Codes())
	line := r.Findings[0].String()
	for _, part := range []string{"PBX-501", "PostgreSQL", "fsync is off", "P1", "ALTER SYSTEM"} {
		require.Contains(t, line, part)
	}
	require.NotContains(t, line, "\n")
}

func TestAnUpgradeUnderWayIsNoReasonToRefuse(t *testing.T) {
	t.Parallel()
	var r doctor.Report
	r.Find(doctor.SchemaAhead, "PostgreSQL", "newer")
	require.Empty(t, r.Refusals())
	r.Find(doctor.SchemaBroken, "PostgreSQL", "broken")
	require.Len(t, r.Refusals(), 1)
}

func TestFileSystemsThatDoNotKeep(t *testing.T) {
	t.Parallel()
	for magic, want := range map[int64]string{
		0x6969: "NFS", 0xFF534D42: "SMB/CIFS", 0x01021997: "9p", 0x65735546: "FUSE",
		0x01021994: "tmpfs", 0xEF53: "", 0x58465342: "", 0x9123683E: "",
	} {
		name, why := doctor.Unfit(magic)
		require.Equal(t, want, name, "%x", magic)
		require.Equal(t, want == "", why == "")
	}
	_, err := doctor.FileSystem(filepath.Join(t.TempDir(), "none"))
	if _, here := os.Stat("/proc/self/mounts"); here == nil {
		require.Error(t, err)
	}
}

func TestNamesAndOwner(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	info, err := os.Lstat(path)
	require.NoError(t, err)
	require.EqualValues(t, 1, doctor.Names(info))
	require.NoError(t, os.Link(path, path+"b"))
	info, err = os.Lstat(path)
	require.NoError(t, err)
	require.EqualValues(t, 2, doctor.Names(info))
	uid, ok := doctor.Owner(info)
	require.True(t, ok)
	require.Equal(t, os.Geteuid(), uid)
	require.True(t, doctor.SameDevice(info, info))
}
