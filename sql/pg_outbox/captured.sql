-- Captured tables: those whose changes become events by triggers. outbox.capture() (capture.sql) makes
-- the rows; extension/capture/capture_config.cpp names the columns in this order.
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

CREATE TRIGGER captured_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.captured
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER captured_changed;
COMMENT ON TRIGGER captured_changed ON outbox.captured IS 'has sessions read the table again';

CREATE FUNCTION outbox_internal.save_captured(captured outbox.captured)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_save_captured';
COMMENT ON FUNCTION outbox_internal.save_captured(outbox.captured) IS 'notes that a table is captured, for its owner';

CREATE FUNCTION outbox_internal.forget_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_forget_captured';
COMMENT ON FUNCTION outbox_internal.forget_captured(regclass) IS 'notes that a table is not captured, for its owner';

CREATE FUNCTION outbox_internal.check_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_check_captured';
COMMENT ON FUNCTION outbox_internal.check_captured(regclass) IS 'refuses a capture that does not fit the table';

CREATE FUNCTION outbox.capture_row()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_row';
COMMENT ON FUNCTION outbox.capture_row() IS 'makes an event of a changed row';

CREATE FUNCTION outbox.capture_truncate()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_truncate';
COMMENT ON FUNCTION outbox.capture_truncate() IS 'makes an event of TRUNCATE, or refuses it';

-- ---------------------------------------------------------------------------------------------
-- Triggers
-- ---------------------------------------------------------------------------------------------

-- The table, its partitions and children, and theirs, but not temporary ones: those are another session's.
CREATE FUNCTION outbox_internal.captured_tree("table" regclass)
RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE member(relation) AS (
        SELECT "table"::oid
        UNION
        SELECT i.inhrelid
          FROM member AS m
          JOIN pg_inherits AS i ON i.inhparent = m.relation
          JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relpersistence <> 't'
    )
    SELECT m.relation::regclass FROM member AS m;
END;
COMMENT ON FUNCTION outbox_internal.captured_tree(regclass) IS 'a table with its partitions and children';

-- Also when a dump is restored, where columns may have other numbers.
CREATE FUNCTION outbox_internal.know_table()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.known_columns := outbox_internal.columns_of(NEW.relation);
    NEW.known_members := ARRAY(SELECT outbox_internal.captured_tree(NEW.relation));
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox_internal.know_table() IS 'notes what a captured table consists of';

CREATE TRIGGER know_table BEFORE INSERT ON outbox.captured
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.know_table();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER know_table;
COMMENT ON TRIGGER know_table ON outbox.captured IS 'notes what the table consists of';

-- The condition as SQL over the columns of the table; NULL: all rows are captured.
CREATE FUNCTION outbox.capture_condition("table" regclass)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- That of the delete trigger is about OLD, which pg_get_expr() takes for the table. The owner may have put
    -- another trigger in its place, about rows that pg_get_expr() does not know.
    SELECT pg_get_expr(t.tgqual, t.tgrelid)
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgname = '00_outbox_capture_delete'
       AND t.tgfoid = 'outbox.capture_row'::regproc AND t.tgtype = 9; -- AFTER DELETE, FOR EACH ROW
END;
COMMENT ON FUNCTION outbox.capture_condition(regclass) IS 'which rows of a captured table are captured; NULL: all';

-- Triggers fire in the order of their names. These come first, for what another trigger changes has to
-- come later in the log.
CREATE FUNCTION outbox_internal.add_capture_triggers(member regclass, condition text, on_truncate text)
RETURNS void
LANGUAGE c VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_add_capture_triggers';
COMMENT ON FUNCTION outbox_internal.add_capture_triggers(regclass, text, text) IS 'gives a table the triggers that capture it';

CREATE FUNCTION outbox_internal.set_capture_fire(member regclass, fire text)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_set_capture_fire';
COMMENT ON FUNCTION outbox_internal.set_capture_fire(regclass, text) IS 'says when the triggers that capture a table fire';

