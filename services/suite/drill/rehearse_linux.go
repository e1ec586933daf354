package drill

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"time"

	"github.com/pillarbox/pillarbox/services/suite/e2e"
)

const (
	// giveUp bounds the tries of one request; a restart takes seconds.
	giveUp = 2 * time.Minute
	// takeEvery mails one is taken away at once, as a mail server does.
	takeEvery = 3
	// mostSettling bounds the wait for effects that still come.
	mostSettling = time.Hour
)

// scene is a running drill.
type scene struct {
	*Command
	suite  *e2e.SuiteProcess
	truth  e2e.Truth
	client *e2e.Client
	mails  *e2e.Appearance
	report Report
}

// rehearse does the drill in a scratch folder, which it removes.
func (c *Command) rehearse(ctx context.Context) (_ *Report, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(filepath.Dir(c.Data), "pillarbox-drill-")
	if err != nil {
		return nil, fmt.Errorf("scratch folder: %w", err)
	}
	s := &scene{Command: c, report: Report{Seed: c.Seed, Findings: []Finding{}}}
	defer func() {
		if s.suite != nil {
			err = errors.Join(err, s.suite.Kill())
		}
		e2e.CloseIdle()
		if !c.Keep {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if c.Keep {
		s.report.Kept = dir
	}
	if err := s.start(ctx, dir); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.mails.Stop()) }()
	if err := s.play(ctx); err != nil {
		return nil, err
	}
	return &s.report, nil
}

// start starts the suite and what looks at its mails.
func (s *scene) start(ctx context.Context, dir string) (err error) {
	program := s.Program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return fmt.Errorf("find this program: %w", err)
		}
	}
	if s.suite, err = e2e.NewSuiteProcess(e2e.Binaries{Dir: filepath.Dir(program)}, dir, environment()...); err != nil {
		return fmt.Errorf("suite: %w", err)
	}
	line := s.suite.Line()
	s.suite.Path = program
	s.suite.Args = append(append(s.suite.Args, s.Settings...), "--mailer-transport=pickup", "--mailer-pickup="+line.Pickup)
	if err := s.suite.Run(ctx); err != nil {
		return err
	}
	taken := filepath.Join(dir, "taken")
	if err := os.Mkdir(taken, 0o700); err != nil {
		return fmt.Errorf("folder for mails taken away: %w", err)
	}
	if s.mails, err = e2e.WatchAppearance(line.Pickup, taken, takeEvery); err != nil {
		return err
	}
	s.client = e2e.NewClient(&s.truth, line.Stores...)
	s.client.GiveUp = giveUp
	return nil
}

// play is load and faults, and then the comparison.
func (s *scene) play(ctx context.Context) error {
	loading, stop := context.WithCancel(ctx)
	defer stop()
	workers := max(2, int(math.Ceil(s.Rate/5)))
	loaded := make(chan error, 1)
	go func() {
		// Half of the longest pause is the mean one.
		pause := time.Duration(2 * float64(workers) / s.Rate * float64(time.Second))
		loaded <- e2e.Load{Client: s.client, Workers: workers, Seed: s.Seed, Pause: pause}.Run(loading)
	}()
	begun := time.Now()
	if err := s.harm(ctx); err != nil {
		return err
	}
	s.report.Seconds = seconds(time.Since(begun))
	stop()
	var refused error
	select {
	case <-ctx.Done(): // requests that are still tried end with this program
		return ctx.Err()
	case refused = <-loaded:
	}
	calm := time.Now()
	if err := s.judge(ctx); err != nil {
		return errors.Join(refused, err)
	}
	s.report.Settled = seconds(time.Since(calm))
	s.report.Repeated = s.client.Retried.Load()
	if s.report.Clean && refused != nil {
		return fmt.Errorf("load: %w", refused)
	}
	if err := s.suite.Stop(); err != nil && s.report.Clean {
		return fmt.Errorf("last stop: %w", err)
	}
	return nil
}
