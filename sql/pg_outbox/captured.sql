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
    known_members  oid[]       NOT NULL,
    captured_by    name        NOT NULL DEFAULT CURRENT_USER,
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
COMMENT ON COLUMN outbox.captured.known_members IS 'the table, its partitions and children, as they were last';
COMMENT ON COLUMN outbox.captured.captured_by IS 'the role that called outbox.capture()';
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

CREATE TRIGGER captured_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.captured
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.table_changed();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER captured_changed;
COMMENT ON TRIGGER captured_changed ON outbox.captured IS 'has sessions read the table again';

CREATE FUNCTION outbox.save_captured(captured outbox.captured)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_save_captured';
COMMENT ON FUNCTION outbox.save_captured(outbox.captured) IS 'internal: notes that a table is captured, for its owner';

CREATE FUNCTION outbox.forget_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_forget_captured';
COMMENT ON FUNCTION outbox.forget_captured(regclass) IS 'internal: notes that a table is not captured, for its owner';

CREATE FUNCTION outbox.check_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_check_captured';
COMMENT ON FUNCTION outbox.check_captured(regclass) IS 'internal: refuses a capture that does not fit the table';

CREATE FUNCTION outbox.qualify_condition("table" regclass, condition text, "row" text)
RETURNS text
LANGUAGE c STABLE STRICT
SET search_path = pg_catalog, pg_temp
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

-- Also when a dump is restored, where columns may have other numbers.
CREATE FUNCTION outbox.know_table()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.known_columns := outbox.columns_of(NEW.relation);
    NEW.known_members := ARRAY(SELECT outbox.captured_tree(NEW.relation));
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox.know_table() IS 'internal: notes what a captured table consists of';

CREATE TRIGGER know_table BEFORE INSERT ON outbox.captured
    FOR EACH ROW EXECUTE FUNCTION outbox.know_table();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER know_table;
