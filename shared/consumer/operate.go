package consumer

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"
	"unicode/utf8"

	"github.com/pillarbox/pillarbox/shared/database"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// Operator is what a person may do with what a consumer has parked and buried. It works on the database
// alone, so it serves a running service and a stopped one's tables alike; what it starts (a redrive) is
// done by the running replicas.
//
// Each change and its entry in operator_actions are one transaction; a refused one is recorded too.
type Operator struct {
	name    string
	ordered bool
	db      *database.DB
	log     *slog.Logger
}

// NewOperator returns the operator of the consumer called name.
func NewOperator(name string, ordered bool, db *database.DB, log *slog.Logger) *Operator {
	return &Operator{name: name, ordered: ordered, db: db, log: log.With(logs.Consumer, name)}
}

// Operator is what a person may do at this consumer.
func (c *Consumer) Operator() *Operator { return NewOperator(c.Name, c.Ordered, c.db, c.log) }

// Name is the consumer's.
func (o *Operator) Name() string { return o.name }

// Log is where its user logs what it cannot return.
func (o *Operator) Log() *slog.Logger { return o.log }

// Reasons why an operator's wish is not met; the error's text says which.
var (
	ErrNotFound = errors.New("not found")
	ErrRefused  = errors.New("refused")
	ErrInvalid  = errors.New("invalid")
)

// Actor is who does something, and why.
type Actor struct {
	Who    string
	Reason string
}

const (
	maxWho    = 200
	maxReason = 1000
	// MaxPage is the most entries of one page of a list.
	MaxPage = 500
)

// check makes the names fit for the table.
func (a Actor) check() (Actor, error) {
	a.Who, a.Reason = clean(a.Who, maxWho), clean(a.Reason, maxReason)
	if a.Who == "" {
		return a, fmt.Errorf("%w: who acts must be named", ErrInvalid)
	}
	return a, nil
}

// Action is one thing that an operator did, or wanted to do.
type Action struct {
	ID     int64     `json:"id"`
	At     time.Time `json:"at"`
	Who    string    `json:"who"`
	Action string    `json:"action"`
	Target string    `json:"target"`
	Reason string    `json:"reason"`
	Result string    `json:"result"`
}

// act runs do in a transaction together with its entry in operator_actions. do returns the result in words.
func (o *Operator) act(ctx context.Context, a Actor, action, target string, do func(context.Context, *database.Tx) (string, error)) error {
	a, err := a.check()
	if err != nil {
		return err
	}
	err = again(ctx, o.db, func(ctx context.Context, tx *database.Tx) error {
		result, err := do(ctx, tx)
		if err != nil {
			return err
		}
		return insertAction(ctx, tx, a, action, target, result)
	})
	if err == nil {
		o.log.InfoContext(ctx, "operator acted", "action", action, "who", a.Who)
		return nil
	}
	if errors.Is(err, ErrRefused) || errors.Is(err, ErrNotFound) {
		// That the wish was refused is worth knowing, and not worth failing for.
		kept := o.db.Tx(ctx, func(ctx context.Context, tx *database.Tx) error {
			return insertAction(ctx, tx, a, action, target, err.Error())
		})
		if kept != nil {
			o.log.WarnContext(ctx, "refused action is not recorded", "action", action, logs.Error, kept)
		}
	}
	return err
}

func insertAction(ctx context.Context, tx *database.Tx, a Actor, action, target, result string) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO operator_actions (who, action, target, reason, result) VALUES ($1, $2, $3, $4, $5)`,
		a.Who, action, clean(target, maxText), a.Reason, clean(result, maxText))
	if err != nil {
		return fmt.Errorf("record action: %w", err)
	}
	return nil
}

// Actions returns what operators did, the newest first, at most limit of those below before (0: the newest).
func (o *Operator) Actions(ctx context.Context, before int64, limit int) ([]Action, error) {
	query := `SELECT id, at, who, action, target, reason, result FROM operator_actions`
	args := []any{page(limit)}
	if before > 0 {
		query += ` WHERE id < $2`
		args = append(args, before)
	}
	rows, err := o.db.Read().QueryContext(ctx, query+` ORDER BY id DESC LIMIT $1`, args...)
	if err != nil {
		return nil, fmt.Errorf("read actions: %w", err)
	}
	out := []Action{}
	err = each(rows, func() error {
		var a Action
		var at int64
		if err := rows.Scan(&a.ID, &at, &a.Who, &a.Action, &a.Target, &a.Reason, &a.Result); err != nil {
			return err
		}
		a.At = database.Time(at)
		out = append(out, a)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read actions: %w", err)
	}
	return out, nil
}

func page(limit int) int {
	if limit <= 0 || limit > MaxPage {
		return MaxPage
	}
	return limit
}

// Content is what a message held: its body as text when it is UTF-8, else in base64.
type Content struct {
	Subject    string          `json:"subject,omitempty"`
	Headers    json.RawMessage `json:"headers,omitempty"`
	Body       *string         `json:"body,omitempty"`
	BodyBase64 string          `json:"body_base64,omitempty"`
	History    json.RawMessage `json:"history,omitempty"`
}

func contentOf(subject, headers, history string, body []byte) *Content {
	c := &Content{Subject: subject}
	for text, field := range map[string]*json.RawMessage{headers: &c.Headers, history: &c.History} {
		if json.Valid([]byte(text)) {
			*field = json.RawMessage(text)
		}
	}
	if utf8.Valid(body) {
		text := string(body)
		c.Body = &text
	} else {
		c.BodyBase64 = base64.StdEncoding.EncodeToString(body)
	}
	return c
}

// timeOf is a time of the tables; nil when there is none.
func timeOf(micros int64) *time.Time {
	if micros == 0 {
		return nil
	}
	t := database.Time(micros)
	return &t
}

// conditions collects the parts of a WHERE clause with their parameters.
type conditions struct {
	text string
	args []any
}

// add appends a condition in which ? stands for the values, in their order.
func (w *conditions) add(condition string, values ...any) {
	if w.text == "" {
		w.text = " WHERE "
	} else {
		w.text += " AND "
	}
	n := 0
	for _, r := range condition {
		if r != '?' {
			w.text += string(r)
			continue
		}
		w.args = append(w.args, values[n])
		n++
		w.text += fmt.Sprintf("$%d", len(w.args))
	}
}

// limit appends an order and a limit.
func (w *conditions) limit(order string, n int) (string, []any) {
	args := append(w.args, n)
	return fmt.Sprintf("%s ORDER BY %s LIMIT $%d", w.text, order, len(args)), args
}
