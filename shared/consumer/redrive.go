package consumer

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/lease"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// leaseRedrive names the leadership of a redrive: one replica does it, a letter at a time.
const leaseRedrive = "redrive"

// redriver does the redrives that operators start, on one replica of all: while one runs they compete for its
// lease. ctx stops it between letters; the letters themselves run on work.
//
//	pending ──revived: parked again, its letter stands──▶ trying ──took effect, letter gone──▶ done
//	                                                          └────failed: dead again──▶ failed, the redrive stops
//
// A crash leaves a letter in "trying"; the next leader looks at its row and goes on from there.
func (c *Consumer) redriver(ctx, work context.Context) {
	holder := leaseHolder()
	for wait.For(ctx, wait.Jitter(c.Sweep)) {
		if id, err := c.runningRedrive(ctx); err != nil || id == "" || c.halted(work) {
			continue // an outage is noticed elsewhere
		}
		l, err := lease.New(lease.Config{Name: leaseRedrive, Holder: holder}, c.db, c.log)
		if err != nil {
			c.log.ErrorContext(ctx, "redrive cannot begin", logs.Error, err)
			return
		}
		c.compete(ctx, work, l)
	}
}

func leaseHolder() string {
	host, _ := os.Hostname() // the rest is unique by itself
	return clean(fmt.Sprintf("%.100s %d %s", host, os.Getpid(), rand.Text()), 200)
}

// compete takes part in the election until no redrive runs any more.
func (c *Consumer) compete(ctx, work context.Context, l *lease.Lease) {
	ctx, over := context.WithCancel(ctx)
	defer over()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for wait.For(ctx, wait.Jitter(c.Sweep)) {
			// In mode single the one that consumes is the one that redrives.
			if id, err := c.runningRedrive(ctx); err == nil && id == "" || c.seat.standsBy() {
				over()
			}
		}
	}()
	// It returns at the end of ctx only, and then nil.
	_ = l.Run(ctx, func(ctx context.Context, term int64) error {
		for {
			id, err := c.runningRedrive(ctx)
			if err != nil || id == "" || ctx.Err() != nil {
				return err
			}
			if err := c.redrive(ctx, work, term, id); err != nil {
				return err
			}
		}
	})
	over()
	<-ended
}

func (c *Consumer) runningRedrive(ctx context.Context) (id string, err error) {
	err = c.db.Read().QueryRowContext(ctx, `SELECT id FROM redrives WHERE state = 'running'`).Scan(&id)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return id, err
}

// redrive does one redrive to its end, its cancellation, or the end of ctx.
func (c *Consumer) redrive(ctx, work context.Context, term int64, id string) error {
	r := &redriving{c: c, id: id, term: term}
	var rate int64
	err := c.db.Read().QueryRowContext(ctx, `SELECT rate, (SELECT count(*) FROM redrive_items
		WHERE redrive_id = $1 AND state IN ('done', 'failed', 'gone')) FROM redrives WHERE id = $1`, id).Scan(&rate, &r.tried)
	if err != nil {
		return fmt.Errorf("read redrive: %w", err)
	}
	c.log.InfoContext(ctx, "redrive goes on", "redrive", id, logs.Count, r.tried)
	begun := r.tried
	for {
		pause := time.Second / time.Duration(rate)
		if r.tried > begun && beginsStage(r.tried) {
			pause = max(pause, c.Sweep) // a moment to look, before more is risked
		}
		if !wait.For(ctx, pause) {
			return nil
		}
		if c.halted(work) {
			if !wait.For(ctx, wait.Jitter(c.Sweep)) {
				return nil
			}
			continue
		}
		more, err := r.step(ctx, work)
		if err != nil || !more {
			return err
		}
	}
}

// redriving is one redrive under way.
type redriving struct {
	c     *Consumer
	id    string
	term  int64
	tried int
	// undecided counts attempts in a row at one letter that came to nothing.
	undecided int
}

// maxUndecided bounds them: something else may hold the order for good.
const maxUndecided = 50

// redriveItem is a letter of the set as the leader sees it.
type redriveItem struct {
	position int
	letter   string
	state    string
	attempts int
}

var errRedriveOver = errors.New("redrive is over")

