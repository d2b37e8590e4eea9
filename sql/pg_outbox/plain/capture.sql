-- Parts of captures that are C++ in the extension (extension/capture/).
--
-- The rights are these. outbox.capture() and its parts run as the owner of the table. The triggers
-- run as the owner of pg_outbox, so they run no code of the table: the triggers' WHEN clauses, which
-- the server evaluates, have its condition, and values of types that are not built in become text by
-- their output functions, never by a cast.

-- Code of the table runs, so the caller must be its owner: the extension can take the rights of
-- another role for that, and give up its own, but SQL cannot.
CREATE FUNCTION outbox_internal.check_owns_table("table" regclass)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    owner CONSTANT oid := (SELECT c.relowner FROM pg_class AS c WHERE c.oid = "table");
BEGIN
    IF owner IS NULL THEN
        RAISE EXCEPTION 'table % does not exist', "table"::oid USING ERRCODE = 'undefined_table';
    ELSIF NOT pg_has_role(owner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', (SELECT c.relname FROM pg_class AS c WHERE c.oid = "table")
            USING ERRCODE = 'insufficient_privilege';
    ELSIF pg_get_userbyid(owner) <> current_user THEN
        RAISE EXCEPTION 'only role "%", which owns table %, can do this', pg_get_userbyid(owner), "table"
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'Code of the table, such as functions of its indexes, would run with the rights of the caller.',
                  HINT = format('SET ROLE %I;', pg_get_userbyid(owner));
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_owns_table(regclass) IS 'refuses roles that do not own a table';

-- Keeps others from changing or capturing a table until the transaction ends.
CREATE FUNCTION outbox_internal.lock_captured("table" regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', "table");
END $$;

-- ------------------------------------------------------------------------------------------------
-- Triggers
-- ------------------------------------------------------------------------------------------------

-- Returns whether a trigger captures its table.
CREATE FUNCTION outbox_internal.is_capturing(trigger oid)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN EXISTS (SELECT FROM pg_trigger AS t
                    WHERE t.oid = trigger
                      AND t.tgfoid IN ('outbox.capture_row()'::regprocedure, 'outbox.capture_truncate()'::regprocedure));
END $$;

-- Returns a condition over columns of a table as one over columns of the row with this name. The
-- parser of the server does it: it prints the name of the table where a query has more than one.
CREATE FUNCTION outbox_internal.condition_about("table" regclass, condition text, "row" text)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    name CONSTANT text := 'outbox_' || replace(gen_random_uuid()::text, '-', ''); -- found nowhere else
    body CONSTANT text := format('SELECT (%s
) AS condition FROM ONLY %s AS %I, (VALUES (1)) AS other(outbox_other_column)', condition, "table", name);
    one   refcursor;
    type  regtype;
    query text;
BEGIN
    OPEN one FOR EXECUTE body; -- unlike EXECUTE, this takes no more than one statement
    CLOSE one;
    EXECUTE format('CREATE TEMPORARY VIEW %I AS %s', name, body);
    query := pg_get_viewdef(format('pg_temp.%I', name)::regclass);
    SELECT CASE t.typtype WHEN 'd' THEN t.typbasetype ELSE t.oid END INTO type
      FROM pg_attribute AS a JOIN pg_type AS t ON t.oid = a.atttypid
     WHERE a.attrelid = format('pg_temp.%I', name)::regclass AND a.attnum = 1;
    EXECUTE format('DROP VIEW pg_temp.%I', name);
    IF type <> 'boolean'::regtype THEN
        RAISE EXCEPTION 'argument of condition must be type boolean, not type %', type USING ERRCODE = 'datatype_mismatch';
    END IF;
    query := substring(query FROM format('^\s*SELECT (.*) AS condition\s+FROM ONLY [^;]* %s,', name));
    IF query IS NULL THEN
        RAISE EXCEPTION 'condition is not a single expression' USING ERRCODE = 'syntax_error';
    END IF;
    RETURN replace(query, name || '.', "row" || '.');
EXCEPTION
    WHEN invalid_cursor_definition THEN
        RAISE EXCEPTION 'condition is not a single expression' USING ERRCODE = 'syntax_error';
    WHEN syntax_error_or_access_rule_violation THEN -- without the query above
        RAISE EXCEPTION USING MESSAGE = SQLERRM, ERRCODE = SQLSTATE;
END $$;

-- With a condition, an UPDATE fires one of three triggers: the row is captured before and after,
-- only after, or only before.
CREATE FUNCTION outbox_internal.add_capture_triggers(member regclass, condition text, on_truncate text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_row text;
    old_row text;
    wanted  record;
BEGIN
    IF member IS NULL OR on_truncate IS NULL THEN
        RAISE EXCEPTION 'argument is null' USING ERRCODE = 'null_value_not_allowed';
    END IF;
    PERFORM outbox_internal.check_owns_table(member);
    IF condition IS NOT NULL THEN
        new_row := outbox_internal.condition_about(member, condition, 'new');
        old_row := outbox_internal.condition_about(member, condition, 'old');
    END IF;
    FOR wanted IN
        SELECT * FROM (VALUES
            ('00_outbox_capture_insert', 'INSERT', new_row, '', true),
            ('00_outbox_capture_update', 'UPDATE', '(' || old_row || ') AND (' || new_row || ')', '', true),
            ('00_outbox_capture_update_in', 'UPDATE', '(' || old_row || ') IS NOT TRUE AND (' || new_row || ')', '''in''', condition IS NOT NULL),
            ('00_outbox_capture_update_out', 'UPDATE', '(' || old_row || ') AND (' || new_row || ') IS NOT TRUE', '''out''', condition IS NOT NULL),
            ('00_outbox_capture_delete', 'DELETE', old_row, '', true)
        ) AS w(name, event, condition, argument, needed)
         WHERE w.needed AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = member AND t.tgname = w.name)
    LOOP
        BEGIN
            EXECUTE format('CREATE TRIGGER %I AFTER %s ON %s FOR EACH ROW %s EXECUTE FUNCTION outbox.capture_row(%s)',
                           wanted.name, wanted.event, member, 'WHEN (' || wanted.condition || ')', wanted.argument);
        EXCEPTION WHEN feature_not_supported THEN -- of the condition; without this statement
            RAISE EXCEPTION USING MESSAGE = SQLERRM, ERRCODE = SQLSTATE;
        END;
    END LOOP;
    IF on_truncate IN ('refuse', 'announce') -- foreign tables have no TRUNCATE triggers
       AND (SELECT c.relkind <> 'f' FROM pg_class AS c WHERE c.oid = member)
       AND NOT EXISTS (SELECT FROM pg_trigger AS t WHERE t.tgrelid = member AND t.tgname = '00_outbox_capture_truncate') THEN
        EXECUTE format('CREATE TRIGGER "00_outbox_capture_truncate" %s TRUNCATE ON %s FOR EACH STATEMENT '
                       'EXECUTE FUNCTION outbox.capture_truncate()',
                       CASE on_truncate WHEN 'refuse' THEN 'BEFORE' ELSE 'AFTER' END, member);
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.add_capture_triggers(regclass, text, text) IS 'gives a table the triggers that capture it';

-- Gives a partition or child the triggers that it lacks, with the condition of the captured table.
CREATE FUNCTION outbox_internal.copy_capture_triggers(captured regclass, member regclass, on_truncate text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.add_capture_triggers(member, outbox.capture_condition(captured), on_truncate);
END $$;

-- Sets when the triggers that capture a table fire.
CREATE FUNCTION outbox_internal.set_capture_fire(member regclass, fire text)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    trigger name;
BEGIN
    PERFORM outbox_internal.check_owns_table(member);
    FOR trigger IN
        SELECT t.tgname FROM pg_trigger AS t
         WHERE t.tgrelid = member AND outbox_internal.is_capturing(t.oid) AND t.tgenabled <> outbox_internal.trigger_state(fire)
    LOOP
        EXECUTE format('ALTER TABLE %s ENABLE %s TRIGGER %I', member,
                       CASE fire WHEN 'always' THEN 'ALWAYS' WHEN 'replica' THEN 'REPLICA' ELSE '' END, trigger);
    END LOOP;
END $$;

-- Dropping the triggers of a partitioned table drops those of its partitions.
CREATE FUNCTION outbox_internal.drop_capture_triggers(member regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    trigger name;
BEGIN
    PERFORM outbox_internal.check_owns_table(member);
    FOR trigger IN
        SELECT t.tgname FROM pg_trigger AS t
         WHERE t.tgrelid = member AND t.tgparentid = 0 AND outbox_internal.is_capturing(t.oid)
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', trigger, member);
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.drop_capture_triggers(regclass) IS 'drops the triggers that capture a table';

-- ------------------------------------------------------------------------------------------------
-- Captures
-- ------------------------------------------------------------------------------------------------

-- Not only outbox.capture() may call this, so it checks the arguments again, and takes the calling
-- role from where the call is made.
CREATE FUNCTION outbox_internal.save_captured(captured outbox.captured, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF (SELECT pg_get_userbyid(c.relowner) = caller FROM pg_class AS c WHERE c.oid = captured.relation) IS NOT TRUE THEN
        RAISE EXCEPTION 'must be owner of table %', captured.relation USING ERRCODE = 'insufficient_privilege';
    END IF;
    captured.captured_by := caller;
    captured.captured_at := clock_timestamp();
    DELETE FROM outbox.captured AS c WHERE c.relation = captured.relation;
    INSERT INTO outbox.captured SELECT (captured).*;
END $$;
COMMENT ON FUNCTION outbox_internal.save_captured(outbox.captured, outbox_internal.caller) IS 'records that a table is captured, on behalf of its owner';

-- Records that a table is not captured, on behalf of its owner.
CREATE FUNCTION outbox_internal.forget_captured("table" regclass, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF (SELECT pg_has_role(caller, c.relowner, 'USAGE') FROM pg_class AS c WHERE c.oid = "table") IS NOT TRUE THEN
        RAISE EXCEPTION 'must be owner of table %', "table" USING ERRCODE = 'insufficient_privilege';
    END IF;
    DELETE FROM outbox.captured AS c WHERE c.relation = "table";
END $$;

-- Returns whether a table has all columns that it had.
CREATE FUNCTION outbox_internal.has_columns(columns name[], known name[])
RETURNS boolean
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(bool_and(coalesce(k.name = ANY (array_remove(columns, NULL)), false)), true)
      FROM unnest(known) AS k(name) WHERE k.name IS NOT NULL;
END;

-- Columns of a restored table may have other numbers. Its capture has the names that it was dumped with.
CREATE FUNCTION outbox_internal.tend_captures()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM outbox.captured AS c WHERE c.relation::oid NOT IN (SELECT r.oid FROM pg_class AS r);
    UPDATE outbox.captured AS c
       SET known_columns = outbox_internal.columns_of(c.relation),
           known_members = ARRAY(SELECT outbox_internal.captured_tree(c.relation))
     WHERE c.relation::oid <> ALL (c.known_members)
       AND outbox_internal.has_columns(outbox_internal.columns_of(c.relation), c.known_columns);
    PERFORM outbox_internal.follow_columns(c.relation) FROM outbox.captured AS c
      WHERE c.relation::oid = ANY (c.known_members) AND c.known_columns <> outbox_internal.columns_of(c.relation);
END $$;
COMMENT ON FUNCTION outbox_internal.tend_captures() IS 'notes what became of the columns of captured tables';

-- Returns the capture of a table, or of one that it is a part of, with the present names of columns.
CREATE FUNCTION outbox_internal.capture_of("table" regclass)
RETURNS outbox.captured
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c   outbox.captured;
    now name[];
BEGIN
    SELECT * INTO c FROM outbox.captured AS k WHERE k.relation = "table";
    IF NOT FOUND THEN
        WITH RECURSIVE above(relation, distance) AS (
            SELECT i.inhparent, 1 FROM pg_inherits AS i WHERE i.inhrelid = "table"
            UNION ALL
            SELECT i.inhparent, a.distance + 1 FROM above AS a JOIN pg_inherits AS i ON i.inhrelid = a.relation
        )
        SELECT k.* INTO c FROM above AS a JOIN outbox.captured AS k ON k.relation = a.relation ORDER BY a.distance LIMIT 1;
        IF NOT FOUND THEN
            RETURN NULL;
        END IF;
    END IF;
    now := outbox_internal.columns_of(c.relation);
    IF c.relation::oid <> ALL (c.known_members) THEN -- restored: columns may have other numbers
        IF NOT outbox_internal.has_columns(now, c.known_columns) THEN
            RAISE EXCEPTION 'columns of table "%" were renamed or dropped before outbox-relay saw it after a restore',
                    (SELECT r.relname FROM pg_class AS r WHERE r.oid = c.relation)
                USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = 'It is not known which of them were captured.',
                      HINT = 'Call outbox.capture() again, with replace => true.';
        END IF;
    ELSIF now <> c.known_columns THEN -- outbox_internal.tend_captures() saves it
        IF c.columns IS NOT NULL THEN
            c.columns := outbox_internal.follow_names(
                ARRAY(SELECT n FROM unnest(c.columns) WITH ORDINALITY AS k(n, place)
                       WHERE now[array_position(c.known_columns, n)] IS NOT NULL ORDER BY place), c.known_columns, now);
        END IF;
        c.aggregate_id := outbox_internal.follow_names(c.aggregate_id, c.known_columns, now);
        c.row_key := outbox_internal.follow_names(c.row_key, c.known_columns, now);
        c.version := (outbox_internal.follow_names(ARRAY[c.version], c.known_columns, now))[1];
        c.topic_column := (outbox_internal.follow_names(ARRAY[c.topic_column], c.known_columns, now))[1];
        c.ordering_key := outbox_internal.follow_names(c.ordering_key, c.known_columns, now);
        c.excluded := outbox_internal.follow_names(c.excluded, c.known_columns, now);
        c.headers := (SELECT jsonb_object_agg(h.key, (outbox_internal.follow_names(ARRAY[h.value::name], c.known_columns, now))[1])
                        FROM jsonb_each_text(c.headers) AS h);
    END IF;
    RETURN c;
END $$;

-- Returns what captures have to know of the columns of a table. These are the names in payloads;
-- the columns that are times, which keys have in UTC, booleans and integers; and, if a type is not
-- built in, an expression that makes the row of $1 from values of built-in types.
CREATE FUNCTION outbox_internal.shape_of(
    "table" regclass, capture outbox.captured,
    OUT payload name[], OUT times name[], OUT booleans name[], OUT integers name[], OUT expression text)
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(a.attname ORDER BY a.attnum)
                        FILTER (WHERE CASE WHEN (capture).columns IS NULL THEN a.attname <> ALL ((capture).excluded) AND a.attgenerated <> 'v'
                                           ELSE a.attname = ANY ((capture).columns) END
                                      OR a.attname = ANY ((capture).aggregate_id || (capture).row_key || (capture).version)), '{}'),
           array_agg(a.attname) FILTER (WHERE a.type = 'timestamptz'::regtype),
           array_agg(a.attname) FILTER (WHERE a.type = 'boolean'::regtype),
           array_agg(a.attname) FILTER (WHERE a.type IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype)),
           CASE WHEN bool_or(a.atttypid >= 16384) THEN
               'SELECT row_to_json(outbox_row) FROM (SELECT ' || string_agg(
                   CASE WHEN a.type < 16384 THEN format('($1).%I::%s AS %1$I', a.attname, format_type(a.type, -1))
                        ELSE format('CASE WHEN num_nonnulls(($1).%I) = 1 THEN format(''%%s'', ($1).%1$I) END AS %1$I', a.attname) END,
                   ', ' ORDER BY a.attnum) || ') AS outbox_row' END
      FROM (SELECT n.attname, n.attnum, n.attgenerated, n.atttypid,
                   -- Domains count as the type below them, unless that is a domain as well.
                   CASE WHEN t.typtype = 'd' AND t.typbasetype < 16384 THEN t.typbasetype ELSE n.atttypid END AS type
              FROM pg_attribute AS n JOIN pg_type AS t ON t.oid = n.atttypid
             WHERE n.attrelid = "table" AND n.attnum > 0 AND NOT n.attisdropped) AS a;
END;

-- Refuses a column that cannot be captured.
CREATE FUNCTION outbox_internal.check_captured_column("table" regclass, name name)
RETURNS pg_attribute
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    its pg_attribute;
BEGIN
    SELECT a.* INTO its FROM pg_attribute AS a
     WHERE a.attrelid = "table" AND a.attname = name AND a.attnum > 0 AND NOT a.attisdropped;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'column "%", which outbox.capture() names, does not exist in table "%"', name,
                (SELECT c.relname FROM pg_class AS c WHERE c.oid = "table")
            USING ERRCODE = 'undefined_column',
                  HINT = format('Its columns are: %s.', array_to_string(outbox_internal.columns_of("table"), ', '));
    ELSIF its.attgenerated = 'v' THEN
        RAISE EXCEPTION 'column "%" cannot be captured', name
            USING ERRCODE = 'feature_not_supported', DETAIL = 'Virtual generated columns have no value when triggers run.';
    END IF;
    RETURN its;
END $$;

-- Checks once, at capture, what outbox.enqueue() would refuse in each event.
CREATE FUNCTION outbox_internal.check_captured("table" regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    c      CONSTANT outbox.captured := outbox_internal.capture_of("table");
    column_ pg_attribute;
    name   name;
BEGIN
    IF c.relation IS NULL THEN
        RETURN;
    END IF;
    FOR name IN SELECT unnest(c.columns) LOOP
        column_ := outbox_internal.check_captured_column("table", name);
    END LOOP;
    FOR name IN SELECT unnest(c.aggregate_id || c.row_key || c.ordering_key) LOOP
        column_ := outbox_internal.check_captured_column("table", name);
        IF name = ANY (c.aggregate_id || c.row_key) AND NOT column_.attnotnull THEN
            RAISE EXCEPTION 'column "%" of a captured key may be null', name
                USING ERRCODE = 'invalid_table_definition',
                      HINT = 'Declare it NOT NULL, or capture the table with another aggregate_id.';
        END IF;
    END LOOP;
    IF c.version IS NOT NULL THEN
        column_ := outbox_internal.check_captured_column("table", c.version);
        IF column_.atttypid NOT IN ('smallint'::regtype, 'integer'::regtype, 'bigint'::regtype) THEN
            RAISE EXCEPTION 'version column "%" is of type %', c.version, format_type(column_.atttypid, NULL)
                USING ERRCODE = 'datatype_mismatch',
                      HINT = 'A version is a smallint, integer or bigint that every change raises.';
        ELSIF NOT column_.attnotnull THEN
            RAISE EXCEPTION 'version column "%" may be null', c.version
                USING ERRCODE = 'invalid_table_definition', HINT = 'Declare it NOT NULL.';
        END IF;
    END IF;
    IF c.topic_column IS NOT NULL THEN
        column_ := outbox_internal.check_captured_column("table", c.topic_column);
    END IF;
    IF EXISTS (SELECT FROM jsonb_each(c.headers) AS h WHERE jsonb_typeof(h.value) <> 'string') THEN
        RAISE EXCEPTION 'headers of a capture must be names of columns'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write for example ''{"tenant": "tenant_id"}''.';
    END IF;
    FOR name IN SELECT h.value FROM jsonb_each_text(c.headers) AS h LOOP
        column_ := outbox_internal.check_captured_column("table", name);
    END LOOP;
    PERFORM outbox_internal.check_event(c.aggregate_type, 'any', t, c.topic, NULL,
                                        (SELECT jsonb_object_agg(h.key, NULL) FROM jsonb_each(c.headers) AS h), NULL, NULL)
       FROM unnest(ARRAY[c.insert_type, c.update_type, c.delete_type, c.truncate_type, c.snapshot_type]) AS t;
    PERFORM outbox_internal.check_may_produce(c.topic, pg_get_userbyid(r.relowner), true) FROM pg_class AS r WHERE r.oid = c.relation;
END $$;

-- ------------------------------------------------------------------------------------------------
-- Events
-- ------------------------------------------------------------------------------------------------

-- Functions without a search_path of their own run under that of the triggers, and are granted to
-- no role.

-- Returns the members of a row with these names as a JSON object, as they are written there.
CREATE FUNCTION outbox_internal.members_of("row" json, names name[])
RETURNS text
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN (SELECT '{' || coalesce(string_agg(to_json(m.key)::text || ':' || m.value::text, ',' ORDER BY m.place), '') || '}'
              FROM json_each("row") WITH ORDINALITY AS m(key, value, place)
             WHERE m.key = ANY (names::text[]));
END $$;

-- Returns a value of a key as text. Times do not depend on the session's time zone, because keys
-- must be the same for all sessions.
CREATE FUNCTION outbox_internal.key_value("row" json, name name, times name[], booleans name[])
RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF name = ANY (times) AND "row" ->> name IS NOT NULL THEN
        RETURN CASE WHEN isfinite(("row" ->> name)::timestamptz)
                    THEN to_json(("row" ->> name)::timestamptz AT TIME ZONE 'UTC') #>> '{}' || '+00:00' ELSE "row" ->> name END;
    ELSIF name = ANY (booleans) THEN
        RETURN left("row" ->> name, 1);
    END IF;
    RETURN "row" ->> name;
END $$;

-- Returns a key of one or several columns. Joins the values by colons, and escapes colons within a
-- value.
CREATE FUNCTION outbox_internal.key_text("row" json, names name[], times name[], booleans name[])
RETURNS text
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF cardinality(names) = 1 THEN
        RETURN coalesce(outbox_internal.key_value("row", names[1], times, booleans), '');
    END IF;
    RETURN (SELECT coalesce(string_agg(coalesce(replace(replace(outbox_internal.key_value("row", n.name, times, booleans), E'\\', E'\\\\'), ':', E'\\:'), ''),
                                       ':' ORDER BY n.place), '')
              FROM unnest(names) WITH ORDINALITY AS n(name, place));
END $$;

-- Columns that are null add no header. The one with the schema tells tables of one name in several
-- schemas apart; most tables are in `public`, and their events need none.
CREATE FUNCTION outbox_internal.headers_of(capture outbox.captured, "row" json, shape record, snapshot boolean)
RETURNS jsonb
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    schema  CONSTANT name := (SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
                               WHERE c.oid = capture.relation AND n.nspname <> 'public');
    headers jsonb;
BEGIN
    IF capture.headers IS NOT NULL THEN
        SELECT jsonb_object_agg(h.key, CASE WHEN h.value::name = ANY (shape.integers || shape.booleans) THEN ("row" -> h.value)::jsonb
                                            ELSE to_jsonb(outbox_internal.key_value("row", h.value, shape.times, '{}')) END)
          INTO headers
          FROM jsonb_each_text(capture.headers) AS h
         WHERE "row" ->> h.value IS NOT NULL;
    END IF;
    IF schema IS NOT NULL AND (capture.headers ? 'tableschema') IS NOT TRUE THEN
        headers := coalesce(headers, '{}') || jsonb_build_object('tableschema', schema);
    END IF;
    RETURN CASE WHEN snapshot THEN coalesce(headers, '{}') || '{"snapshot": true}' ELSE headers END;
END $$;
COMMENT ON FUNCTION outbox_internal.headers_of(outbox.captured, json, record, boolean) IS 'headers of an event of a row';

-- Notes a row that the transaction deletes, and the version of the event, for captures with a version
-- column. The notes are in 256 settings of the transaction, each limited in size.
CREATE FUNCTION outbox_internal.note_removed(row_id bigint, version bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    setting CONSTANT text := format('outbox_internal.removed_%s', row_id & 255);
    noted   CONSTANT text := coalesce(current_setting(setting, true), '');
BEGIN
    IF length(noted) < 3000 THEN
        PERFORM set_config(setting, format('%s %s:%s', noted, row_id, version), true),
                set_config('outbox_internal.removed', 'on', true);
    END IF;
END $$;

-- Checks a row that the transaction inserts: its version must be higher than that of its delete, too.
-- It is not if a program moves rows, as pg_partman does, which deletes them and inserts them again.
CREATE FUNCTION outbox_internal.check_not_removed(capture outbox.captured, row_id bigint, version bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    setting CONSTANT text := format('outbox_internal.removed_%s', row_id & 255);
    noted   CONSTANT text := current_setting(setting, true);
    before  CONSTANT text := substring(noted FROM format('.* %s:(-?[0-9]+)', row_id)); -- the last one
BEGIN
    IF before IS NOT NULL THEN
        PERFORM set_config(setting, regexp_replace(noted, format(' %s:-?[0-9]+', row_id), '', 'g'), true);
        IF version <= before::bigint THEN
            PERFORM outbox_internal.check_version_rises(capture, before::bigint, version);
        END IF;
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_not_removed(outbox.captured, bigint, bigint) IS 'warns of a row that comes again with its old version, or refuses it';

-- Writes an event of a row.
CREATE FUNCTION outbox_internal.put_captured(
    capture outbox.captured, shape record, event_type text, "row" json, payload text, version bigint,
    snapshot boolean DEFAULT false, only_to integer DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    missing name;
BEGIN
    SELECT n INTO missing FROM unnest(capture.aggregate_id) AS n WHERE "row" -> n IS NULL LIMIT 1;
    IF FOUND THEN
        PERFORM outbox_internal.check_captured_column(capture.relation, missing);
    END IF;
    PERFORM outbox_internal.put_event(
        capture.aggregate_type, outbox_internal.key_text("row", capture.aggregate_id, shape.times, shape.booleans), event_type,
        'application/json', convert_to(payload, 'UTF8'), version,
        coalesce(outbox_internal.key_value("row", capture.topic_column, shape.times, shape.booleans), capture.topic),
        CASE WHEN capture.ordering_key IS NOT NULL
             THEN outbox_internal.key_text("row", capture.ordering_key, shape.times, shape.booleans) END,
        outbox_internal.headers_of(capture, "row", shape, snapshot), NULL, NULL, NULL, NULL,
        (SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c WHERE c.oid = capture.relation), true, only_to, snapshot);
END $$;

-- Returns a hash of the key of a row.
CREATE FUNCTION outbox_internal.row_id(capture outbox.captured, "row" json)
RETURNS bigint
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    RETURN hashtextextended(outbox_internal.members_of("row", capture.aggregate_id || capture.row_key), capture.relation::oid::bigint);
END $$;

-- Writes an event of a row that is inserted, or that the condition includes from now on.
CREATE FUNCTION outbox_internal.put_inserted(capture outbox.captured, shape record, "row" json)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    version CONSTANT bigint := "row" ->> capture.version;
BEGIN
    IF version IS NOT NULL AND current_setting('outbox_internal.removed', true) = 'on' THEN
        PERFORM outbox_internal.check_not_removed(capture, outbox_internal.row_id(capture, "row"), version);
    END IF;
    PERFORM outbox_internal.put_captured(capture, shape, capture.insert_type, "row", outbox_internal.members_of("row", shape.payload), version);
END $$;

-- The version is that of the event, which is newer than that of the row.
CREATE FUNCTION outbox_internal.put_deleted(capture outbox.captured, shape record, "row" json, least_version bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    version bigint;
    payload text;
    keys CONSTANT name[] := CASE capture.on_delete WHEN 'old' THEN shape.payload ELSE capture.aggregate_id || capture.row_key || capture.version END;
BEGIN
    IF capture.version IS NULL THEN
        payload := outbox_internal.members_of("row", keys);
    ELSE
        version := ("row" ->> capture.version)::bigint;
        version := greatest(version + (version < 9223372036854775807)::integer, least_version);
        payload := (SELECT '{' || string_agg(to_json(m.key)::text || ':' ||
                                             CASE WHEN m.key = capture.version THEN version::text ELSE m.value::text END, ',' ORDER BY m.place) || '}'
                      FROM json_each("row") WITH ORDINALITY AS m(key, value, place)
                     WHERE m.key = ANY (keys::text[]));
        PERFORM outbox_internal.note_removed(outbox_internal.row_id(capture, "row"), version);
    END IF;
    PERFORM outbox_internal.put_captured(capture, shape, capture.delete_type, "row", payload, version);
END $$;
COMMENT ON FUNCTION outbox_internal.put_deleted(outbox.captured, record, json, bigint) IS 'writes an event of a deleted row';

-- Consumers that apply only newer versions ignore the event of a change that does not raise the
-- version. The warning comes once a statement.
CREATE FUNCTION outbox_internal.check_version_rises(capture outbox.captured, before bigint, after bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    warning CONSTANT text := format('%s %s', statement_timestamp(), capture.relation::oid);
    message CONSTANT text := format('version column "%s" of table "%s" did not rise', capture.version,
                                    (SELECT c.relname FROM pg_class AS c WHERE c.oid = capture.relation));
    detail  CONSTANT text := format('It was %s and is %s. Consumers that apply only newer versions pass over the event.', before, after);
    hint    CONSTANT text := 'Raise it with each change, or capture the table without a version.';
BEGIN
    IF outbox_internal.setting('on_stale_version') = 'error' THEN
        RAISE EXCEPTION '%', message USING ERRCODE = 'integrity_constraint_violation', DETAIL = detail, HINT = hint;
    ELSIF current_setting('outbox_internal.warned_of_version', true) IS DISTINCT FROM warning THEN
        PERFORM set_config('outbox_internal.warned_of_version', warning, true);
        RAISE WARNING '%', message USING ERRCODE = 'integrity_constraint_violation', DETAIL = detail, HINT = hint;
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_version_rises(outbox.captured, bigint, bigint) IS 'warns of a version that did not rise, or refuses it';

-- Writes the events of an updated row.
CREATE FUNCTION outbox_internal.put_updated(capture outbox.captured, shape record, old_row json, new_row json)
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    keys    CONSTANT name[] := capture.aggregate_id || capture.row_key;
    changed name[];
    payload text;
BEGIN
    changed := ARRAY(SELECT o.key::name FROM json_each(old_row) AS o JOIN json_each(new_row) AS n ON n.key = o.key
                      WHERE o.key = ANY (shape.payload::text[]) AND o.value::text <> n.value::text);
    IF changed && keys THEN
        PERFORM outbox_internal.put_deleted(capture, shape, old_row, NULL);
        PERFORM outbox_internal.put_inserted(capture, shape, new_row);
        RETURN;
    ELSIF changed = '{}' THEN
        RETURN;
    ELSIF (new_row ->> capture.version)::bigint <= (old_row ->> capture.version)::bigint THEN
        PERFORM outbox_internal.check_version_rises(capture, (old_row ->> capture.version)::bigint, (new_row ->> capture.version)::bigint);
    END IF;
    IF capture.on_update = 'full' THEN
        payload := outbox_internal.members_of(new_row, shape.payload);
    ELSIF capture.on_update = 'changed' AND NOT capture.old_values THEN
        payload := outbox_internal.members_of(new_row, changed || keys || capture.version);
    ELSIF capture.on_update = 'changed' THEN
        payload := format('{"key":%s,"old":%s,"new":%s}', outbox_internal.members_of(new_row, keys),
                          outbox_internal.members_of(old_row, changed), outbox_internal.members_of(new_row, changed));
    ELSE
        payload := format('{"key":%s,"changed":{%s}}', outbox_internal.members_of(new_row, keys),
                          (SELECT string_agg(format('%s:{"old":%s,"new":%s}', to_json(m.key), old_row -> m.key, m.value), ',' ORDER BY m.place)
                             FROM json_each(new_row) WITH ORDINALITY AS m(key, value, place)
                            WHERE m.key = ANY (changed::text[])));
    END IF;
    PERFORM outbox_internal.put_captured(capture, shape, capture.update_type, new_row, payload, (new_row ->> capture.version)::bigint);
END $$;

-- A snapshot from before outbox.capture() sees the triggers, but not the capture.
CREATE FUNCTION outbox_internal.refuse_not_captured("table" name)
RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'could not serialize access, because table "%" is not captured in the snapshot of the transaction', "table"
            USING ERRCODE = 'serialization_failure', HINT = 'The transaction might succeed if retried.';
    END IF;
    RAISE EXCEPTION 'table "%" has a trigger that captures it, but is not captured', "table"
        USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call outbox.capture(), or drop the trigger.';
END $$;
COMMENT ON FUNCTION outbox_internal.refuse_not_captured(name) IS 'refuses a row of a table that is not captured';

-- Writes an event of a changed row.
CREATE FUNCTION outbox.capture_row()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    capture outbox.captured;
    shape   record;
    old_row json;
    new_row json;
BEGIN
    IF TG_WHEN <> 'AFTER' OR TG_LEVEL <> 'ROW' THEN
        RAISE EXCEPTION 'outbox.capture_row() must be fired AFTER and FOR EACH ROW' USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    capture := outbox_internal.capture_of(TG_RELID);
    IF capture.relation IS NULL THEN
        PERFORM outbox_internal.refuse_not_captured(TG_TABLE_NAME);
    END IF;
    shape := outbox_internal.shape_of(TG_RELID, capture);
    IF TG_OP <> 'INSERT' AND shape.expression IS NULL THEN
        old_row := row_to_json(OLD);
    ELSIF TG_OP <> 'INSERT' THEN
        EXECUTE shape.expression INTO old_row USING OLD;
    END IF;
    IF TG_OP <> 'DELETE' AND shape.expression IS NULL THEN
        new_row := row_to_json(NEW);
    ELSIF TG_OP <> 'DELETE' THEN
        EXECUTE shape.expression INTO new_row USING NEW;
    END IF;

    IF TG_OP = 'INSERT' OR TG_ARGV[0] = 'in' THEN
        PERFORM outbox_internal.put_inserted(capture, shape, new_row);
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM outbox_internal.put_deleted(capture, shape, old_row, NULL);
    ELSIF TG_ARGV[0] = 'out' THEN
        PERFORM outbox_internal.put_deleted(capture, shape, old_row, (new_row ->> capture.version)::bigint);
    ELSE
        PERFORM outbox_internal.put_updated(capture, shape, old_row, new_row);
    END IF;
    RETURN NULL;
END $$;

-- The event is about the whole table, whose name is the aggregate id.
CREATE FUNCTION outbox.capture_truncate()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    capture outbox.captured;
    "table" text;
BEGIN
    IF TG_OP <> 'TRUNCATE' THEN
        RAISE EXCEPTION 'outbox.capture_truncate() must be fired by TRUNCATE' USING ERRCODE = 'trigger_protocol_violated';
    ELSIF TG_WHEN = 'BEFORE' THEN
        RAISE EXCEPTION 'cannot truncate table "%", because it is captured', TG_TABLE_NAME
            USING ERRCODE = 'feature_not_supported', DETAIL = 'There would be no events for its rows.',
                  HINT = 'Use DELETE, or capture it with on_truncate => ''announce'' or ''ignore''.';
    END IF;
    capture := outbox_internal.capture_of(TG_RELID);
    IF capture.relation IS NULL THEN
        PERFORM outbox_internal.refuse_not_captured(TG_TABLE_NAME);
    END IF;
    SELECT format('%I.%I', n.nspname, c.relname) INTO "table"
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = capture.relation;
    PERFORM outbox_internal.put_event(
        capture.aggregate_type, "table", capture.truncate_type, 'application/json',
        convert_to(format('{"table":%s,"truncated":%s}', to_json("table"), to_json(format('%I.%I', TG_TABLE_SCHEMA, TG_TABLE_NAME))), 'UTF8'),
        NULL, capture.topic, NULL, NULL, NULL, NULL, NULL, NULL,
        (SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c WHERE c.oid = capture.relation), true);
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox.capture_truncate() IS 'writes an event of TRUNCATE, or refuses it';
