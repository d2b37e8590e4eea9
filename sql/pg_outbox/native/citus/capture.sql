-- Captures of tables that Citus distributes. See docs/operations/citus.md.
--
-- The rows of such a table are in shards, tables such as orders_102008 on any node. Citus copies the
-- triggers of the table to each shard, also to those that it makes later. The rows of
-- outbox.captured are local to a node, so the triggers carry the capture in their argument: where a
-- trigger is created with one, the table gets its row in outbox.captured from it. From then on a
-- shard is captured as any other table. Its triggers have its number in their names.

-- Returns 'distributed', 'reference' or 'local' for a table that Citus manages, 'shard' for a part
-- of one on this node, and null for all others.
CREATE FUNCTION outbox_internal.citus_type("table" regclass)
RETURNS text
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    type text;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NULL THEN
        RETURN NULL;
    END IF;
    EXECUTE 'SELECT CASE WHEN p.partmethod <> ''n'' OR p.repmodel <> ''t'' AND p.colocationid <> 0 THEN ''distributed''
                         WHEN p.repmodel = ''t'' THEN ''reference''
                         ELSE ''local'' END
               FROM pg_catalog.pg_dist_partition AS p WHERE p.logicalrelid = $1'
       INTO type USING "table";
    IF type IS NULL THEN
        EXECUTE 'SELECT ''shard'' WHERE pg_catalog.relation_is_a_known_shard($1)' INTO type USING "table";
    END IF;
    RETURN type;
END
$$;

-- Returns what the triggers of a table carry: its capture, or that of the table it belongs to.
-- Columns of outbox.captured that are about this node only are left out.
CREATE FUNCTION outbox_internal.capture_argument("table" regclass)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT (to_jsonb(c) - '{relation,known_columns,known_members,captured_by,captured_at}'::text[]
            || jsonb_build_object('distributed', outbox_internal.citus_type(c.relation) IS NOT DISTINCT FROM 'distributed'))::text
      FROM outbox_internal.captures_of(ARRAY["table"::oid]) AS captured
      JOIN outbox.captured AS c ON c.relation = captured
     LIMIT 1;
END;

-- Returns what Citus needs to know about a table to create and drop its triggers.
CREATE FUNCTION outbox_internal.citus_capture(
    member regclass, OUT type text, OUT argument text, OUT captured_type text)
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.citus_type(member), outbox_internal.capture_argument(member),
           (SELECT outbox_internal.citus_type(captured)
              FROM outbox_internal.captures_of(ARRAY[member::oid]) AS captured LIMIT 1);
END;

-- Changes the argument of the triggers that capture a table, if they have one.
CREATE FUNCTION outbox_internal.set_capture_argument("table" regclass, argument text)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_set_capture_argument';

-- ---------------------------------------------------------------------------------------------
-- Triggers that Citus creates
-- ---------------------------------------------------------------------------------------------

-- The role that creates a trigger needs what outbox.capture() needs. Citus creates those of a shard as
-- the owner of the table.
CREATE FUNCTION outbox_internal.check_may_capture(role name)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_proc AS p
                WHERE p.pronamespace = 'outbox'::regnamespace AND p.proname = 'capture'
                  AND NOT has_function_privilege(role, p.oid, 'EXECUTE')) THEN
        RAISE EXCEPTION 'role "%" may not capture tables on this node', role USING ERRCODE = 'insufficient_privilege',
            HINT = format('SELECT run_command_on_all_nodes(%L);', format('SELECT outbox.grant_capture(%L)', role));
    END IF;
END
$$;
COMMENT ON FUNCTION outbox_internal.check_may_capture(name) IS 'refuses roles that may not capture tables';

