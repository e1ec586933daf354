package sender_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/pillarbox/pillarbox/services/mailer/internal/ledger"
	"github.com/pillarbox/pillarbox/services/mailer/internal/letter"
	"github.com/pillarbox/pillarbox/services/mailer/internal/sender"
	"github.com/pillarbox/pillarbox/services/mailer/internal/smtp"
	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/database/databasetest"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
	"github.com/pillarbox/pillarbox/shared/smtptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	from     = "shop@example.com"
)

// ada is the person who decides.
var ada = ledger.Person{Who: "ada", Reason: "the customer asked"}

// world is a ledger and a mail server.
type world struct {
	t       *testing.T
	db      *database.DB
	server  *smtptest.Server
	letters *letter.Renderer
	config  sender.Config
}

func each(t *testing.T, test func(t *testing.T, w *world)) {
	t.Helper()
	t.Parallel()
	databasetest.Each(t, "mailer", func(t *testing.T, db *database.DB) {
		server, err := smtptest.Start(smtptest.Config{})
		require.NoError(t, err)
		t.Cleanup(server.Close)
		test(t, newWorld(t, db, server))
	})
}

func newWorld(t *testing.T, db *database.DB, server *smtptest.Server) *world {
	t.Helper()
	letters, err := letter.New(letter.Config{From: "Shop <" + from + ">", Domain: "example.com"})
	require.NoError(t, err)
	return &world{t: t, db: db, server: server, letters: letters, config: sender.Config{
		SMTP: smtp.Config{Server: address(t, server.URL("", "timeout=2s")), Name: "mailer.example"}, From: from,
		Workers: 4, Backoff: 10 * time.Millisecond, MaxBackoff: 50 * time.Millisecond, Poll: 20 * time.Millisecond,
	}}
}

func address(t *testing.T, url string) smtp.Server {
	t.Helper()
	s, err := smtp.ParseServer(url)
	require.NoError(t, err)
	return s
}

// start runs a replica until the returned stop.
func (w *world) start(budget sender.Budget) (s *sender.Sender, stop func()) {
	w.t.Helper()
	metrics, err := sender.NewMetrics(nil)
	require.NoError(w.t, err)
	s, err = sender.New(w.config, sender.Deps{DB: w.db, Render: w.letters.Render, Budget: budget, Metrics: metrics, Log: logs.Discard()})
	require.NoError(w.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { s.Run(ctx); close(ended) }()
	stop = sync.OnceFunc(func() { cancel(); <-ended })
	w.t.Cleanup(stop)
	return s, stop
}

// enqueue queues the mails of events in one transaction.
func (w *world) enqueue(all ...events.Event) {
	w.t.Helper()
	var rows []ledger.Outgoing
	for _, e := range all {
		l, err := w.letters.Render(e)
		require.NoError(w.t, err)
		raw, err := e.Encode()
		require.NoError(w.t, err)
		o := ledger.Outgoing{Delivery: ledger.Delivery{
			ID: l.Delivery, EventID: l.EventID, OrderID: l.OrderID, Version: l.Version, Recipient: l.Recipients[0],
			Template: l.Template, MessageID: l.MessageID,
		}, Event: raw}
		for _, a := range l.Recipients {
			o.Recipients = append(o.Recipients, ledger.Recipient{Address: a, State: ledger.Pending})
		}
		rows = append(rows, o)
	}
	require.NoError(w.t, w.db.Tx(w.t.Context(), func(ctx context.Context, tx *database.Tx) error { return ledger.Enqueue(ctx, tx, rows) }))
}

// event is version n of an order of the customer order@example.com.
func event(order string, version int64) events.Event {
	kind := events.TypeChanged
	if version == 1 {
		kind = events.TypePlaced
	}
	at := time.Date(2026, 3, 14, 9, 0, int(version), 0, time.UTC)
	data, err := json.Marshal(events.Order{
		ID: order, Version: version, Status: "placed", Currency: "EUR", Total: "9.00", PlacedAt: at,
		Customer: events.Customer{Email: order + "@example.com"},
		Items:    []events.Item{{SKU: "TEA-01", Quantity: 2, UnitPrice: "4.50"}},
	})
	if err != nil {
		panic(err) // the type always encodes
	}
	return events.Event{ID: fmt.Sprintf("%s-%d", order, version), Source: events.Source, Type: kind, Time: at, Subject: order, Version: version, Data: data}
}

// waitFor waits until no more mails are queued or being sent, and returns the deliveries by state.
func (w *world) waitFor() map[string][]ledger.Entry {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		q, err := ledger.Look(w.t.Context(), w.db)
		return err == nil && q.Waiting == 0
	}, patience, 5*time.Millisecond)
	return w.entries()
}

