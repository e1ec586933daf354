-- The audit log: one row per event, append-only: the database itself refuses to
-- change or delete an entry. A release that expires or erases entries replaces
-- those triggers in a migration of its own. (Whoever can write the file can drop them.)
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
CREATE TABLE entries (
    position      INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id      TEXT NOT NULL UNIQUE CHECK (length(event_id) BETWEEN 1 AND 64),
    type          TEXT NOT NULL,
    order_id      TEXT NOT NULL,
    order_version INTEGER NOT NULL,
    occurred_at   INTEGER NOT NULL,
    recorded_at   INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    event         BLOB NOT NULL
);
CREATE INDEX entries_order ON entries (order_id, position);

-- +goose StatementBegin
CREATE TRIGGER entries_never_change BEFORE UPDATE ON entries
BEGIN
    SELECT RAISE(ABORT, 'audit entries are append-only');
END;
-- +goose StatementEnd
-- +goose StatementBegin
CREATE TRIGGER entries_never_go BEFORE DELETE ON entries
BEGIN
    SELECT RAISE(ABORT, 'audit entries are append-only');
END;
-- +goose StatementEnd

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
