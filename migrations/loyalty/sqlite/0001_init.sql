-- The loyalty ledger: points per order event, balances per account.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
CREATE TABLE accounts (
    customer   TEXT PRIMARY KEY CHECK (length(customer) BETWEEN 3 AND 320), -- address, domain in lower case
    points     INTEGER NOT NULL CHECK (points BETWEEN -1000000000000000000 AND 1000000000000000000),
    updated_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);

-- Every event leaves a row at the account that it names (0 points included), and one more
-- at each other account that an earlier event of the order had credited.
CREATE TABLE ledger (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id      TEXT NOT NULL CHECK (length(event_id) BETWEEN 1 AND 64),
    customer      TEXT NOT NULL,
    order_id      TEXT NOT NULL,
    order_version INTEGER NOT NULL,
    points        INTEGER NOT NULL CHECK (points BETWEEN -1000000000000000 AND 1000000000000000),
    reason        TEXT NOT NULL CHECK (reason IN ('placed', 'changed', 'cancelled')),
    at            INTEGER NOT NULL, -- of the event
    UNIQUE (event_id, customer)
);
CREATE INDEX ledger_customer ON ledger (customer, position);
CREATE INDEX ledger_order ON ledger (order_id);

-- The last version of each order that took effect here.
CREATE TABLE lanes (
    order_id   TEXT PRIMARY KEY CHECK (length(order_id) BETWEEN 1 AND 64),
    version    INTEGER NOT NULL CHECK (version >= 0),
    updated_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);
CREATE INDEX lanes_updated ON lanes (updated_at);

-- What the consumer remembers of itself: when it first started (the baseline rule).
CREATE TABLE consumer_state (
    name       TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    started_at INTEGER NOT NULL
);

-- Events that wait for their predecessor, or for another attempt, or for a person.
CREATE TABLE parked (
    event_id        TEXT PRIMARY KEY CHECK (length(event_id) BETWEEN 1 AND 64),
    order_id        TEXT NOT NULL,
    version         INTEGER NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'parked', 'dead')),
    event           BLOB NOT NULL,
    stream_sequence INTEGER NOT NULL DEFAULT 0,
    attempts        INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER NOT NULL DEFAULT 0,
    claimed_until   INTEGER NOT NULL DEFAULT 0,
    last_error      TEXT NOT NULL DEFAULT '' CHECK (length(last_error) <= 4000),
    created_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);
CREATE INDEX parked_order ON parked (order_id, version);
CREATE INDEX parked_due ON parked (state, next_attempt_at);

-- What will never work by itself: the bytes, where they came from and why.
CREATE TABLE dead_letters (
    id              TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 200),
    event_id        TEXT,
    order_id        TEXT,
    version         INTEGER,
    subject         TEXT NOT NULL DEFAULT '',
    stream_sequence INTEGER NOT NULL DEFAULT 0,
    headers         TEXT NOT NULL DEFAULT '{}',
    body            BLOB NOT NULL,
    reason          TEXT NOT NULL CHECK (length(reason) <= 4000),
    attempts        INTEGER NOT NULL DEFAULT 0,
    created_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);
CREATE INDEX dead_letters_created ON dead_letters (created_at);

CREATE TABLE leases (
    name       TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    holder     TEXT NOT NULL CHECK (length(holder) <= 200),
    term       INTEGER NOT NULL CHECK (term > 0),
    expires_at INTEGER NOT NULL
);
