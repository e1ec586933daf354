-- The rate at which mails are handed over (PILLARBOX_MAILER_RATE) is one budget of all
-- replicas, so it is kept where they meet. A row is made by its first use; a mailer of
-- before knows nothing of the table and is not held by the budget.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- booked: up to when the budget is leased; asked_at: when it was last asked for a share.
CREATE TABLE pace (
    name     TEXT COLLATE "C" PRIMARY KEY CHECK (octet_length(name) BETWEEN 1 AND 64),
    booked   BIGINT NOT NULL,
    asked_at BIGINT NOT NULL
);
