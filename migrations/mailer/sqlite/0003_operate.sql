-- What operators need for parked events and dead letters: the headers an event came with and the
-- failures it has had, what people did and why, and redrives whose set of letters is fixed at their start.
-- A replica of before writes none of the new columns and reads none of the new tables.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
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
