package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/pillarbox/pillarbox/shared/reconcile"
)

// Reconcile asks the running services for their accounts, as "suite reconcile" does, and returns nil when all answered
// and nothing is broken.
func (l Line) Reconcile(ctx context.Context) error {
	report, err := l.Report(ctx, reconcile.Config{})
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range report.Findings {
		errs = append(errs, fmt.Errorf("reconcile: %d %s at %s, the first: %+v", f.Count, f.Kind, f.Service, f.Items[0]))
	}
	for _, s := range report.Silent {
		errs = append(errs, fmt.Errorf("reconcile: %s does not answer: %s", s.Who, s.Why))
	}
	return errors.Join(errs...)
}

// Report is what reconciling finds.
func (l Line) Report(ctx context.Context, c reconcile.Config) (reconcile.Report, error) {
	store, subscribers, silent, err := reconcile.Dial(ctx, &reader, l.Admins, "e2e")
	if err != nil {
		return reconcile.Report{}, fmt.Errorf("reconcile: %w", err)
	}
	var others []reconcile.Silence
	for _, s := range silent {
		if !strings.Contains(s.Who, "://") { // a replica that is down has others
			others = append(others, s)
		}
	}
	return reconcile.Run(ctx, c, store, subscribers, others...)
}