COMMENT ON TRIGGER know_table ON outbox.captured IS 'notes what the table consists of';

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
-- and triggers of TRUNCATE to neither. Those that are there already stay as they are.
--
-- Triggers fire in the order of their names. These come first, for what another trigger changes has to
-- come later in the log.
CREATE FUNCTION outbox.add_capture_triggers(member regclass, condition text, on_truncate text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    added record;
BEGIN
    FOR added IN
        SELECT t.name, t.definition, 'WHEN (' || outbox.qualify_condition(member, condition, t.about) || ')' AS clause
          FROM (VALUES
            ('00_outbox_capture_insert', 'new', 'AFTER INSERT ON %s FOR EACH ROW %s EXECUTE FUNCTION outbox.capture_row()'),
            ('00_outbox_capture_update', 'new', 'AFTER UPDATE ON %s FOR EACH ROW EXECUTE FUNCTION outbox.capture_row()'),
            ('00_outbox_capture_delete', 'old', 'AFTER DELETE ON %s FOR EACH ROW %s EXECUTE FUNCTION outbox.capture_row()'),
            ('00_outbox_capture_truncate', NULL,
             CASE on_truncate WHEN 'refuse' THEN 'BEFORE TRUNCATE ON %s EXECUTE FUNCTION outbox.capture_truncate()'
                              WHEN 'announce' THEN 'AFTER TRUNCATE ON %s EXECUTE FUNCTION outbox.capture_truncate()' END)) AS t(name, about, definition)
         WHERE t.definition IS NOT NULL
           -- foreign tables have no triggers of TRUNCATE
           AND (t.about IS NOT NULL OR NOT EXISTS (SELECT FROM pg_foreign_table AS f WHERE f.ftrelid = member))
           AND NOT EXISTS (SELECT FROM pg_trigger AS e WHERE e.tgrelid = member AND e.tgname = t.name)
    LOOP
        EXECUTE format('CREATE TRIGGER %I ', added.name) || format(added.definition, member, added.clause);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.add_capture_triggers(regclass, text, text) IS 'internal: gives a table the triggers that capture it';

CREATE FUNCTION outbox.set_capture_fire(member regclass, fire text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    trigger name;
BEGIN
    FOR trigger IN
        SELECT t.tgname FROM pg_trigger AS t
         WHERE t.tgrelid = member AND t.tgfoid IN ('outbox.capture_row'::regproc, 'outbox.capture_truncate'::regproc)
           AND t.tgenabled <> outbox.trigger_state(fire)
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', member, nullif(upper(fire), 'ORIGIN'), trigger);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.set_capture_fire(regclass, text) IS 'internal: says when the triggers that capture a table fire';

CREATE FUNCTION outbox.trigger_state(fire text)
RETURNS "char"
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE fire WHEN 'replica' THEN 'R' WHEN 'always' THEN 'A' ELSE 'O' END::"char";
END;
COMMENT ON FUNCTION outbox.trigger_state(text) IS 'internal: pg_trigger.tgenabled of triggers that fire so';

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

-- ---------------------------------------------------------------------------------------------
-- Tables that are altered or dropped
-- ---------------------------------------------------------------------------------------------

-- What columns are called now; those that are gone keep their names, for nobody to take them for others.
CREATE FUNCTION outbox.follow_names(names name[], before name[], now name[])
RETURNS name[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(coalesce(now[array_position(before, n.name)], n.name) ORDER BY n.place), '{}')
      FROM unnest(names) WITH ORDINALITY AS n(name, place);
END;
COMMENT ON FUNCTION outbox.follow_names(name[], name[], name[]) IS 'internal: names of columns after a rename';

CREATE FUNCTION outbox.follow_columns()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.captured AS c
       SET aggregate_id = outbox.follow_names(c.aggregate_id, c.known_columns, t.now),
           row_key = outbox.follow_names(c.row_key, c.known_columns, t.now),
           version = (outbox.follow_names(ARRAY[c.version], c.known_columns, t.now))[1],
           topic_column = (outbox.follow_names(ARRAY[c.topic_column], c.known_columns, t.now))[1],
           ordering_key = outbox.follow_names(c.ordering_key, c.known_columns, t.now),
           headers = (SELECT jsonb_object_agg(h.key, (outbox.follow_names(ARRAY[h.value::name], c.known_columns, t.now))[1])
                        FROM jsonb_each_text(c.headers) AS h),
           -- A dropped one is forgotten here. What was excluded once stays so, should it come again.
           columns = outbox.follow_names(CASE WHEN c.columns IS NOT NULL THEN
                                             array(SELECT n.name FROM unnest(c.columns) WITH ORDINALITY AS n(name, place)
                                                    WHERE n.name <> ALL (t.gone) ORDER BY n.place) END, c.known_columns, t.now),
           excluded = outbox.follow_names(c.excluded, c.known_columns, t.now),
           known_columns = t.now
      FROM (SELECT o.relation, n.now,
                   array(SELECT b.name FROM unnest(o.known_columns) WITH ORDINALITY AS b(name, number)
                          WHERE b.name IS NOT NULL AND n.now[b.number] IS NULL) AS gone
              FROM outbox.captured AS o
             CROSS JOIN LATERAL outbox.columns_of(o.relation) AS n(now)) AS t
     WHERE t.relation = c.relation AND t.now <> c.known_columns;
END;
COMMENT ON FUNCTION outbox.follow_columns() IS 'internal: follows renamed and dropped columns of captured tables';

-- New partitions and children get the triggers, those that are none any more lose them.
CREATE FUNCTION outbox.follow_members()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed record;
    member regclass;
BEGIN
    FOR changed IN
        SELECT c.*, t.now
          FROM outbox.captured AS c
         CROSS JOIN LATERAL (SELECT array(SELECT outbox.captured_tree(c.relation)::oid)) AS t(now)
         WHERE NOT (t.now @> c.known_members AND t.now <@ c.known_members)
    LOOP
        UPDATE outbox.captured AS c SET known_members = changed.now WHERE c.relation = changed.relation;
        FOR member IN SELECT r.oid FROM pg_class AS r WHERE r.oid = ANY (changed.known_members) AND r.oid <> ALL (changed.now) LOOP
            PERFORM outbox.drop_capture_triggers(member);
        END LOOP;
        FOREACH member IN ARRAY changed.now LOOP
            PERFORM outbox.add_capture_triggers(member, outbox.capture_condition(changed.relation), changed.on_truncate);
            PERFORM outbox.set_capture_fire(member, changed.fire);
        END LOOP;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.follow_members() IS 'internal: follows new and former partitions and children of captured tables';

CREATE FUNCTION outbox.has_capture_triggers("table" regclass)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) = 3 FROM pg_trigger AS t WHERE t.tgrelid = "table" AND t.tgfoid = 'outbox.capture_row'::regproc;
END;
COMMENT ON FUNCTION outbox.has_capture_triggers(regclass) IS 'internal: whether a table has its triggers; not yet, while a dump is restored';

-- What the captures cannot do without is not altered.
CREATE FUNCTION outbox.follow_altered_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    altered oid[];
    relation regclass;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.captured) THEN
        RETURN;
    END IF;
    PERFORM outbox.follow_columns();
    PERFORM outbox.follow_members();
    altered := array(SELECT command.objid FROM pg_event_trigger_ddl_commands() AS command
                      WHERE command.classid = 'pg_class'::regclass);
    UPDATE outbox.captured AS c SET relation = c.relation WHERE c.known_members && altered; -- sessions look again
    FOR relation IN
        SELECT m.oid FROM outbox.captured AS c, unnest(c.known_members) AS m(oid)
         WHERE c.known_members && altered AND outbox.has_capture_triggers(c.relation)
    LOOP
        PERFORM outbox.check_captured(relation);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.follow_altered_tables() IS 'internal: keeps captures right when their tables are altered';

CREATE EVENT TRIGGER outbox_follow_altered_tables ON ddl_command_end
    WHEN tag IN ('ALTER TABLE', 'CREATE TABLE', 'ALTER FOREIGN TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TYPE')
    EXECUTE FUNCTION outbox.follow_altered_tables();
ALTER EVENT TRIGGER outbox_follow_altered_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_altered_tables IS 'keeps captures right when their tables are altered';

CREATE FUNCTION outbox.follow_dropped_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.captured) THEN
        RETURN;
    END IF;
    DELETE FROM outbox.captured AS c
     WHERE c.relation::oid IN (SELECT o.objid FROM pg_event_trigger_dropped_objects() AS o
                                WHERE o.classid = 'pg_class'::regclass AND o.objsubid = 0);
    PERFORM outbox.follow_columns();
END
$$;
COMMENT ON FUNCTION outbox.follow_dropped_tables() IS 'internal: forgets dropped tables, and columns';

CREATE EVENT TRIGGER outbox_follow_dropped_tables ON sql_drop EXECUTE FUNCTION outbox.follow_dropped_tables();
ALTER EVENT TRIGGER outbox_follow_dropped_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_tables IS 'forgets dropped tables, and columns';
