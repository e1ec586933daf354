-- The mailer: one delivery per event and recipient.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- staged: the transaction that owns the mail is committed and staged_name may
-- still lie in the staging folder. accepted: the file was seen published.
CREATE TABLE deliveries (
    id          TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 64),
    event_id    TEXT COLLATE "C" NOT NULL,
    order_id    TEXT COLLATE "C" NOT NULL,
    version     BIGINT NOT NULL,
    recipient   TEXT NOT NULL CHECK (octet_length(recipient) BETWEEN 3 AND 320),
    template    TEXT COLLATE "C" NOT NULL CHECK (octet_length(template) BETWEEN 1 AND 64),
    state       TEXT NOT NULL DEFAULT 'staged' CHECK (state IN ('staged', 'accepted')),
    staged_name TEXT NOT NULL CHECK (octet_length(staged_name) <= 200),
    message_id  TEXT NOT NULL CHECK (octet_length(message_id) <= 300),
    created_at  BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint,
    accepted_at BIGINT,
    UNIQUE (event_id, recipient, template)
);
CREATE INDEX deliveries_order ON deliveries (order_id, version);
CREATE INDEX deliveries_staged ON deliveries (state, created_at) WHERE state = 'staged';

-- The id in the marker file of the pickup folder. Until founded_at is set no mail
-- was ever staged and the file may be made; afterwards a missing file means that
-- the folder is not mounted or was replaced.
CREATE TABLE pickup_marker (
    id         BIGINT PRIMARY KEY CHECK (id = 1),
    marker     TEXT NOT NULL CHECK (octet_length(marker) BETWEEN 1 AND 100),
    founded_at BIGINT
);

-- The last version of each order that took effect here.
CREATE TABLE lanes (
    order_id   TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(order_id) BETWEEN 1 AND 64),
    version    BIGINT NOT NULL CHECK (version >= 0),
    updated_at BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);
CREATE INDEX lanes_updated ON lanes (updated_at);

-- What the consumer remembers of itself: when it first started (the baseline rule).
CREATE TABLE consumer_state (
    name       TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 64),
    started_at BIGINT NOT NULL
);

-- Events that wait for their predecessor, or for another attempt, or for a person.
CREATE TABLE parked (
    event_id        TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(event_id) BETWEEN 1 AND 64),
    order_id        TEXT COLLATE "C" NOT NULL,
    version         BIGINT NOT NULL,
    state           TEXT NOT NULL CHECK (state IN ('waiting', 'parked', 'dead')),
    event           BYTEA NOT NULL,
    stream_sequence BIGINT NOT NULL DEFAULT 0,
    attempts        BIGINT NOT NULL DEFAULT 0,
    next_attempt_at BIGINT NOT NULL DEFAULT 0,
    claimed_until   BIGINT NOT NULL DEFAULT 0,
    last_error      TEXT NOT NULL DEFAULT '' CHECK (octet_length(last_error) <= 4000),
    created_at      BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);
CREATE INDEX parked_order ON parked (order_id, version);
CREATE INDEX parked_due ON parked (state, next_attempt_at);

-- What will never work by itself: the bytes, where they came from and why.
CREATE TABLE dead_letters (
    id              TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(id) BETWEEN 1 AND 200),
    event_id        TEXT COLLATE "C",
    order_id        TEXT COLLATE "C",
    version         BIGINT,
    subject         TEXT NOT NULL DEFAULT '',
    stream_sequence BIGINT NOT NULL DEFAULT 0,
    headers         TEXT NOT NULL DEFAULT '{}',
    body            BYTEA NOT NULL,
    reason          TEXT NOT NULL CHECK (octet_length(reason) <= 4000),
    attempts        BIGINT NOT NULL DEFAULT 0,
    created_at      BIGINT NOT NULL DEFAULT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
);
CREATE INDEX dead_letters_created ON dead_letters (created_at);

CREATE TABLE leases (
    name       TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 64),
    holder     TEXT NOT NULL CHECK (octet_length(holder) <= 200),
    term       BIGINT NOT NULL CHECK (term > 0),
    expires_at BIGINT NOT NULL
);
