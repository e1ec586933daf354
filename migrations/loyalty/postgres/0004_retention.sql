-- What old rows need to be removed: what was forgotten, and indexes by age. A replica of before fills none of the new
-- columns: orders that only wait for a replay count as new there, and what it skips is dated by the cleaner.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
-- removed_up_to: lanes whose order's last event happened before that time may be gone. Events of before that come
-- again without a lane were handled.
ALTER TABLE consumer_state ADD COLUMN removed_up_to BIGINT NOT NULL DEFAULT 0;
-- forgotten: 1 when the lane of its order had been removed when the event came.
ALTER TABLE parked ADD COLUMN forgotten BIGINT NOT NULL DEFAULT 0 CHECK (forgotten IN (0, 1));
-- settled_at: when a skipped letter was first seen by the cleaner; 0: not yet.
ALTER TABLE dead_letters ADD COLUMN settled_at BIGINT NOT NULL DEFAULT 0;
CREATE INDEX dead_letters_skipped ON dead_letters (settled_at) WHERE skipped = 1;
CREATE INDEX dead_letters_order ON dead_letters (order_id);
CREATE INDEX operator_actions_at ON operator_actions (at);