CREATE FUNCTION outbox_internal.trigger_state(fire text)
RETURNS "char"
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE fire WHEN 'replica' THEN 'R' WHEN 'always' THEN 'A' ELSE 'O' END::"char";
END;
COMMENT ON FUNCTION outbox_internal.trigger_state(text) IS 'pg_trigger.tgenabled of triggers that fire so';

CREATE FUNCTION outbox_internal.drop_capture_triggers(member regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_drop_capture_triggers';
COMMENT ON FUNCTION outbox_internal.drop_capture_triggers(regclass) IS 'takes the triggers that capture it from a table';

-- ---------------------------------------------------------------------------------------------
-- Tables that are altered or dropped
-- ---------------------------------------------------------------------------------------------

-- What columns are called now; those that are gone keep their names, for nobody to take them for others.
CREATE FUNCTION outbox_internal.follow_names(names name[], before name[], now name[])
RETURNS name[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(coalesce(now[array_position(before, n.name)], n.name) ORDER BY n.place), '{}')
      FROM unnest(names) WITH ORDINALITY AS n(name, place);
END;
COMMENT ON FUNCTION outbox_internal.follow_names(name[], name[], name[]) IS 'names of columns after a rename';

CREATE FUNCTION outbox_internal.follow_columns(captured regclass)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.captured AS c
       SET aggregate_id = outbox_internal.follow_names(c.aggregate_id, c.known_columns, t.now),
           row_key = outbox_internal.follow_names(c.row_key, c.known_columns, t.now),
           version = (outbox_internal.follow_names(ARRAY[c.version], c.known_columns, t.now))[1],
           topic_column = (outbox_internal.follow_names(ARRAY[c.topic_column], c.known_columns, t.now))[1],
           ordering_key = outbox_internal.follow_names(c.ordering_key, c.known_columns, t.now),
           headers = (SELECT jsonb_object_agg(h.key, (outbox_internal.follow_names(ARRAY[h.value::name], c.known_columns, t.now))[1])
                        FROM jsonb_each_text(c.headers) AS h),
           -- A dropped one is forgotten here. What was excluded once stays so, should it come again.
           columns = outbox_internal.follow_names(CASE WHEN c.columns IS NOT NULL THEN
                                             array(SELECT n.name FROM unnest(c.columns) WITH ORDINALITY AS n(name, place)
                                                    WHERE n.name <> ALL (t.gone) ORDER BY n.place) END, c.known_columns, t.now),
           excluded = outbox_internal.follow_names(c.excluded, c.known_columns, t.now),
           known_columns = t.now
      FROM (SELECT o.relation, n.now,
                   array(SELECT b.name FROM unnest(o.known_columns) WITH ORDINALITY AS b(name, number)
                          WHERE b.name IS NOT NULL AND n.now[b.number] IS NULL) AS gone
              FROM outbox.captured AS o
             CROSS JOIN LATERAL outbox_internal.columns_of(o.relation) AS n(now)
             WHERE o.relation = captured) AS t
     WHERE t.relation = c.relation AND t.now <> c.known_columns;
END;
COMMENT ON FUNCTION outbox_internal.follow_columns(regclass) IS 'follows renamed and dropped columns of a captured table';

-- Three row triggers, as outbox_internal.add_capture_triggers() makes them: AFTER INSERT, UPDATE, DELETE.
CREATE FUNCTION outbox_internal.has_capture_triggers("table" regclass)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) = 3
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgfoid = 'outbox.capture_row'::regproc
       AND (t.tgname, t.tgtype) IN (('00_outbox_capture_insert', 5), ('00_outbox_capture_update', 17), ('00_outbox_capture_delete', 9));
END;
COMMENT ON FUNCTION outbox_internal.has_capture_triggers(regclass) IS 'whether a table has its triggers; not yet, while a dump is restored';

