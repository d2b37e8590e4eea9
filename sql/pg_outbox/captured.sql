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

SELECT pg_extension_config_dump('outbox.captured', 'WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class)');

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

CREATE TRIGGER captured_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.captured
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER captured_changed;
COMMENT ON TRIGGER captured_changed ON outbox.captured IS 'makes sessions read the table again';

CREATE FUNCTION outbox_internal.save_captured(captured outbox.captured)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_save_captured';
COMMENT ON FUNCTION outbox_internal.save_captured(outbox.captured) IS 'records that a table is captured, on behalf of its owner';

CREATE FUNCTION outbox_internal.forget_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_forget_captured';
COMMENT ON FUNCTION outbox_internal.forget_captured(regclass) IS 'records that a table is not captured, on behalf of its owner';

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
COMMENT ON FUNCTION outbox.capture_row() IS 'writes an event of a changed row';

CREATE FUNCTION outbox.capture_truncate()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_truncate';
COMMENT ON FUNCTION outbox.capture_truncate() IS 'writes an event of TRUNCATE, or refuses it';

-- ---------------------------------------------------------------------------------------------
-- Triggers
-- ---------------------------------------------------------------------------------------------

-- Returns the table with all its partitions and children, except temporary tables of other
-- sessions.
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

-- Fires also when a dump is restored, where columns may have other numbers.
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
COMMENT ON FUNCTION outbox_internal.know_table() IS 'records the columns and members of a captured table';

CREATE TRIGGER know_table BEFORE INSERT ON outbox.captured
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.know_table();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER know_table;
COMMENT ON TRIGGER know_table ON outbox.captured IS 'records the columns and members of the table';

-- Returns the condition as SQL over the columns of the table; NULL if all rows are captured.
CREATE FUNCTION outbox.capture_condition("table" regclass)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- The condition of the delete trigger is about OLD, which pg_get_expr() takes for the table.
    -- The owner may have replaced this trigger by another with rows that pg_get_expr() does not
    -- know.
    SELECT pg_get_expr(t.tgqual, t.tgrelid)
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgname = '00_outbox_capture_delete'
       AND t.tgfoid = 'outbox.capture_row'::regproc AND t.tgtype = 9; -- AFTER DELETE, FOR EACH ROW
END;
COMMENT ON FUNCTION outbox.capture_condition(regclass) IS 'condition for captured rows of a table; null if all are captured';

-- Triggers fire in the order of their names. These come first, because changes by other triggers
-- must come later in the log.
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
COMMENT ON FUNCTION outbox_internal.set_capture_fire(regclass, text) IS 'sets when the triggers that capture a table fire';

CREATE FUNCTION outbox_internal.trigger_state(fire text)
RETURNS "char"
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE fire WHEN 'replica' THEN 'R' WHEN 'always' THEN 'A' ELSE 'O' END::"char";
END;
COMMENT ON FUNCTION outbox_internal.trigger_state(text) IS 'pg_trigger.tgenabled for a value of captured.fire';

CREATE FUNCTION outbox_internal.drop_capture_triggers(member regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_drop_capture_triggers';
COMMENT ON FUNCTION outbox_internal.drop_capture_triggers(regclass) IS 'drops the triggers that capture a table';

-- ---------------------------------------------------------------------------------------------
-- Tables that are altered or dropped
-- ---------------------------------------------------------------------------------------------

-- Returns the present names of columns. Names of dropped columns stay, so that they are not taken
-- for others.
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
           -- A dropped column is removed from the list. An excluded column stays excluded if it is
           -- added again.
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

-- Looks for the three row triggers of outbox_internal.add_capture_triggers(): AFTER INSERT, UPDATE,
-- DELETE.
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
COMMENT ON FUNCTION outbox_internal.has_capture_triggers(regclass) IS 'returns whether a table has its triggers; not yet while a dump is restored';

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

-- Gives new partitions and children the triggers, and drops those of former ones. The owner may
-- have changed the triggers, so a capture that cannot follow must not make the statement fail.
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
            UPDATE outbox.captured AS c -- try again next time
               SET known_members = array(SELECT m FROM unnest(now) AS m WHERE m = ANY (before))
             WHERE c.relation = captured;
            RAISE WARNING 'new partitions and children of table % are not captured: %', captured, SQLERRM
                USING HINT = format('Call outbox.capture(%L) again, with replace => true, or outbox.uncapture(%1$L).', captured::text);
    END;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_members(regclass) IS 'follows new and former partitions and children of a captured table';

-- Returns the altered tables, and those that are altered with them: partitions and children, tables
-- of a type.
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

-- Returns the captured tables among these tables or above them. No other table is looked at,
-- because a capture concerns only the owners of its tables.
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
COMMENT ON FUNCTION outbox_internal.captures_of(oid[]) IS 'captured tables that some tables belong to';

-- The capture does not fit the table any more, or does not work. That is an error for the role that
-- has altered it. A partition or child with another owner only causes a warning, because nobody
-- else may keep that owner from altering it.
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

-- The owner of the extension can rename the table. Statements of other roles go on, because most
-- have nothing to do with captures. No event is lost meanwhile: changes of captured tables are
-- refused. A view in its place is not read, because it may contain code.
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
        USING HINT = 'If it was renamed, rename it back, and call outbox.capture() with replace => true for captured tables that were altered meanwhile.';
    RETURN false;
END
$$;
COMMENT ON FUNCTION outbox_internal.has_captured_table() IS 'returns whether captures can be looked up; warns if not';

-- Refuses changes of tables that their captures cannot do without.
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
        UPDATE outbox.captured AS c SET relation = c.relation WHERE c.relation = captured; -- makes sessions look again
        IF outbox_internal.has_capture_triggers(captured) THEN
            FOR member IN SELECT m FROM outbox_internal.captured_tree(captured) AS m WHERE m::oid = ANY (altered) LOOP
                PERFORM outbox_internal.check_member(captured, member);
            END LOOP;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_altered_tables() IS 'updates captures when their tables are altered';

CREATE EVENT TRIGGER outbox_follow_altered_tables ON ddl_command_end
    WHEN tag IN ('ALTER TABLE', 'CREATE TABLE', 'ALTER FOREIGN TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TYPE')
    EXECUTE FUNCTION outbox_internal.follow_altered_tables();
ALTER EVENT TRIGGER outbox_follow_altered_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_altered_tables IS 'updates captures when their tables are altered';

CREATE FUNCTION outbox_internal.follow_dropped_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed oid[]; -- dropped tables, and tables that lost a column
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
COMMENT ON FUNCTION outbox_internal.follow_dropped_tables() IS 'forgets dropped tables and columns';

CREATE EVENT TRIGGER outbox_follow_dropped_tables ON sql_drop EXECUTE FUNCTION outbox_internal.follow_dropped_tables();
ALTER EVENT TRIGGER outbox_follow_dropped_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_tables IS 'forgets dropped tables and columns';
