-- Captures follow tables that are altered or dropped.

-- Gives partitions and children the triggers of a captured table.
CREATE FUNCTION outbox_internal.add_capture_triggers_to_all(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    capture CONSTANT outbox.captured := c FROM outbox.captured AS c WHERE c.relation = captured;
    member  regclass;
BEGIN
    IF NOT outbox_internal.has_capture_triggers(captured) OR capture.conditional <> (outbox.capture_condition(captured) IS NOT NULL) THEN
        RAISE EXCEPTION 'the triggers that capture it are not complete' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    FOR member IN SELECT outbox_internal.captured_tree(captured) LOOP
        PERFORM outbox_internal.copy_capture_triggers(captured, member, capture.on_truncate);
        PERFORM outbox_internal.set_capture_fire(member, capture.fire);
    END LOOP;
END
$$;

-- Rows that come or go with a partition or child give no events, because nobody inserts or deletes
-- them. The size tells whether there may be any: reading the table could run code of its owner.
CREATE FUNCTION outbox_internal.tell_of_rows(captured regclass, came oid[], gone oid[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member regclass;
BEGIN
    FOR member IN SELECT m FROM unnest(came) AS m WHERE pg_relation_size(m) > 0 LOOP
        RAISE WARNING 'rows that table % has already give no events', member
            USING HINT = format('SELECT outbox.backfill(%L) makes events of all rows.', captured::text);
    END LOOP;
    FOR member IN SELECT m FROM unnest(gone) AS m WHERE pg_relation_size(m) > 0 LOOP
        RAISE NOTICE 'rows of table % give no events of their removal', member
            USING HINT = 'If consumers are to remove them, delete them before the table is detached.';
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.tell_of_rows(regclass, oid[], oid[]) IS 'tells of rows that come or go with partitions and children';

-- Gives new partitions and children the triggers, and drops those of former ones. The owner may
-- have changed the triggers, so a capture that cannot follow must not make the statement fail.
-- Shards of Citus do not have children; PostgreSQL itself maintains the triggers of partitions.
CREATE FUNCTION outbox_internal.follow_members(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now    CONSTANT oid[] := array(SELECT outbox_internal.captured_tree(captured));
    before CONSTANT oid[] := c.known_members FROM outbox.captured AS c WHERE c.relation = captured;
BEGIN
    IF (now @> before AND now <@ before) OR outbox_internal.is_captured_shard(captured) THEN
        RETURN;
    END IF;
    UPDATE outbox.captured AS c SET known_members = now WHERE c.relation = captured;
    PERFORM outbox_internal.tell_of_rows(captured, array(SELECT unnest(now) EXCEPT SELECT unnest(before)),
                                         array(SELECT unnest(before) EXCEPT SELECT unnest(now)));
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

-- The capture does not fit the table any more, or does not work. That is an error for the role that
-- has altered it. A partition or child with another owner only causes a warning, because no other
-- role may keep that owner from altering it.
CREATE FUNCTION outbox_internal.check_member(captured regclass, member regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.check_captured(member);
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE <> '55000' -- triggers that were dropped or made in another way
       AND (SELECT m.relowner = c.relowner FROM pg_class AS m, pg_class AS c WHERE m.oid = member AND c.oid = captured) THEN
        RAISE;
    END IF;
    RAISE WARNING 'changes of table % cannot be captured: %', member, SQLERRM
        USING HINT = format('Call outbox.capture(%L) again, with replace => true, or outbox.uncapture(%1$L).', captured::text);
END
$$;
COMMENT ON FUNCTION outbox_internal.check_member(regclass, regclass) IS 'refuses or reports that a capture does not fit a table any more';

-- Warns if a capture takes columns for the key that do not identify rows any more.
CREATE FUNCTION outbox_internal.warn_of_key(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    capture CONSTANT outbox.captured := c FROM outbox.captured AS c WHERE c.relation = captured;
BEGIN
    IF capture.row_key <> '{}' AND NOT outbox_internal.key_is_unique(capture) THEN
        RAISE WARNING 'rows of table % may have the same key in events', captured
            USING DETAIL = format('Its capture takes (%s) for the key, on which it has no unique constraint any more.',
                                  array_to_string(capture.row_key, ', ')),
                  HINT = format('Call outbox.capture(%L) again, with replace => true.', captured::text);
    END IF;
END
$$;

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

-- Updates captures when their tables are altered. Refuses changes that a capture cannot follow.
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
        PERFORM outbox_internal.warn_of_key(captured);
    END LOOP;
END
$$;

CREATE EVENT TRIGGER outbox_follow_altered_tables ON ddl_command_end
    WHEN tag IN ('ALTER TABLE', 'CREATE TABLE', 'ALTER FOREIGN TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TYPE')
    EXECUTE FUNCTION outbox_internal.follow_altered_tables();
ALTER EVENT TRIGGER outbox_follow_altered_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_altered_tables IS 'updates captures when their tables are altered';

-- Forgets dropped tables and columns.
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

CREATE EVENT TRIGGER outbox_follow_dropped_tables ON sql_drop EXECUTE FUNCTION outbox_internal.follow_dropped_tables();
ALTER EVENT TRIGGER outbox_follow_dropped_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_tables IS 'forgets dropped tables and columns';
