-- The mailer: one delivery per event and recipient.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- staged: the transaction that owns the mail is committed and staged_name may
-- still lie in the staging folder. accepted: the file was seen published.
CREATE TABLE deliveries (
    id          TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    event_id    TEXT NOT NULL,
    order_id    TEXT NOT NULL,
    version     INTEGER NOT NULL,
    recipient   TEXT NOT NULL CHECK (length(recipient) BETWEEN 3 AND 320),
    template    TEXT NOT NULL CHECK (length(template) BETWEEN 1 AND 64),
    state       TEXT NOT NULL DEFAULT 'staged' CHECK (state IN ('staged', 'accepted')),
    staged_name TEXT NOT NULL CHECK (length(staged_name) <= 200),
    message_id  TEXT NOT NULL CHECK (length(message_id) <= 300),
    created_at  INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    accepted_at INTEGER,
    UNIQUE (event_id, recipient, template)
);
CREATE INDEX deliveries_order ON deliveries (order_id, version);
CREATE INDEX deliveries_staged ON deliveries (state, created_at) WHERE state = 'staged';

-- The id in the marker file of the pickup folder. Until founded_at is set no mail
-- was ever staged and the file may be made; afterwards a missing file means that
-- the folder is not mounted or was replaced.
CREATE TABLE pickup_marker (
    id         INTEGER PRIMARY KEY CHECK (id = 1),
    marker     TEXT NOT NULL CHECK (length(marker) BETWEEN 1 AND 100),
    founded_at INTEGER
);

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
