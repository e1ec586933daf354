package postgres_test

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestServerStopsCrashesAndComesBack(t *testing.T) {
	t.Parallel()
	s, err := postgres.Start(t.Context(), postgres.Config{})
	if errors.Is(err, postgres.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	url := s.URL()
	require.NoError(t, postgres.Answers(t.Context(), url))

	require.NoError(t, s.Stop(postgres.Fast))
	require.Error(t, postgres.Answers(t.Context(), url))
	require.NoError(t, s.Stop(postgres.Fast), "stopping twice is fine")
	require.NoError(t, s.Start(t.Context()))
	require.Error(t, s.Start(t.Context()), "starting twice is not")
	require.NoError(t, s.Restart(t.Context(), postgres.Immediate))
	require.NoError(t, s.Kill())
	require.NoError(t, s.Start(t.Context()))
	require.Equal(t, url, s.URL())
	require.NoError(t, postgres.Answers(t.Context(), url))
}

func TestFolderOfItsOwnIsKept(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "pillarbox-postgres-test-")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	s, err := postgres.Start(t.Context(), postgres.Config{Dir: dir, Durable: true, Settings: map[string]string{"work_mem": "8MB"}})
	if errors.Is(err, postgres.ErrNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, s.Close())
	require.DirExists(t, dir)
}
