-- Captured tables: those whose changes become events by triggers. outbox.capture() (capture.sql) makes
-- the rows; extension/capture_config.cpp names the columns in this order.
--
-- Columns are known by their names. The tables they belong to may be altered, and have them in another
-- order after a dump is restored; the event triggers below follow them.
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
    captured_by    name        NOT NULL DEFAULT session_user,
    captured_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.captured IS 'tables whose changes become events; see outbox.capture()';
COMMENT ON COLUMN outbox.captured.relation IS 'the table, with its partitions and children';
COMMENT ON COLUMN outbox.captured.aggregate_type IS 'of its events';
COMMENT ON COLUMN outbox.captured.aggregate_id IS 'columns that make the aggregate id';
COMMENT ON COLUMN outbox.captured.row_key IS 'columns of the primary key';
COMMENT ON COLUMN outbox.captured.version IS 'column with the version; NULL: the position of an event is its version';
COMMENT ON COLUMN outbox.captured.topic IS 'of its events, where topic_column does not say another';
COMMENT ON COLUMN outbox.captured.topic_column IS 'column with the topic';
COMMENT ON COLUMN outbox.captured.ordering_key IS 'columns that make the ordering key; none: no order; NULL: the aggregate id';
COMMENT ON COLUMN outbox.captured.headers IS 'column of each header';
COMMENT ON COLUMN outbox.captured.columns IS 'what is captured; NULL: all that is not excluded';
COMMENT ON COLUMN outbox.captured.excluded IS 'what is not captured';
COMMENT ON COLUMN outbox.captured.on_update IS 'payload of events of updates';
COMMENT ON COLUMN outbox.captured.old_values IS 'whether changed columns come with what they were';
COMMENT ON COLUMN outbox.captured.on_delete IS 'payload of events of deletes';
COMMENT ON COLUMN outbox.captured.conditional IS 'whether there is a condition, which the triggers have';
COMMENT ON COLUMN outbox.captured.insert_type IS 'event type';
COMMENT ON COLUMN outbox.captured.update_type IS 'event type';
COMMENT ON COLUMN outbox.captured.delete_type IS 'event type';
COMMENT ON COLUMN outbox.captured.truncate_type IS 'event type';
COMMENT ON COLUMN outbox.captured.snapshot_type IS 'event type';
COMMENT ON COLUMN outbox.captured.on_truncate IS 'what TRUNCATE does';
COMMENT ON COLUMN outbox.captured.fire IS 'when the triggers fire: session_replication_role';
COMMENT ON COLUMN outbox.captured.known_columns IS 'names of the columns of the table by number, as they were last; so a rename is seen';
COMMENT ON COLUMN outbox.captured.captured_by IS 'who was logged in then';
COMMENT ON COLUMN outbox.captured.captured_at IS 'when';

SELECT pg_extension_config_dump('outbox.captured', 'WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class)');

-- Dropped ones are NULL.
CREATE FUNCTION outbox.columns_of("table" regclass)
RETURNS name[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(CASE WHEN NOT a.attisdropped THEN a.attname END ORDER BY a.attnum), '{}')
      FROM pg_attribute AS a
     WHERE a.attrelid = "table" AND a.attnum > 0;
END;
COMMENT ON FUNCTION outbox.columns_of(regclass) IS 'internal: names of the columns of a table by number';

-- Also when a dump is restored, where columns may have other numbers.
CREATE FUNCTION outbox.know_columns()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.known_columns := outbox.columns_of(NEW.relation);
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox.know_columns() IS 'internal: notes the columns of a captured table';

CREATE TRIGGER know_columns BEFORE INSERT ON outbox.captured
    FOR EACH ROW EXECUTE FUNCTION outbox.know_columns();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER know_columns;
COMMENT ON TRIGGER know_columns ON outbox.captured IS 'notes the columns of the table';

-- Sessions keep what they have read; however the table is changed, they hear of it at commit.
CREATE FUNCTION outbox.captured_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_producer_changed';
COMMENT ON FUNCTION outbox.captured_changed() IS 'internal: has sessions read outbox.captured again';

CREATE TRIGGER captured_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.captured
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.captured_changed();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER captured_changed;
COMMENT ON TRIGGER captured_changed ON outbox.captured IS 'has sessions read the table again';

CREATE FUNCTION outbox.save_captured(captured outbox.captured)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_save_captured';
COMMENT ON FUNCTION outbox.save_captured(outbox.captured) IS 'internal: notes that a table is captured, for its owner';

