-- The producer: videos, and an event for each change of one, in the transaction of the change.
CREATE EXTENSION pg_outbox;

CREATE TABLE video (
    video_id         uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    uploader_id      uuid        NOT NULL DEFAULT gen_random_uuid(),
    title            text        NOT NULL,
    description      text,
    duration_seconds bigint      NOT NULL,
    published_at     timestamptz NOT NULL DEFAULT now(),
    version          bigint      NOT NULL DEFAULT 1
);

CREATE FUNCTION next_version() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.version := OLD.version + 1;
    RETURN NEW;
END $$;
CREATE TRIGGER next_version BEFORE UPDATE ON video FOR EACH ROW EXECUTE FUNCTION next_version();

-- Events carry the whole row. So a consumer can fill its projection from any event without earlier
-- ones. A delete carries no row, because no consumer needs it.
CREATE FUNCTION enqueue_change() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'DELETE' THEN
        PERFORM outbox.enqueue('video', OLD.video_id::text, 'VideoDeleted',
                               jsonb_build_object('video_id', OLD.video_id, 'version', OLD.version + 1,
                                                  'deleted_at', now(), 'occurred_at', clock_timestamp()),
                               version => OLD.version + 1);
    ELSE
        PERFORM outbox.enqueue('video', NEW.video_id::text,
                               CASE TG_OP WHEN 'INSERT' THEN 'VideoCreated' ELSE 'VideoUpdated' END,
                               to_jsonb(NEW) || jsonb_build_object('occurred_at', clock_timestamp()),
                               version => NEW.version);
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER enqueue_change AFTER INSERT OR UPDATE OR DELETE ON video
    FOR EACH ROW EXECUTE FUNCTION enqueue_change();
