-- The producer: videos, and an event for each change, in one transaction. The ledger notes which
-- events were committed, independently of the log of pg_outbox.
CREATE TABLE video (
    video_id         text   PRIMARY KEY,
    title            text   NOT NULL,
    duration_seconds bigint NOT NULL,
    version          bigint NOT NULL,
    deleted          boolean NOT NULL DEFAULT false
);
CREATE TABLE ledger (event_id uuid PRIMARY KEY, video_id text, version bigint);

-- Creates, updates or deletes one of many videos, whichever comes next for it.
CREATE FUNCTION change_video(id text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    event_type text := 'VideoUpdated';
    changed    video;
BEGIN
    INSERT INTO video VALUES (id, 'Video ' || id, 60, 1) ON CONFLICT DO NOTHING RETURNING * INTO changed;
    IF FOUND THEN
        event_type := 'VideoCreated';
    ELSE
        UPDATE video
           SET version = version + 1,
               title = 'Video ' || id || ', take ' || version + 1,
               duration_seconds = duration_seconds + 1,
               deleted = NOT deleted AND random() < 0.05
         WHERE video_id = id
         RETURNING * INTO changed;
        IF changed.deleted THEN
            event_type := 'VideoDeleted';
        END IF;
    END IF;
    INSERT INTO ledger
        SELECT outbox.enqueue('video', id, event_type, to_jsonb(changed), version => changed.version),
               id, changed.version;
END $$;
