-- Captured tables: triggers make their changes events. outbox.capture() (capture.sql) writes the
-- rows; extension/capture/capture_config.cpp names the columns in this order.
--
-- Columns of captured tables are stored by name. These tables may be altered, and may have another
-- order of columns after a restore; the event triggers below follow such changes.
CREATE TABLE outbox.captured (
    relation       regclass    PRIMARY KEY,
    aggregate_type text        NOT NULL,
    aggregate_id   name[]      NOT NULL,
    row_key        name[]      NOT NULL,
    version        name,
    topic          text        NOT NULL,
    topic_column   name,
    ordering_key   name[],
    headers        jsonb       CHECK (jsonb_typeof(headers) = 'object'),
    columns        name[],
    excluded       name[]      NOT NULL,
    on_update      text        NOT NULL CHECK (on_update IN ('full', 'changed', 'diff')),
    old_values     boolean     NOT NULL,
    on_delete      text        NOT NULL CHECK (on_delete IN ('key', 'old')),
    conditional    boolean     NOT NULL,
    insert_type    text        NOT NULL,
    update_type    text        NOT NULL,
    delete_type    text        NOT NULL,
    truncate_type  text        NOT NULL,
    snapshot_type  text        NOT NULL,
    on_truncate    text        NOT NULL CHECK (on_truncate IN ('refuse', 'ignore', 'announce')),
    fire           text        NOT NULL CHECK (fire IN ('origin', 'replica', 'always')),
    known_columns  name[]      NOT NULL,
    known_members  oid[]       NOT NULL,
    captured_by    name        NOT NULL DEFAULT CURRENT_USER,
    captured_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.captured IS 'tables whose changes become events; see outbox.capture()';
COMMENT ON COLUMN outbox.captured.relation IS 'the table, with its partitions and children';
COMMENT ON COLUMN outbox.captured.aggregate_type IS 'aggregate type of its events';
COMMENT ON COLUMN outbox.captured.aggregate_id IS 'columns that make the aggregate id';
COMMENT ON COLUMN outbox.captured.row_key IS 'columns of the primary key';
COMMENT ON COLUMN outbox.captured.version IS 'column with the version; null if the position of an event is its version';
COMMENT ON COLUMN outbox.captured.topic IS 'topic of its events, unless topic_column has another';
COMMENT ON COLUMN outbox.captured.topic_column IS 'column with the topic';
COMMENT ON COLUMN outbox.captured.ordering_key IS 'columns that make the ordering key; empty for no order; null for the aggregate id';
COMMENT ON COLUMN outbox.captured.headers IS 'column of each header';
COMMENT ON COLUMN outbox.captured.columns IS 'captured columns; null for all that are not excluded';
COMMENT ON COLUMN outbox.captured.excluded IS 'columns that are not captured';
COMMENT ON COLUMN outbox.captured.on_update IS 'payload of events of updates';
COMMENT ON COLUMN outbox.captured.old_values IS 'whether events include the old values of changed columns';
COMMENT ON COLUMN outbox.captured.on_delete IS 'payload of events of deletes';
COMMENT ON COLUMN outbox.captured.conditional IS 'whether the triggers have a condition';
COMMENT ON COLUMN outbox.captured.insert_type IS 'event type of inserts';
COMMENT ON COLUMN outbox.captured.update_type IS 'event type of updates';
COMMENT ON COLUMN outbox.captured.delete_type IS 'event type of deletes';
COMMENT ON COLUMN outbox.captured.truncate_type IS 'event type of TRUNCATE';
COMMENT ON COLUMN outbox.captured.snapshot_type IS 'event type of snapshots';
COMMENT ON COLUMN outbox.captured.on_truncate IS 'effect of TRUNCATE: refuse, announce or ignore';
COMMENT ON COLUMN outbox.captured.fire IS 'when the triggers fire: session_replication_role';
COMMENT ON COLUMN outbox.captured.known_columns IS 'last known names of the columns of the table by number, to detect a rename';
COMMENT ON COLUMN outbox.captured.known_members IS 'last known partitions and children, with the table itself';
COMMENT ON COLUMN outbox.captured.captured_by IS 'the role that called outbox.capture()';
COMMENT ON COLUMN outbox.captured.captured_at IS 'when it was called';

-- Dropped columns are NULL.
CREATE FUNCTION outbox_internal.columns_of("table" regclass)
RETURNS name[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(CASE WHEN NOT a.attisdropped THEN a.attname END ORDER BY a.attnum), '{}')
      FROM pg_attribute AS a
     WHERE a.attrelid = "table" AND a.attnum > 0;
END;
COMMENT ON FUNCTION outbox_internal.columns_of(regclass) IS 'names of the columns of a table by number';