func (w *world) entries() map[string][]ledger.Entry {
	w.t.Helper()
	all := map[string][]ledger.Entry{}
	for _, state := range []string{ledger.Queued, ledger.Sending, ledger.Accepted, ledger.Refused, ledger.Unknown} {
		found, err := ledger.List(w.t.Context(), w.db, state, "", 1000)
		require.NoError(w.t, err)
		if len(found) > 0 {
			all[state] = found
		}
	}
	return all
}

func (w *world) count(query string) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.db.Read().QueryRowContext(w.t.Context(), "SELECT COUNT(*) FROM "+query).Scan(&n))
	return n
}

// taken returns "order-version" of the mails that the server took, in order.
func (w *world) taken() (all []string) {
	for _, m := range w.server.Taken() {
		head, _, _ := strings.Cut(string(m.Data), "\n\n")
		for line := range strings.SplitSeq(head, "\n") {
			if id, ok := strings.CutPrefix(line, letter.HeaderEvent+": "); ok {
				all = append(all, id)
			}
		}
	}
	return all
}

func TestReplicasSendEachMailOnceAndInVersionOrder(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		const orders, versions = 12, 8
		w.config.PerConnection = 7
		w.start(nil)
		s, _ := w.start(nil)
		var want []string
		for v := range versions {
			var group []events.Event
			for o := range orders {
				group = append(group, event(fmt.Sprintf("o%d", o), int64(v+1)))
				want = append(want, group[o].ID)
			}
			w.enqueue(group...)
			s.Wake()
		}
		require.Len(t, w.waitFor()[ledger.Accepted], orders*versions)
		got := w.taken()
		next := map[string]int{}
		for _, id := range got {
			order, version, _ := strings.Cut(id, "-")
			next[order]++
			require.Equal(t, fmt.Sprint(next[order]), version, "order %s", order)
		}
		slices.Sort(want)
		slices.Sort(got)
		require.Equal(t, want, got)
		require.Zero(t, w.count("outgoing"))
		mails := map[int]int{}
		for _, m := range w.server.Taken() {
			mails[m.Connection]++
			require.LessOrEqual(t, mails[m.Connection], 7)
		}
		require.Less(t, len(mails), orders*versions/2, "connections are used again")
	})
}

func TestADeferredMailIsTriedAgainAndItsOrderWaits(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var tries atomic.Int64
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "rcpt" && s.Argument == "grey@example.com" && tries.Add(1)%4 != 0 {
				return smtptest.Answer{Reply: "451 4.7.1 greylisted"}
			}
			return smtptest.Answer{}
		})
		w.enqueue(event("grey", 1), event("grey", 2), event("other", 1), event("other", 2))
		w.start(nil)
		accepted := w.waitFor()[ledger.Accepted]
		require.Len(t, accepted, 4)
		require.Zero(t, w.count("dead_letters"))
		got := w.taken()
		require.Less(t, slices.Index(got, "grey-1"), slices.Index(got, "grey-2"))
		for _, d := range accepted {
			if d.OrderID == "grey" {
				require.Equal(t, 4, d.Attempts)
			} else {
				require.Equal(t, 1, d.Attempts)
			}
		}
	})
}

func TestARefusedMailIsADeadLetterWithTheServersWordsAndItsOrderGoesOn(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var refusing atomic.Bool
		refusing.Store(true)
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if refusing.Load() && s.Phase == "end" && s.Mail == 1 {
				return smtptest.Answer{Reply: "554 5.7.1 looks like spam"}
			}
			return smtptest.Answer{}
		})
		w.config.Workers = 1
		w.enqueue(event("o", 1), event("o", 2))
		_, stop := w.start(nil)
		all := w.waitFor()
		require.Len(t, all[ledger.Refused], 1)
		require.Len(t, all[ledger.Accepted], 1)
		require.Equal(t, []string{"o-2"}, w.taken())
		var reason string
		var body []byte
		require.NoError(t, w.db.Read().QueryRowContext(t.Context(), `SELECT reason, body FROM dead_letters WHERE id = 'event-o-1'`).Scan(&reason, &body))
		require.Contains(t, reason, "554 5.7.1 looks like spam")
		back, err := events.Decode(body)
		require.NoError(t, err, "a redrive can read it")
		require.Equal(t, "o-1", back.ID)
		require.Zero(t, w.count("outgoing"))
		stop()

		refusing.Store(false)
		require.NoError(t, ledger.Resend(t.Context(), w.db, all[ledger.Refused][0].ID, ada))
		require.Zero(t, w.count("dead_letters"))
		w.start(nil)
		require.Len(t, w.waitFor()[ledger.Accepted], 2)
		require.ErrorIs(t, ledger.Resend(t.Context(), w.db, all[ledger.Refused][0].ID, ada), ledger.ErrNotSettled)
		require.ErrorIs(t, ledger.Resend(t.Context(), w.db, "nothing", ada), ledger.ErrNotSettled)
	})
}

