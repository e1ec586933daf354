-- Mails that are handed to a mail server: the ledger is their queue, and remembers each attempt from before
-- it begins. The table is written anew, since SQLite cannot change a CHECK.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- queued: waits for an attempt from next_attempt_at on. sending: an attempt was begun under claim and should have
-- ended by claimed_until. refused: some recipient never gets it; there is a dead letter. unknown: for some recipient
-- it was sent to its end without an answer, and only a person sends it again.
-- recipients: a JSON array of address, state and the server's words. attempts: those that count against the mail.
CREATE TABLE deliveries_new (
    id              TEXT PRIMARY KEY CHECK (length(id) BETWEEN 1 AND 64),
    event_id        TEXT NOT NULL,
    order_id        TEXT NOT NULL,
    version         INTEGER NOT NULL,
    recipient       TEXT NOT NULL CHECK (length(recipient) BETWEEN 3 AND 320),
    template        TEXT NOT NULL CHECK (length(template) BETWEEN 1 AND 64),
    state           TEXT NOT NULL DEFAULT 'staged' CHECK (state IN ('staged', 'accepted', 'queued', 'sending', 'refused', 'unknown')),
    staged_name     TEXT NOT NULL CHECK (length(staged_name) <= 200),
    message_id      TEXT NOT NULL CHECK (length(message_id) <= 300),
    created_at      INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER)),
    accepted_at     INTEGER,
    recipients      TEXT NOT NULL DEFAULT '[]' CHECK (length(recipients) <= 400000),
    attempts        INTEGER NOT NULL DEFAULT 0,
    queued_at       INTEGER NOT NULL DEFAULT 0,
    next_attempt_at INTEGER NOT NULL DEFAULT 0,
    claim           TEXT NOT NULL DEFAULT '' CHECK (length(claim) <= 64),
    claimed_until   INTEGER NOT NULL DEFAULT 0,
    settled_at      INTEGER,
    UNIQUE (event_id, recipient, template)
);
INSERT INTO deliveries_new (id, event_id, order_id, version, recipient, template, state, staged_name, message_id, created_at, accepted_at)
    SELECT id, event_id, order_id, version, recipient, template, state, staged_name, message_id, created_at, accepted_at FROM deliveries;
DROP TABLE deliveries;
ALTER TABLE deliveries_new RENAME TO deliveries;
CREATE INDEX deliveries_order ON deliveries (order_id, version);
CREATE INDEX deliveries_staged ON deliveries (state, created_at) WHERE state = 'staged';
CREATE INDEX deliveries_due ON deliveries (next_attempt_at) WHERE state = 'queued';
CREATE INDEX deliveries_sending ON deliveries (claimed_until) WHERE state = 'sending';
CREATE INDEX deliveries_open ON deliveries (order_id, version) WHERE state IN ('queued', 'sending');
CREATE INDEX deliveries_settled ON deliveries (state, id) WHERE state IN ('refused', 'unknown');

-- The event that a delivery's mail is made of, until it is settled.
CREATE TABLE outgoing (
    delivery_id TEXT PRIMARY KEY CHECK (length(delivery_id) BETWEEN 1 AND 64),
    event       BLOB NOT NULL
);
