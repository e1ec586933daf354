-- A new subscriber may ask for events of the past when it registers: one row for each that did. A store of before
-- knows nothing of the table and answers such a registration without history; the subscriber asks again.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- number: of the attempt, part of its publish ids; it rises when a replay starts over, since the stream lost something.
-- state: running; published, all of it; acknowledged, as the subscriber says; handled, the stream was whole after that.
-- from_time: what was asked for. begin_after, up_to, done_up_to: events.seq. last_seq: of the stream, the highest
-- that a message of this attempt has.
CREATE TABLE replays (
    name         TEXT PRIMARY KEY CHECK (length(name) BETWEEN 1 AND 64),
    number       INTEGER NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('running', 'published', 'acknowledged', 'handled')),
    from_time    INTEGER NOT NULL,
    begin_after  INTEGER NOT NULL,
    up_to        INTEGER NOT NULL,
    done_up_to   INTEGER NOT NULL,
    last_seq     INTEGER NOT NULL DEFAULT 0,
    requested_at INTEGER NOT NULL DEFAULT (CAST(unixepoch('subsec') * 1000000 AS INTEGER))
);
