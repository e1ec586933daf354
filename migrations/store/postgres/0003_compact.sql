-- After a large backlog the outbox is empty and its files are not: PostgreSQL gives back the end of a table, but not what its
-- indexes have grown to. The relay calls this for it, with the owner's rights, since its own are for rows only.
-- It waits for nobody, and leaves alone an outbox that holds anything. A relay of before does not know it.

-- +goose Up
-- +goose StatementBegin
CREATE FUNCTION compact_outbox() RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
    LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE NOWAIT;
    IF EXISTS (SELECT 1 FROM outbox) THEN
        RETURN false;
    END IF;
    TRUNCATE outbox;
    RETURN true;
END $$;
-- +goose StatementEnd