-- A trigger that captures a table has been created by a statement, not by outbox.capture() itself.
-- `argument` is null if it has none. `made_now`: the table was created in this transaction.
CREATE FUNCTION outbox_internal.adopt_capture("table" regclass, argument text, role name, made_now boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_shard CONSTANT boolean := outbox_internal.is_captured_shard("table");
BEGIN
    IF EXISTS (SELECT FROM outbox.captured AS c WHERE c.relation = "table") THEN
        NULL; -- by outbox.capture(), by another trigger, or from a dump
    ELSIF argument IS NULL THEN
        RAISE EXCEPTION 'the trigger that captures table % has no argument', "table" USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'Tables that were captured before Citus was installed cannot become tables of Citus.',
            HINT = 'Capture the table anew first: outbox.capture(..., replace => true).';
    -- create_distributed_table() and create_reference_table() copy the rows of a table into shards
    -- that have its triggers already.
    ELSIF is_shard AND made_now AND (argument::jsonb -> 'distributed') IS DISTINCT FROM 'true' THEN
        RAISE EXCEPTION 'a captured table cannot be distributed' USING ERRCODE = 'object_not_in_prerequisite_state',
            DETAIL = 'Its rows would become events once more when they are copied into shards.',
            HINT = 'In one transaction call outbox.uncapture(), distribute the table, and call outbox.capture().';
    ELSE
        PERFORM outbox_internal.check_may_capture(role);
        INSERT INTO outbox.captured
        SELECT (jsonb_populate_record(NULL::outbox.captured, argument::jsonb || jsonb_build_object(
                    'relation', "table"::oid, 'captured_by', role, 'captured_at', clock_timestamp()))).*;
    END IF;
    IF NOT is_shard THEN
        PERFORM outbox_internal.set_capture_argument("table", outbox_internal.capture_argument("table"));
    ELSIF outbox_internal.has_capture_triggers("table") THEN
        PERFORM outbox_internal.check_captured("table");
    END IF;
END
$$;
COMMENT ON FUNCTION outbox_internal.adopt_capture(regclass, text, name, boolean) IS 'captures a table whose triggers Citus has created';

-- Captures tables whose triggers Citus has created.
CREATE FUNCTION outbox_internal.follow_created_triggers()
RETURNS event_trigger
LANGUAGE c
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_follow_created_triggers';

CREATE EVENT TRIGGER outbox_follow_created_triggers ON ddl_command_end WHEN tag IN ('CREATE TRIGGER')
    EXECUTE FUNCTION outbox_internal.follow_created_triggers();
ALTER EVENT TRIGGER outbox_follow_created_triggers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_created_triggers IS 'captures tables whose triggers Citus has created';

-- When outbox.uncapture() drops the triggers of a table on the coordinator, Citus drops them on the
-- other nodes. There the row is forgotten with the last of them.
CREATE FUNCTION outbox_internal.follow_dropped_triggers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    "table" regclass;
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NULL OR NOT outbox_internal.has_captured_table() THEN
        RETURN;
    END IF;
    FOR "table" IN
        SELECT DISTINCT to_regclass(format('%I.%I', o.address_names[1], o.address_names[2]))
          FROM pg_event_trigger_dropped_objects() AS o
         WHERE o.object_type = 'trigger' AND o.address_names[3] LIKE '00\_outbox\_capture\_%'
    LOOP
        CONTINUE WHEN outbox_internal.citus_type("table") IS NULL
                   OR EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = "table" AND t.tgfoid = 'outbox.capture_row'::regproc);
        DELETE FROM outbox.captured AS c WHERE c.relation = "table";
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_dropped_triggers() IS 'forgets captures whose triggers Citus has dropped';

CREATE EVENT TRIGGER outbox_follow_dropped_triggers ON sql_drop WHEN tag IN ('DROP TRIGGER')
    EXECUTE FUNCTION outbox_internal.follow_dropped_triggers();
ALTER EVENT TRIGGER outbox_follow_dropped_triggers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_triggers IS 'forgets captures whose triggers Citus has dropped';

-- Shards that Citus makes later get the triggers as they are on the coordinator, so their argument
-- has to follow renamed and dropped columns.
CREATE FUNCTION outbox_internal.capture_argument_follows()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL THEN
        PERFORM outbox_internal.set_capture_argument(NEW.relation, outbox_internal.capture_argument(NEW.relation));
    END IF;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox_internal.capture_argument_follows() IS 'keeps the argument of triggers as the row is';

CREATE TRIGGER capture_argument_follows AFTER UPDATE ON outbox.captured
    FOR EACH ROW WHEN (OLD IS DISTINCT FROM NEW) EXECUTE FUNCTION outbox_internal.capture_argument_follows();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER capture_argument_follows;
COMMENT ON TRIGGER capture_argument_follows ON outbox.captured IS 'keeps the argument of triggers as the row is';
