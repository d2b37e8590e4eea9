-- The consumer: a read model of the videos, and a list of everything that was ever applied, without a
-- unique key, so that an event applied twice would show.
CREATE TABLE video (
    video_id         text   PRIMARY KEY,
    title            text   NOT NULL,
    duration_seconds bigint NOT NULL,
    version          bigint NOT NULL,
    deleted          boolean NOT NULL
);
CREATE TABLE applied (
    number   bigint GENERATED ALWAYS AS IDENTITY,
    event_id uuid, video_id text, version bigint
);

CREATE FUNCTION apply_video(event inbox.message) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO applied (event_id, video_id, version)
        VALUES (event.event_id, event.aggregate_id, event.version);
    PERFORM inbox.apply('video', ARRAY['video_id'], 'version', inbox.json(event));
END $$;

SELECT inbox.subscribe('catalog', 'Video*', 'apply_video');
