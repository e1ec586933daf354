-- What every subscriber has: the tables of shared/consumer, as in the migrations of the services.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
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

-- history: a JSON array of the last failures. skipped: 1 when the order went on without the event.
ALTER TABLE parked ADD COLUMN subject TEXT NOT NULL DEFAULT '';
ALTER TABLE parked ADD COLUMN headers TEXT NOT NULL DEFAULT '{}';
ALTER TABLE parked ADD COLUMN history TEXT NOT NULL DEFAULT '[]';
ALTER TABLE dead_letters ADD COLUMN history TEXT NOT NULL DEFAULT '[]';
ALTER TABLE dead_letters ADD COLUMN skipped INTEGER NOT NULL DEFAULT 0 CHECK (skipped IN (0, 1));

CREATE TABLE operator_actions (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    who     TEXT NOT NULL CHECK (length(who) BETWEEN 1 AND 200),
    action  TEXT NOT NULL CHECK (length(action) BETWEEN 1 AND 64),
    target  TEXT NOT NULL CHECK (length(target) <= 4000),
    reason  TEXT NOT NULL CHECK (length(reason) <= 1000),
    result  TEXT NOT NULL CHECK (length(result) <= 4000)
);

-- At most one redrive runs at a time.
CREATE TABLE redrives (
    id          TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    state       TEXT NOT NULL CHECK (state IN ('running', 'done', 'stopped', 'cancelled')),
    who         TEXT NOT NULL CHECK (length(who) BETWEEN 1 AND 200),
    reason      TEXT NOT NULL CHECK (length(reason) <= 1000),
    rate        INTEGER NOT NULL CHECK (rate > 0),
    note        TEXT NOT NULL DEFAULT '' CHECK (length(note) <= 4000),
    created_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    updated_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);
CREATE UNIQUE INDEX redrives_running ON redrives (state) WHERE state = 'running';
CREATE INDEX redrives_created ON redrives (created_at);

CREATE TABLE redrive_items (
    redrive_id TEXT NOT NULL REFERENCES redrives (id) ON DELETE CASCADE,
    position   INTEGER NOT NULL,
    letter_id  TEXT NOT NULL,
    order_id   TEXT NOT NULL,
    version    INTEGER NOT NULL,
    state      TEXT NOT NULL DEFAULT 'pending' CHECK (state IN ('pending', 'trying', 'done', 'failed', 'gone', 'refused')),
    attempts   INTEGER NOT NULL DEFAULT 0,
    note       TEXT NOT NULL DEFAULT '' CHECK (length(note) <= 4000),
    PRIMARY KEY (redrive_id, position)
);

-- from_setting: as it was set; empty: with what the stream keeps. from_time: events of before take no effect.
ALTER TABLE consumer_state ADD COLUMN from_setting TEXT NOT NULL DEFAULT '' CHECK (length(from_setting) <= 64);
ALTER TABLE consumer_state ADD COLUMN from_time INTEGER NOT NULL DEFAULT 0;
