ALTER TABLE inbox.waiting
    ADD COLUMN detail  text,
    ADD COLUMN hint    text,
    ADD COLUMN context text;

ALTER TABLE inbox.dead_message
    ADD COLUMN detail  text,
    ADD COLUMN hint    text,
    ADD COLUMN context text;

ALTER TABLE inbox.progress
    ADD COLUMN seen_at            timestamptz,
    ADD COLUMN claimed            bigint NOT NULL DEFAULT 0,
    ADD COLUMN sample             uuid,
    ADD COLUMN sampled_at         timestamptz,
    ADD COLUMN sample_occurred_at timestamptz,
    ADD COLUMN sample_received_at timestamptz,
    ADD COLUMN latencies          real[] NOT NULL DEFAULT '{}',
    ADD COLUMN waits              real[] NOT NULL DEFAULT '{}',
    ADD COLUMN latency_buckets    bigint[],
    ADD COLUMN latency_sum        double precision,
    ADD COLUMN unsampled          bigint NOT NULL DEFAULT 0;

CREATE TABLE inbox.progress_change (
    consumer_id integer NOT NULL,
    claimed     bigint  NOT NULL,
    failures    bigint  NOT NULL
);

CREATE TABLE inbox.instance (
    consumer_id integer     NOT NULL REFERENCES inbox.consumer ON DELETE CASCADE,
    name        text        NOT NULL,
    processed   bigint      NOT NULL,
    outstanding bigint      NOT NULL,
    latency_p50 interval,
    latency_p99 interval,
    seen_at     timestamptz NOT NULL,
    expected_by timestamptz NOT NULL,
    latency_buckets bigint[],
    latency_sum double precision,
    PRIMARY KEY (consumer_id, name)
);

DO $$
BEGIN
    IF EXISTS (SELECT FROM pg_extension WHERE extname = 'pg_inbox') THEN
        PERFORM pg_extension_config_dump('inbox.progress_change', '');
        PERFORM pg_extension_config_dump('inbox.instance', '');
    END IF;
END $$;