func TestAnUnclearEndIsUnknownAndNotSentAgainByItself(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var clear atomic.Bool
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if !clear.Load() && s.Phase == "end" && s.Connection%2 == 0 {
				return smtptest.Answer{Close: true, Take: true}
			}
			return smtptest.Answer{}
		})
		w.config.PerConnection, w.config.Workers = 1, 1
		w.enqueue(event("o", 1), event("o", 2), event("o", 3), event("o", 4))
		w.start(nil)
		all := w.waitFor()
		require.Len(t, all[ledger.Unknown], 2)
		require.Len(t, all[ledger.Accepted], 2)
		require.Equal(t, []string{"o-1", "o-2", "o-3", "o-4"}, w.taken(), "each was taken once, in order")
		require.Contains(t, all[ledger.Unknown][0].Recipients[0].Reply, "no answer")
		require.Equal(t, 2, w.count("outgoing"), "what a person may need to send them again")

		clear.Store(true)
		require.NoError(t, ledger.Resend(t.Context(), w.db, all[ledger.Unknown][0].ID, ada))
		require.Len(t, w.waitFor()[ledger.Accepted], 3)
		require.Len(t, w.taken(), 5, "a person wanted it twice")
	})
}

func TestEachRecipientIsSettledByItself(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		var tries atomic.Int64
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			switch {
			case s.Phase == "rcpt" && s.Argument == "nobody@example.com":
				return smtptest.Answer{Reply: "550 5.1.1 nobody here"}
			case s.Phase == "rcpt" && s.Argument == "full@example.com" && tries.Add(1)%3 != 0:
				return smtptest.Answer{Reply: "452 4.2.2 full"}
			}
			return smtptest.Answer{}
		})
		e, err := events.NewMailRequested("mail-1", "/shop/news", time.Now(), events.MailRequest{
			Sender: events.Mailbox{Email: "news@example.com"}, Subject: "Hello", Text: "Hello",
			Recipients: []events.Mailbox{{Email: "ada@example.com"}, {Email: "nobody@example.com"}, {Email: "full@example.com"}},
		})
		require.NoError(t, err)
		w.enqueue(e)
		w.start(nil)
		refused := w.waitFor()[ledger.Refused]
		require.Len(t, refused, 1)
		states := map[string]string{}
		for _, r := range refused[0].Recipients {
			states[r.Address] = r.State
		}
		require.Equal(t, map[string]string{"ada@example.com": ledger.Accepted, "nobody@example.com": ledger.Refused, "full@example.com": ledger.Accepted}, states)
		got := map[string]int{}
		for _, m := range w.server.Taken() {
			require.Equal(t, "news@example.com", m.Sender)
			for _, r := range m.Recipients {
				got[r]++
			}
		}
		require.Equal(t, map[string]int{"ada@example.com": 1, "full@example.com": 1}, got)
		require.Equal(t, 1, w.count(`dead_letters WHERE reason LIKE '%nobody@example.com: 550%'`))
	})
}

func TestAMailThatIsDeferredForTooLongIsGivenUp(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "rcpt" && s.Argument == "full@example.com" {
				return smtptest.Answer{Reply: "452 4.2.2 full"}
			}
			return smtptest.Answer{}
		})
		w.config.GiveUp = 200 * time.Millisecond
		w.enqueue(event("full", 1), event("good", 1))
		w.start(nil)
		all := w.waitFor()
		require.Len(t, all[ledger.Refused], 1)
		require.Equal(t, "given up: 452 4.2.2 full", all[ledger.Refused][0].Recipients[0].Reply)
		require.Len(t, all[ledger.Accepted], 1)
	})
}

func TestAServerThatIsDownBurnsNothing(t *testing.T) {
	for name, answer := range map[string]struct {
		phase  string
		answer smtptest.Answer
	}{
		"greeting 421": {"greeting", smtptest.Answer{Reply: "421 busy", Close: true}},
		"greeting 554": {"greeting", smtptest.Answer{Reply: "554 not you", Close: true}},
		"EHLO closes":  {"ehlo", smtptest.Answer{Close: true}},
		"our sender":   {"mail", smtptest.Answer{Reply: "550 sender refused"}},
		"mail 421":     {"mail", smtptest.Answer{Reply: "421 going down", Close: true}},
		"rcpt 530":     {"rcpt", smtptest.Answer{Reply: "530 authenticate first"}},
	} {
		t.Run(name, func(t *testing.T) {
			each(t, func(t *testing.T, w *world) {
				var up atomic.Bool
				w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
					if !up.Load() && s.Phase == answer.phase {
						return answer.answer
					}
					return smtptest.Answer{}
				})
				w.enqueue(event("o", 1), event("o", 2), event("p", 1))
				s, _ := w.start(nil)
				require.Eventually(t, func() bool { return s.Usable() != nil }, patience, time.Millisecond)
				up.Store(true)
				for _, d := range w.waitFor()[ledger.Accepted] {
					require.Equal(t, 1, d.Attempts)
				}
				require.Len(t, w.taken(), 3)
				require.Eventually(t, func() bool { return s.Usable() == nil }, patience, time.Millisecond)
			})
		})
	}
}

