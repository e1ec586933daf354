-- Where a consumer begins is decided at its first start ever. A consumer that has started before this begins, as it
-- did, with what the stream kept; a replica of a release before writes neither column and decides that too.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- from_setting: as it was set; empty: with what the stream keeps. from_time: events of before take no effect.
ALTER TABLE consumer_state ADD COLUMN from_setting TEXT NOT NULL DEFAULT '' CHECK (length(from_setting) <= 64);
ALTER TABLE consumer_state ADD COLUMN from_time INTEGER NOT NULL DEFAULT 0;