CREATE FUNCTION outbox.forget_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_forget_captured';
COMMENT ON FUNCTION outbox.forget_captured(regclass) IS 'internal: notes that a table is not captured, for its owner';

CREATE FUNCTION outbox.check_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_captured';
COMMENT ON FUNCTION outbox.check_captured(regclass) IS 'internal: refuses a capture that does not fit the table';

CREATE FUNCTION outbox.qualify_condition("table" regclass, condition text, "row" text)
RETURNS text
LANGUAGE c STABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_qualify_condition';
COMMENT ON FUNCTION outbox.qualify_condition(regclass, text, text) IS 'internal: a condition with its columns qualified';

CREATE FUNCTION outbox.capture_row()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_row';
COMMENT ON FUNCTION outbox.capture_row() IS 'internal: makes an event of a changed row';

CREATE FUNCTION outbox.capture_truncate()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_truncate';
COMMENT ON FUNCTION outbox.capture_truncate() IS 'internal: makes an event of TRUNCATE, or refuses it';

-- ---------------------------------------------------------------------------------------------
-- Triggers
-- ---------------------------------------------------------------------------------------------

-- The table, its partitions and children, and theirs.
CREATE FUNCTION outbox.captured_tree("table" regclass)
RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE member(relation) AS (
        SELECT "table"::oid
        UNION
        SELECT i.inhrelid FROM member AS m JOIN pg_inherits AS i ON i.inhparent = m.relation
    )
    SELECT m.relation::regclass FROM member AS m;
END;
COMMENT ON FUNCTION outbox.captured_tree(regclass) IS 'internal: a table with its partitions and children';

-- The condition as SQL over the columns of the table; NULL: all rows are captured.
CREATE FUNCTION outbox.capture_condition("table" regclass)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- That of the delete trigger is about OLD, which pg_get_expr() takes for the table.
    SELECT pg_get_expr(t.tgqual, t.tgrelid)
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgname = '00_outbox_capture_delete';
END;
COMMENT ON FUNCTION outbox.capture_condition(regclass) IS 'which rows of a captured table are captured; NULL: all';

-- PostgreSQL itself gives row triggers to the partitions of a table, but to none of its other children,
-- and triggers of TRUNCATE to neither.
--
-- Triggers fire in the order of their names. These come first, for what another trigger changes has to
-- come later in the log.
CREATE FUNCTION outbox.add_capture_triggers(member regclass, condition text, on_truncate text, fire text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    enable CONSTANT text := CASE fire WHEN 'replica' THEN 'REPLICA' WHEN 'always' THEN 'ALWAYS' ELSE '' END;
    is_partition CONSTANT boolean := c.relispartition FROM pg_class AS c WHERE c.oid = member;
    added record;
BEGIN
    FOR added IN
        SELECT '00_outbox_capture_' || t.event AS name, t.definition
          FROM (VALUES
            ('insert', 'AFTER INSERT ON %s FOR EACH ROW %s EXECUTE FUNCTION outbox.capture_row()'),
            ('update', 'AFTER UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION outbox.capture_row()'),
            ('delete', 'AFTER DELETE ON %s FOR EACH ROW %s EXECUTE FUNCTION outbox.capture_row()'),
            ('truncate', CASE on_truncate WHEN 'refuse' THEN 'BEFORE' ELSE 'AFTER' END
                         || ' TRUNCATE ON %s EXECUTE FUNCTION outbox.capture_truncate()')) AS t(event, definition)
         WHERE CASE WHEN t.event = 'truncate' THEN on_truncate <> 'ignore' ELSE NOT is_partition END
    LOOP
        EXECUTE format('CREATE TRIGGER %I ', added.name) || format(added.definition, member,
            'WHEN (' || outbox.qualify_condition(member, condition, CASE WHEN added.name LIKE '%delete' THEN 'old' ELSE 'new' END) || ')');
        EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', member, enable, added.name);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.add_capture_triggers(regclass, text, text, text) IS 'internal: gives a table the triggers that capture it';

CREATE FUNCTION outbox.drop_capture_triggers(member regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    trigger name;
BEGIN
    FOR trigger IN
        SELECT t.tgname FROM pg_trigger AS t
         WHERE t.tgrelid = member AND t.tgparentid = 0
           AND t.tgfoid IN ('outbox.capture_row'::regproc, 'outbox.capture_truncate'::regproc)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', trigger, member);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.drop_capture_triggers(regclass) IS 'internal: takes the triggers that capture it from a table';
