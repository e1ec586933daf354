-- The order store: orders, their history, and the outbox.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
CREATE TABLE orders (
    id             TEXT PRIMARY KEY CHECK (length(id) = 36),
    version        INTEGER NOT NULL CHECK (version > 0),
    status         TEXT NOT NULL CHECK (status IN ('placed', 'cancelled')),
    customer_email TEXT NOT NULL CHECK (length(customer_email) BETWEEN 3 AND 320),
    customer_name  TEXT NOT NULL CHECK (length(customer_name) <= 800),
    locale         TEXT NOT NULL CHECK (length(locale) <= 100),
    currency       TEXT NOT NULL CHECK (length(currency) = 3),
    items          TEXT NOT NULL,             -- JSON array as in the API
    total_minor    INTEGER NOT NULL CHECK (total_minor >= 0), -- in the currency's smallest unit
    reference      TEXT NOT NULL CHECK (length(reference) <= 800),
    placed_at      INTEGER NOT NULL,
    updated_at     INTEGER NOT NULL
);

-- Append-only history: the source of timeline, refill, replay and reconcile.
-- seq is taken under the order's lock: it rises with the versions of one order.
CREATE TABLE events (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    id         TEXT NOT NULL UNIQUE CHECK (length(id) BETWEEN 1 AND 64),
    order_id   TEXT NOT NULL,
    version    INTEGER NOT NULL CHECK (version > 0),
    type       TEXT NOT NULL,
    payload    BLOB NOT NULL CHECK (length(payload) <= 900000),
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    UNIQUE (order_id, version)
);
CREATE INDEX events_created ON events (created_at);

-- What is not yet confirmed by the broker. seq is the event's, size its
-- payload's length. dead_reason: the broker will never take this row; its order
-- is held, the others go on.
CREATE TABLE outbox (
    seq         INTEGER PRIMARY KEY,
    event_id    TEXT NOT NULL UNIQUE,
    order_id    TEXT NOT NULL,
    size        INTEGER NOT NULL,
    created_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    dead_reason TEXT
);
CREATE INDEX outbox_dead ON outbox (order_id, seq) WHERE dead_reason IS NOT NULL;

-- One row: what the relay knows of the stream (created in microseconds).
-- refill_from is set while a refill runs: what the stream had above that sequence
-- was lost. refill_cursor is set while the whole horizon is refilled: the events
-- up to this events.seq are done.
CREATE TABLE relay_state (
    id             INTEGER PRIMARY KEY CHECK (id = 1),
    stream_created INTEGER NOT NULL,
    last_seq       INTEGER NOT NULL,
    generation     INTEGER NOT NULL,
    refill_count   INTEGER NOT NULL DEFAULT 0,
    refill_from    INTEGER,
    refill_cursor  INTEGER,
    term           INTEGER NOT NULL
);

-- Which events the stream got: a run of consecutive sequences that ends at
-- last_seq, as a JSON array of event ids.
CREATE TABLE relay_log (
    last_seq   INTEGER PRIMARY KEY,
    event_ids  TEXT NOT NULL,
    created_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);

-- Events (by events.seq) that the stream had and lost: to be published again.
CREATE TABLE relay_lost (
    seq INTEGER PRIMARY KEY
);

-- The first answer to each idempotency key. response is NULL while the order of
-- the key is not yet decided.
CREATE TABLE idempotency (
    caller      TEXT NOT NULL,
    key         TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    fingerprint BLOB NOT NULL,
    order_id    TEXT NOT NULL,
    status      INTEGER NOT NULL,
    response    BLOB NOT NULL,
    created_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_created ON idempotency (created_at);

-- Consumers that registered: the purge waits for all of them.
CREATE TABLE consumers (
    name          TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    durable       TEXT NOT NULL,
    registered_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);

CREATE TABLE leases (
    name       TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    holder     TEXT NOT NULL CHECK (length(holder) <= 200),
    term       INTEGER NOT NULL CHECK (term > 0),
    expires_at INTEGER NOT NULL
);
