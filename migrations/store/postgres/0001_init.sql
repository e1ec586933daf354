-- The order store: orders, their history, and the outbox.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
CREATE TABLE orders (
    id             TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(id) = 36),
    version        BIGINT NOT NULL CHECK (version > 0),
    status         TEXT NOT NULL CHECK (status IN ('placed', 'cancelled')),
    customer_email TEXT NOT NULL CHECK (octet_length(customer_email) BETWEEN 3 AND 320),
    customer_name  TEXT NOT NULL CHECK (octet_length(customer_name) <= 800),
    locale         TEXT NOT NULL CHECK (octet_length(locale) <= 100),
    currency       TEXT NOT NULL CHECK (octet_length(currency) = 3),
    items          TEXT NOT NULL,             -- JSON array as in the API
    total_minor    BIGINT NOT NULL CHECK (total_minor >= 0), -- in the currency's smallest unit
    reference      TEXT NOT NULL CHECK (octet_length(reference) <= 800),
    placed_at      BIGINT NOT NULL,
    updated_at     BIGINT NOT NULL
);

-- Append-only history: the source of timeline, refill, replay and reconcile.
-- seq is taken under the order's lock: it rises with the versions of one order.
CREATE TABLE events (
    seq        BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id         TEXT COLLATE "C" NOT NULL UNIQUE CHECK (octet_length(id) BETWEEN 1 AND 64),
    order_id   TEXT COLLATE "C" NOT NULL,
    version    BIGINT NOT NULL CHECK (version > 0),
    type       TEXT NOT NULL,
    payload    BYTEA NOT NULL CHECK (octet_length(payload) <= 900000),
    created_at BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    UNIQUE (order_id, version)
);
CREATE INDEX events_created ON events (created_at);

-- What is not yet confirmed by the broker. seq is the event's, size its
-- payload's length. dead_reason: the broker will never take this row; its order
-- is held, the others go on.
CREATE TABLE outbox (
    seq         BIGINT PRIMARY KEY,
    event_id    TEXT COLLATE "C" NOT NULL UNIQUE,
    order_id    TEXT COLLATE "C" NOT NULL,
    size        BIGINT NOT NULL,
    created_at  BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    dead_reason TEXT
) WITH (
    -- The head of a queue is all dead rows: vacuum by their number, not by their share.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX outbox_dead ON outbox (order_id, seq) WHERE dead_reason IS NOT NULL;

-- One row: what the relay knows of the stream (created in microseconds).
-- refill_from is set while a refill runs: what the stream had above that sequence
-- was lost. refill_cursor is set while the whole horizon is refilled: the events
-- up to this events.seq are done.
CREATE TABLE relay_state (
    id             BIGINT PRIMARY KEY CHECK (id = 1),
    stream_created BIGINT NOT NULL,
    last_seq       BIGINT NOT NULL,
    generation     BIGINT NOT NULL,
    refill_count   BIGINT NOT NULL DEFAULT 0,
    refill_from    BIGINT,
    refill_cursor  BIGINT,
    term           BIGINT NOT NULL
);

-- Which events the stream got: a run of consecutive sequences that ends at
-- last_seq, as a JSON array of event ids.
CREATE TABLE relay_log (
    last_seq   BIGINT PRIMARY KEY,
    event_ids  TEXT NOT NULL,
    created_at BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);

-- Events (by events.seq) that the stream had and lost: to be published again.
CREATE TABLE relay_lost (
    seq BIGINT PRIMARY KEY
);

-- The first answer to each idempotency key. response is NULL while the order of
-- the key is not yet decided.
CREATE TABLE idempotency (
    caller      TEXT COLLATE "C" NOT NULL,
    key         TEXT COLLATE "C" NOT NULL CHECK (octet_length(key) BETWEEN 1 AND 255),
    fingerprint BYTEA NOT NULL,
    order_id    TEXT COLLATE "C" NOT NULL,
    status      BIGINT NOT NULL,
    response    BYTEA NOT NULL,
    created_at  BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    PRIMARY KEY (caller, key)
);
CREATE INDEX idempotency_created ON idempotency (created_at);

-- Consumers that registered: the purge waits for all of them.
CREATE TABLE consumers (
    name          TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 64),
    durable       TEXT NOT NULL,
    registered_at BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);

CREATE TABLE leases (
    name       TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 64),
    holder     TEXT NOT NULL CHECK (octet_length(holder) <= 200),
    term       BIGINT NOT NULL CHECK (term > 0),
    expires_at BIGINT NOT NULL
);
