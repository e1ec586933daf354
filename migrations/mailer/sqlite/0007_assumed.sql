-- Mails that count as published because their staged file was gone when a sweep looked for it, and nobody has seen
-- them published: a crash came between, and the mail server took them away; or the file was removed by hand. A
-- replica of before writes no such mark.
-- Times are microseconds since 1970 UTC. Forward only.

-- +goose Up
ALTER TABLE deliveries ADD COLUMN assumed INTEGER NOT NULL DEFAULT 0 CHECK (assumed IN (0, 1));