CREATE FUNCTION outbox_internal.add_capture_triggers_to_all(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    condition CONSTANT text := outbox.capture_condition(captured);
    capture   CONSTANT outbox.captured := c FROM outbox.captured AS c WHERE c.relation = captured;
    member    regclass;
BEGIN
    IF NOT outbox_internal.has_capture_triggers(captured) OR capture.conditional <> (condition IS NOT NULL) THEN
        RAISE EXCEPTION 'the triggers that capture it are not complete' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    FOR member IN SELECT outbox_internal.captured_tree(captured) LOOP
        PERFORM outbox_internal.add_capture_triggers(member, condition, capture.on_truncate);
        PERFORM outbox_internal.set_capture_fire(member, capture.fire);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.add_capture_triggers_to_all(regclass) IS 'gives partitions and children the triggers of a captured table';

-- New partitions and children get the triggers, those that are none any more lose them. Whatever the owner has done
-- to the triggers: that a capture cannot follow is no error in the statement.
CREATE FUNCTION outbox_internal.follow_members(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now    CONSTANT oid[] := array(SELECT outbox_internal.captured_tree(captured));
    before CONSTANT oid[] := c.known_members FROM outbox.captured AS c WHERE c.relation = captured;
BEGIN
    IF now @> before AND now <@ before THEN
        RETURN;
    END IF;
    UPDATE outbox.captured AS c SET known_members = now WHERE c.relation = captured;
    PERFORM outbox_internal.drop_capture_triggers(r.oid) FROM pg_class AS r WHERE r.oid = ANY (before) AND r.oid <> ALL (now);
    BEGIN
        PERFORM outbox_internal.add_capture_triggers_to_all(captured);
    EXCEPTION
        WHEN transaction_rollback OR insufficient_resources OR operator_intervention OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            UPDATE outbox.captured AS c -- to be tried again next time
               SET known_members = array(SELECT m FROM unnest(now) AS m WHERE m = ANY (before))
             WHERE c.relation = captured;
            RAISE WARNING 'new partitions and children of table % are not captured: %', captured, SQLERRM
                USING HINT = format('Call outbox.capture(%L) again, with replace => true, or outbox.uncapture(%1$L).', captured::text);
    END;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_members(regclass) IS 'follows new and former partitions and children of a captured table';

-- Tables that were altered, with those that were altered with them: partitions and children, tables of a type.
CREATE FUNCTION outbox_internal.altered_with(tables oid[])
RETURNS oid[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE altered(relation) AS (
        SELECT unnest(tables)
        UNION
        SELECT t.oid
          FROM pg_class AS y
          JOIN pg_depend AS d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = y.reltype AND d.classid = 'pg_class'::regclass
          JOIN pg_class AS t ON t.oid = d.objid AND t.reloftype = y.reltype
         WHERE y.oid = ANY (tables) AND y.relkind = 'c'
    ), below(relation) AS (
        SELECT a.relation FROM altered AS a
        UNION
        SELECT i.inhrelid FROM below AS b JOIN pg_inherits AS i ON i.inhparent = b.relation
    )
    SELECT array(SELECT b.relation FROM below AS b);
END;
COMMENT ON FUNCTION outbox_internal.altered_with(oid[]) IS 'tables that are altered together with some';

-- The captured tables that are concerned when something happens to these: they are among them, or above them. Of all
-- others nothing is looked at: a capture is a matter of those who own its tables.
CREATE FUNCTION outbox_internal.captures_of(tables oid[])
RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE above(relation) AS (
        SELECT unnest(tables)
        UNION
        SELECT i.inhparent FROM above AS a JOIN pg_inherits AS i ON i.inhrelid = a.relation
    ), all_above(relations) AS (
        SELECT array(SELECT a.relation FROM above AS a)
    )
    SELECT c.relation
      FROM outbox.captured AS c, all_above AS a
     WHERE c.relation::oid = ANY (a.relations) OR c.known_members && a.relations
     ORDER BY c.relation::oid;
END;
COMMENT ON FUNCTION outbox_internal.captures_of(oid[]) IS 'the captured tables that some tables belong to';

-- The capture does not fit the table any more, or does not work. Who has altered it is told; nobody else is kept from
-- altering its own: with an owner of its own, a partition or child has only a warning.
CREATE FUNCTION outbox_internal.check_member(captured regclass, member regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.check_captured(member);
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE <> '55000' -- triggers that somebody has dropped or made otherwise
       AND (SELECT m.relowner = c.relowner FROM pg_class AS m, pg_class AS c WHERE m.oid = member AND c.oid = captured) THEN
        RAISE;
    END IF;
    RAISE WARNING 'changes of table % cannot be captured: %', member, SQLERRM
        USING HINT = format('Call outbox.capture(%L) again, with replace => true, or outbox.uncapture(%1$L).', captured::text);
END
$$;
COMMENT ON FUNCTION outbox_internal.check_member(regclass, regclass) IS 'refuses or reports that a capture does not fit a table any more';

-- The owner of the extension can rename the table. Statements of others go on, for most have nothing to do with captures.
-- No event is lost meanwhile: changes of captured tables are refused. A view in its place is not read: it has code.
CREATE FUNCTION outbox_internal.has_captured_table()
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('outbox.captured') AND relkind = 'r') THEN
        RETURN true;
    END IF;
    RAISE WARNING 'captures do not follow this statement: table outbox.captured does not exist'
        USING HINT = 'If it was renamed, rename it back, and call outbox.capture() with replace => true for the captured tables that were altered meanwhile.';
    RETURN false;
END
$$;
COMMENT ON FUNCTION outbox_internal.has_captured_table() IS 'whether captures can be looked up; warns if not';

-- What the captures cannot do without is not altered.
CREATE FUNCTION outbox_internal.follow_altered_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    altered  oid[];
    captured regclass;
    member   regclass;
BEGIN
    IF NOT outbox_internal.has_captured_table() THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.captured) THEN
        RETURN;
    END IF;
    altered := outbox_internal.altered_with(array(SELECT command.objid FROM pg_event_trigger_ddl_commands() AS command
                                          WHERE command.classid = 'pg_class'::regclass));
    FOR captured IN SELECT outbox_internal.captures_of(altered) LOOP
        PERFORM outbox_internal.follow_columns(captured);
        PERFORM outbox_internal.follow_members(captured);
        UPDATE outbox.captured AS c SET relation = c.relation WHERE c.relation = captured; -- sessions look again
        IF outbox_internal.has_capture_triggers(captured) THEN
            FOR member IN SELECT m FROM outbox_internal.captured_tree(captured) AS m WHERE m::oid = ANY (altered) LOOP
                PERFORM outbox_internal.check_member(captured, member);
            END LOOP;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_altered_tables() IS 'keeps captures right when their tables are altered';

CREATE EVENT TRIGGER outbox_follow_altered_tables ON ddl_command_end
    WHEN tag IN ('ALTER TABLE', 'CREATE TABLE', 'ALTER FOREIGN TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TYPE')
    EXECUTE FUNCTION outbox_internal.follow_altered_tables();
ALTER EVENT TRIGGER outbox_follow_altered_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_altered_tables IS 'keeps captures right when their tables are altered';

CREATE FUNCTION outbox_internal.follow_dropped_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed oid[]; -- dropped, or without a column it had
    dropped oid[];
BEGIN
    IF NOT outbox_internal.has_captured_table() THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.captured) THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(o.objid), '{}'), coalesce(array_agg(o.objid) FILTER (WHERE o.objsubid = 0), '{}')
      INTO changed, dropped
      FROM pg_event_trigger_dropped_objects() AS o
     WHERE o.classid = 'pg_class'::regclass;
    DELETE FROM outbox.captured AS c WHERE c.relation::oid = ANY (dropped);
    UPDATE outbox.captured AS c
       SET known_members = array(SELECT m FROM unnest(c.known_members) AS m WHERE m <> ALL (dropped))
     WHERE c.known_members && dropped;
    PERFORM outbox_internal.follow_columns(captured) FROM outbox_internal.captures_of(changed) AS captured;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_dropped_tables() IS 'forgets dropped tables, and columns';

CREATE EVENT TRIGGER outbox_follow_dropped_tables ON sql_drop EXECUTE FUNCTION outbox_internal.follow_dropped_tables();
ALTER EVENT TRIGGER outbox_follow_dropped_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_tables IS 'forgets dropped tables, and columns';
