package database

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A pooler in transaction mode (PgBouncer) gives each transaction whatever server
// connection is free. So nothing may belong to a session: no setting, no prepared
// statement, no lock. The URL says that there is one: postgres://…?pooler=transaction.
// Then statements are not prepared by name, connections are opened without
// settings, and the role must have them (ALTER ROLE … SET); a connection whose role
// has not is refused, since its promises would not hold.

const poolerKey = "pooler"

// behindPooler takes the word about the pooler out of cfg.
func behindPooler(cfg *pgx.ConnConfig) (bool, error) {
	mode, ok := cfg.RuntimeParams[poolerKey]
	if !ok {
		return false, nil
	}
	delete(cfg.RuntimeParams, poolerKey)
	if mode != "transaction" {
		return false, errors.New("postgres url: pooler must be transaction; one in session mode needs no word")
	}
	// The types of parameters are asked for once for each statement and connection; the
	// statement itself travels whole each time.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	cfg.DescriptionCacheCapacity = statementCache
	return true, nil
}

// needs are the settings that a role must have.
type needs int

const (
	basic   needs = iota // for migrations, which may take their time
	bounded              // and the time limits
)

// longestLimit: a frozen replica must not hold rows longer than the broker's ack deadline.
const longestLimit = 5 * time.Second

// checkRole refuses a connection whose role leaves out what a direct one would set itself.
func checkRole(ctx context.Context, conn *pgx.Conn, schema string, n needs) error {
	var path, level, commit string
	var lock, idle, statement time.Duration
	err := conn.QueryRow(ctx, `SELECT current_setting('search_path'), current_setting('default_transaction_isolation'),
		current_setting('synchronous_commit'), current_setting('lock_timeout')::interval,
		current_setting('idle_in_transaction_session_timeout')::interval, current_setting('statement_timeout')::interval`).
		Scan(&path, &level, &commit, &lock, &idle, &statement)
	if err != nil {
		return fmt.Errorf("look at the role's settings: %w", err)
	}
	var wrong []string
	check := func(ok bool, setting string) {
		if !ok {
			wrong = append(wrong, setting)
		}
	}
	first, _, _ := strings.Cut(path, ",")
	check(schema == "" || strings.Trim(first, `" `) == schema, "search_path = "+schema)
	check(level == isolation, "default_transaction_isolation = '"+isolation+"'")
	check(commit != "off", "synchronous_commit = on")
	if n == bounded {
		check(lock > 0 && lock < longestLimit, "lock_timeout = '"+lockTimeout.String()+"'")
		check(idle > 0 && idle < longestLimit, "idle_in_transaction_session_timeout = '"+idleInTransactionTimeout.String()+"'")
		check(statement > 0 && statement <= time.Minute, "statement_timeout = '"+defaultStatementTimeout.String()+"'")
	}
	if len(wrong) > 0 {
		return fmt.Errorf("behind a pooler the role %s needs settings of its own (ALTER ROLE … SET …): %s",
			conn.Config().User, strings.Join(wrong, ", "))
	}
	return nil
}
