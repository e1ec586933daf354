-- Mails that are handed to a mail server: the ledger is their queue, and remembers each attempt from before
-- it begins. A mailer of before writes and reads only the states staged and accepted, as it did.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- queued: waits for an attempt from next_attempt_at on. sending: an attempt was begun under claim and should have
-- ended by claimed_until. refused: some recipient never gets it; there is a dead letter. unknown: for some recipient
-- it was sent to its end without an answer, and only a person sends it again.
ALTER TABLE deliveries DROP CONSTRAINT deliveries_state_check;
ALTER TABLE deliveries ADD CONSTRAINT deliveries_state_check
    CHECK (state IN ('staged', 'accepted', 'queued', 'sending', 'refused', 'unknown')) NOT VALID;
ALTER TABLE deliveries VALIDATE CONSTRAINT deliveries_state_check;
-- recipients: a JSON array of address, state and the server's words. attempts: those that count against the mail.
ALTER TABLE deliveries
    ADD COLUMN recipients      TEXT NOT NULL DEFAULT '[]' CHECK (octet_length(recipients) <= 400000),
    ADD COLUMN attempts        BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN queued_at       BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN next_attempt_at BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN claim           TEXT NOT NULL DEFAULT '' CHECK (octet_length(claim) <= 64),
    ADD COLUMN claimed_until   BIGINT NOT NULL DEFAULT 0,
    ADD COLUMN settled_at      BIGINT;
CREATE INDEX deliveries_due ON deliveries (next_attempt_at) WHERE state = 'queued';
CREATE INDEX deliveries_sending ON deliveries (claimed_until) WHERE state = 'sending';
CREATE INDEX deliveries_open ON deliveries (order_id, version) WHERE state IN ('queued', 'sending');
CREATE INDEX deliveries_settled ON deliveries (state, id) WHERE state IN ('refused', 'unknown');

-- The event that a delivery's mail is made of, until it is settled.
CREATE TABLE outgoing (
    delivery_id TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(delivery_id) BETWEEN 1 AND 64),
    event       BYTEA NOT NULL
);
