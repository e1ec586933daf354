package sender

import (
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"time"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/failpoint"
	"github.com/pillarbox/pillarbox/shared/group"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/wait"
)

// clerk writes claims and results for all workers: what waits when it is free becomes one transaction.
type clerk struct {
	db     *database.DB
	hold   time.Duration
	log    *slog.Logger
	papers chan *paper
	// forsaken are claims whose commit may have happened though it reported an error: nothing was sent under
	// them, which only we know. The clerk's goroutine owns it.
	forsaken []string
}

// paper is what a worker hands in: a result, or the wish for a mail.
type paper struct {
	result *ledger.Settlement // nil: wants a mail
	mail   *ledger.Outgoing   // the mail, nil when there was none
	begun  time.Time          // of the claim: before its transaction
	done   chan struct{}
}

const (
	mostPapers = 256
	// lastTry is how long results are still written after the stop.
	lastTry = 3 * time.Second
	retry   = 50 * time.Millisecond
	longest = 2 * time.Second
	// mostForsaken bounds the claims to be given back; those beyond become unknown by their time.
	mostForsaken = 1000
)

func newClerk(db *database.DB, hold time.Duration, log *slog.Logger) *clerk {
	return &clerk{db: db, hold: hold, log: log, papers: make(chan *paper, mostPapers)}
}

// hand waits until p is dealt with.
func (c *clerk) hand(p *paper) {
	p.done = make(chan struct{})
	c.papers <- p
	<-p.done
}

// claim returns a mail that is now being sent, and when its time began; nil when none is due.
func (c *clerk) claim() (*ledger.Outgoing, time.Time) {
	p := &paper{}
	c.hand(p)
	return p.mail, p.begun
}

// settle returns once the result is written, or can no more be.
func (c *clerk) settle(s ledger.Settlement) { c.hand(&paper{result: &s}) }

// run works until ctx ends and nobody hands anything in any more. Once work has ended results have little time left.
func (c *clerk) run(ctx, work context.Context) {
	for {
		select {
		case <-ctx.Done():
			c.giveBack(context.WithoutCancel(ctx))
			return
		case first := <-c.papers:
			c.deal(work, group.Take([]*paper{first}, c.papers, group.UpTo[*paper](mostPapers)))
		}
	}
}

// deal makes one transaction of papers. When it fails, results are tried again for as long as it takes: without
// them a mail that was taken would become unknown. Wishes are not: the workers come again.
func (c *clerk) deal(work context.Context, papers []*paper) {
	var results, wishes []*paper
	for _, p := range papers {
		if p.result != nil {
			results = append(results, p)
		} else {
			wishes = append(wishes, p)
		}
	}
	err := c.write(work, results, wishes)
	answer(wishes)
	if err != nil && len(results) > 0 {
		c.insist(work, results, err)
	}
	if err == nil && len(results) > 0 {
		failpoint.Hit("mailer.settled")
	}
	answer(results)
}

func answer(papers []*paper) {
	for _, p := range papers {
		close(p.done)
	}
}

// insist writes results whatever it takes: while the database is away or busy all of them again and again,
// otherwise one by one, so that one that the database refuses costs the others nothing.
func (c *clerk) insist(work context.Context, results []*paper, err error) {
	var stopped time.Time
	for pause := retry; ; pause = min(2*pause, longest) {
		switch database.Classify(err) {
		case database.ClassUnavailable, database.ClassConflict:
		default:
			if errors.Is(err, database.ErrCommitUnknown) {
				break // writing twice is harmless
			}
			if len(results) == 1 {
				c.lost(work, results, err)
				return
			}
			for _, p := range results {
				if err := c.write(work, []*paper{p}, nil); err != nil {
					c.insist(work, []*paper{p}, err)
				}
			}
			return
		}
		if work.Err() != nil && stopped.IsZero() {
			stopped = time.Now()
		}
		if !stopped.IsZero() && time.Since(stopped) > lastTry {
			c.lost(work, results, err)
			return
		}
		if pause > retry {
			c.log.WarnContext(work, "results of mails are not written yet", logs.Error, err, logs.Count, len(results))
		}
		time.Sleep(wait.Jitter(pause)) // the end of work is no reason to give up a result at once
		if err = c.write(work, results, nil); err == nil {
			return
		}
	}
}

func (c *clerk) lost(ctx context.Context, results []*paper, err error) {
	c.log.ErrorContext(ctx, "results of mails are lost; the mails will be unknown", logs.Error, err, logs.Count, len(results))
}

const writeTimeout = 10 * time.Second

// write outlives ctx: what happened is to be written down.
func (c *clerk) write(ctx context.Context, results, wishes []*paper) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writeTimeout)
	defer cancel()
	settlements := make([]ledger.Settlement, len(results))
	for i, p := range results {
		settlements[i] = *p.result
	}
	claim, begun := rand.Text(), time.Now()
	var claimed []ledger.Outgoing
	err := c.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
		for _, forsaken := range c.forsaken {
			if err := ledger.Release(ctx, tx, forsaken); err != nil {
				return err
			}
		}
		if err := ledger.Settle(ctx, tx, settlements); err != nil {
			return err
		}
		if len(wishes) == 0 {
			return nil
		}
		var err error
		claimed, err = ledger.Claim(ctx, tx, len(wishes), claim, c.hold)
		return err
	})
	if err != nil {
		if len(wishes) > 0 && errors.Is(err, database.ErrCommitUnknown) && len(c.forsaken) < mostForsaken {
			c.forsaken = append(c.forsaken, claim)
		}
		return err
	}
	c.forsaken = nil
	if len(claimed) > 0 {
		failpoint.Hit("mailer.claimed")
	}
	for i := range claimed {
		wishes[i].mail, wishes[i].begun = &claimed[i], begun
	}
	return nil
}

// giveBack is the last word about claims that nothing was sent under.
func (c *clerk) giveBack(ctx context.Context) {
	if len(c.forsaken) == 0 {
		return
	}
	if err := c.write(ctx, nil, nil); err != nil {
		c.log.WarnContext(ctx, "mails that were not sent may become unknown", logs.Error, err, logs.Count, len(c.forsaken))
	}
}