// step does the next letter. It returns false when the redrive is over.
func (r *redriving) step(ctx, work context.Context) (bool, error) {
	c := r.c
	var i *item
	var it redriveItem
	var ended string
	before := r.tried
	err := c.again(ctx, func(ctx context.Context, tx *database.Tx) (err error) {
		i, ended, r.tried = nil, "", before
		if it, err = r.next(ctx, tx); err != nil {
			return err
		}
		if it.letter == "" {
			ended = redriveDone
			return r.end(ctx, tx, redriveDone, "")
		}
		i, err = r.revive(ctx, tx, &it)
		return err
	})
	switch {
	case errors.Is(err, errRedriveOver):
		return false, nil
	case err != nil:
		return false, err
	case ended != "":
		c.log.InfoContext(ctx, "redrive is done", "redrive", r.id, logs.Count, r.tried)
		return false, nil
	case i == nil: // settled without an attempt
		return true, nil
	}
	failpoint.Hit(c.Name + ".redrive_revived")
	end := c.seat.begin()
	c.handle(work, batch{items: []*item{i}})
	end()
	failpoint.Hit(c.Name + ".redrive_tried")
	return r.judge(work, it)
}

// next returns the first letter that is not settled, under the term and while the redrive runs.
func (r *redriving) next(ctx context.Context, tx *database.Tx) (it redriveItem, err error) {
	if err := r.holds(ctx, tx); err != nil {
		return it, err
	}
	err = tx.QueryRowContext(ctx, `SELECT position, letter_id, state, attempts FROM redrive_items
		WHERE redrive_id = $1 AND state IN ('pending', 'trying') ORDER BY position LIMIT 1`, r.id).
		Scan(&it.position, &it.letter, &it.state, &it.attempts)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return it, fmt.Errorf("read redrive: %w", err)
	}
	return it, nil
}

// holds checks the term, and locks the redrive against a cancellation until the transaction ends.
func (r *redriving) holds(ctx context.Context, tx *database.Tx) error {
	if err := lease.Check(ctx, tx, leaseRedrive, r.term); err != nil {
		return err
	}
	var state string
	err := tx.QueryRowContext(ctx, `SELECT state FROM redrives WHERE id = $1`+tx.Dialect().ForUpdate(), r.id).Scan(&state)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("read redrive: %w", err)
	}
	if state != redriveRunning {
		return errRedriveOver
	}
	return nil
}

// judge reads what became of the letter, and ends the redrive when it failed. When nothing was decided (an
// outage, a conflict) the letter comes again.
func (r *redriving) judge(ctx context.Context, it redriveItem) (more bool, err error) {
	before := r.tried
	if !r.c.halted(ctx) {
		r.undecided++
	}
	err = r.c.again(ctx, func(ctx context.Context, tx *database.Tx) error {
		more, r.tried = true, before
		if err := lease.Check(ctx, tx, leaseRedrive, r.term); err != nil {
			return err
		}
		state, note, err := r.outcome(ctx, tx, it)
		if state == itemTrying && r.undecided >= maxUndecided {
			state, note = itemFailed, "it could not be tried: something else holds its order"
		}
		if err != nil || state == itemTrying {
			return err
		}
		r.undecided = 0
		if err := r.settle(ctx, tx, it, state, note); err != nil || state != itemFailed {
			return err
		}
		more = false
		return r.end(ctx, tx, redriveStopped, it.letter+" failed again: "+note)
	})
	if err == nil && !more {
		r.c.log.WarnContext(ctx, "redrive stopped at a failure", "redrive", r.id, "letter", it.letter)
	}
	return more, err
}

// settle writes the state of a letter.
func (r *redriving) settle(ctx context.Context, tx *database.Tx, it redriveItem, state, note string) error {
	_, err := tx.ExecContext(ctx, `UPDATE redrive_items SET state = $3, note = $4 WHERE redrive_id = $1 AND position = $2`,
		r.id, it.position, state, clean(note, maxText))
	if err == nil {
		_, err = tx.ExecContext(ctx, `UPDATE redrives SET updated_at = `+tx.Dialect().Now()+` WHERE id = $1`, r.id)
	}
	if err != nil {
		return fmt.Errorf("update redrive: %w", err)
	}
	if state == itemDone || state == itemFailed || state == itemGone {
		r.tried++
	}
	return nil
}

// end closes the redrive, unless it was cancelled meanwhile, and records its result.
func (r *redriving) end(ctx context.Context, tx *database.Tx, state, note string) error {
	var who, reason string
	err := tx.QueryRowContext(ctx, `UPDATE redrives SET state = $2, note = $3, updated_at = `+tx.Dialect().Now()+`
		WHERE id = $1 AND state = 'running' RETURNING who, reason`, r.id, state, clean(note, maxText)).Scan(&who, &reason)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("end redrive: %w", err)
	}
	result := fmt.Sprintf("%s after %d letters", state, r.tried)
	if note != "" {
		result += ": " + note
	}
	return insertAction(ctx, tx, Actor{who, reason}, "redrive ended", r.id, result)
}
