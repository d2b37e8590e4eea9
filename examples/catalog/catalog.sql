-- The consumer: a copy of the shop's videos to read from.
CREATE EXTENSION pg_inbox;
CREATE SCHEMA catalog_read;

CREATE TABLE catalog_read.video_projection (
    video_id         uuid        PRIMARY KEY,
    uploader_id      uuid        NOT NULL,
    title            text        NOT NULL,
    description      text,
    duration_seconds bigint      NOT NULL,
    published_at     timestamptz NOT NULL,
    version          bigint      NOT NULL
);

-- Readers use this view, so that another table can replace the projection.
CREATE VIEW catalog_read.video AS TABLE catalog_read.video_projection;

-- History of each video. An event applied twice would have two entries here, because no version
-- prevents that: only the inbox does.
CREATE TABLE catalog_read.video_history (
    number     bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_id   uuid        NOT NULL,
    video_id   uuid        NOT NULL,
    version    bigint      NOT NULL,
    event_type text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