func TestNobodyListens(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		require.NoError(t, l.Close())
		w.config.SMTP.Server = address(t, "smtp://"+l.Addr().String()+"?timeout=1s")
		s, _ := w.start(nil)
		require.Eventually(t, func() bool { return s.Usable() != nil }, patience, time.Millisecond, "seen before the first mail")
		require.ErrorContains(t, s.Usable(), l.Addr().String())
		w.enqueue(event("o", 1))
		server, err := smtptest.Start(smtptest.Config{Address: l.Addr().String()})
		require.NoError(t, err)
		t.Cleanup(server.Close)
		require.Len(t, w.waitFor()[ledger.Accepted], 1)
		require.Len(t, server.Taken(), 1)
	})
}

func TestAMailThatBreaksItsConnectionIsToBlameWhenAnotherConnects(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "rcpt" && s.Argument == "poison@example.com" {
				return smtptest.Answer{Close: true}
			}
			return smtptest.Answer{}
		})
		w.config.GiveUp = 200 * time.Millisecond
		w.enqueue(event("poison", 1), event("a", 1), event("b", 1))
		s, _ := w.start(nil)
		all := w.waitFor()
		require.Len(t, all[ledger.Accepted], 2)
		require.Len(t, all[ledger.Refused], 1)
		require.Contains(t, all[ledger.Refused][0].Recipients[0].Reply, "given up")
		require.NoError(t, s.Usable())
	})
}

func TestAStopWaitsForTheAnswer(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		reached, answer := make(chan struct{}, 1), make(chan struct{})
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "end" {
				reached <- struct{}{}
				return smtptest.Answer{Wait: answer}
			}
			return smtptest.Answer{}
		})
		w.enqueue(event("o", 1), event("o", 2))
		_, stop := w.start(nil)
		<-reached
		stopped := make(chan struct{})
		go func() { stop(); close(stopped) }()
		close(answer)
		<-stopped
		all := w.entries()
		require.Len(t, all[ledger.Accepted], 1)
		require.Len(t, all[ledger.Queued], 1, "nothing new is begun")
		require.Zero(t, all[ledger.Queued][0].Attempts)
	})
}

func TestAnAnswerAfterTheDrainIsUnknown(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		reached := make(chan struct{}, 1)
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "end" {
				reached <- struct{}{}
				return smtptest.Answer{Silent: true, Take: true}
			}
			return smtptest.Answer{}
		})
		w.config.Drain = 50 * time.Millisecond
		w.enqueue(event("o", 1))
		_, stop := w.start(nil)
		<-reached
		stop()
		require.Len(t, w.entries()[ledger.Unknown], 1)
	})
}

// budget lets n mails pass.
type budget struct {
	passed atomic.Int64
	most   int64
}

func (b *budget) Wait(context.Context, int) error {
	if b.passed.Add(1) > b.most {
		return errors.New("no more")
	}
	return nil
}

func TestTheBudgetIsAskedForEachMail(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.config.Poll = 5 * time.Millisecond
		w.enqueue(event("a", 1), event("b", 1), event("c", 1), event("d", 1))
		b := &budget{most: 3}
		w.start(b)
		require.Eventually(t, func() bool { return b.passed.Load() > 6 }, patience, time.Millisecond)
		require.Eventually(t, func() bool { return len(w.entries()[ledger.Accepted]) == 3 }, patience, time.Millisecond)
		require.Len(t, w.entries()[ledger.Queued], 1)
	})
}

func TestAQueueThatIsFullTakesNoMore(t *testing.T) {
	each(t, func(t *testing.T, w *world) {
		w.server.SetScript(func(s smtptest.Step) smtptest.Answer {
			if s.Phase == "rcpt" {
				return smtptest.Answer{Reply: "451 later"}
			}
			return smtptest.Answer{}
		})
		w.config.MaxWaiting, w.config.Backoff = 2, time.Hour
		s, _ := w.start(nil)
		w.enqueue(event("a", 1))
		require.NoError(t, s.Usable())
		w.enqueue(event("b", 1))
		require.Eventually(t, func() bool { return s.Usable() != nil }, patience, time.Millisecond)
		require.ErrorContains(t, s.Usable(), "2 mails")
	})
}
