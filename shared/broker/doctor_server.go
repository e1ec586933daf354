package broker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/pillarbox/pillarbox/shared/doctor"
)

const (
	varzTimeout = 3 * time.Second
	maxVarz     = 1 << 20
	triedWithin = time.Second
)

// varz is what we want to know of a server's own figures.
type varz struct {
	Name      string `json:"server_name"`
	JetStream struct {
		Config struct {
			SyncAlways   bool  `json:"sync_always"`
			SyncInterval int64 `json:"sync_interval"`
		} `json:"config"`
	} `json:"jetstream"`
}

func readVarz(ctx context.Context, monitor string) (v varz, err error) {
	ctx, cancel := context.WithTimeout(ctx, varzTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(monitor, "/")+"/varz", nil)
	if err != nil {
		return v, errors.New("PILLARBOX_NATS_MONITOR_URL must be http://host:port")
	}
	// A connection of its own, or it would outlive the look.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Do(request)
	if err != nil {
		return v, fmt.Errorf("ask the server's monitor: %w", err)
	}
	defer func() { err = errors.Join(err, answer.Body.Close()) }()
	if answer.StatusCode != http.StatusOK {
		return v, fmt.Errorf("ask the server's monitor: %s", answer.Status)
	}
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxVarz)).Decode(&v); err != nil {
		return v, fmt.Errorf("ask the server's monitor: %w", err)
	}
	return v, nil
}

// examineRights sends requests that fail in any case, and sees whether they fail for want of a right.
func (c *Conn) examineRights(ctx context.Context, e Examination, r *doctor.Report) {
	if !c.NATS.IsConnected() {
		r.Miss(doctor.Rights, "NATS", ErrDisconnected)
		return
	}
	// There is no such stream, so nothing can be deleted.
	none := "pillarbox-doctor-" + uuid.NewString()
	tries := []struct{ what, subject string }{{"delete streams", "$JS.API.STREAM.DELETE." + none}}
	if e.Rights == SubscriberRights {
		tries = append(tries, struct{ what, subject string }{"publish events", e.Stream + ".events"})
	}
	var may []string
	for _, try := range tries {
		// A stream takes no message that expects another stream.
		m := &nats.Msg{Subject: try.subject, Header: nats.Header{}}
		if !strings.HasPrefix(try.subject, "$JS.") {
			m.Header.Set("Nats-Expected-Stream", none)
		}
		allowed, err := c.allowed(ctx, m)
		if err != nil {
			r.Miss(doctor.Rights, "NATS", fmt.Errorf("try to %s: %w", try.what, err))
			continue
		}
		if allowed {
			may = append(may, try.what)
		}
	}
	if len(may) > 0 {
		r.Find(doctor.BrokerTooOpen, "NATS, user "+c.user(), "it may %s", strings.Join(may, " and "))
	}
}

// user is the name in the connection's address.
func (c *Conn) user() string {
	for _, server := range c.NATS.Opts.Servers {
		if u, err := url.Parse(server); err == nil && u.User != nil {
			return u.User.Username()
		}
	}
	return "without a name"
}

// allowed reports whether the server took m. Its refusal comes before the answer to a ping that follows.
func (c *Conn) allowed(ctx context.Context, m *nats.Msg) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, triedWithin)
	defer cancel()
	m.Reply = c.NATS.NewInbox()
	if len(m.Header) == 0 {
		m.Header = nil
	}
	answers, err := c.NATS.SubscribeSync(m.Reply)
	if err != nil {
		return false, err
	}
	defer func() { _ = answers.Unsubscribe() }() // the connection may be gone
	if err := c.NATS.PublishMsg(m); err != nil {
		return false, err
	}
	if err := c.NATS.FlushWithContext(ctx); err != nil {
		return false, err
	}
	if err := c.NATS.LastError(); err != nil && strings.Contains(err.Error(), m.Subject) {
		return false, nil
	}
	// Answered by the broker, or taken with nobody there to answer: either way it was let through.
	if _, err := answers.NextMsgWithContext(ctx); err != nil && !errors.Is(err, nats.ErrNoResponders) {
		return false, err
	}
	return true, nil
}
