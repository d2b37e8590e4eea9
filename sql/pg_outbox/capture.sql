-- outbox.capture() makes changes of a table events. See docs/capture.md.

-- Makes the default event types of a table: those of order_line begin with OrderLine.
CREATE FUNCTION outbox_internal.event_type_of(aggregate_type text, suffix text)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(upper(left(part, 1)) || substr(part, 2), '' ORDER BY number) || suffix
      FROM regexp_split_to_table(aggregate_type, '[-_ .:/]+') WITH ORDINALITY AS p(part, number);
END;

-- Makes the default aggregate type of a table, with or without its schema.
CREATE FUNCTION outbox_internal.aggregate_type_of("table" regclass, with_schema boolean)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN with_schema THEN n.nspname || '.' ELSE '' END || c.relname
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = "table";
END;

-- Warns if another captured table has the same topic and event types, as one of the same name in
-- another schema.
CREATE FUNCTION outbox_internal.warn_of_namesake(captured outbox.captured)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    other regclass := (SELECT c.captured FROM outbox.captures AS c
                        WHERE c.captured <> $1.relation AND c.aggregate_type = $1.aggregate_type AND c.topic = $1.topic
                        ORDER BY c.captured_at LIMIT 1);
BEGIN
    IF other IS NOT NULL THEN
        RAISE WARNING 'events of table % have the same topic and types as those of table %', captured.relation, other
            USING DETAIL = 'Rows with the same key have the same aggregate id. Only the header tableschema tells them apart.',
                  HINT = 'Use with_schema => true, or give aggregate_type and topic.';
    END IF;
END
$$;

-- Returns the unique constraints and indexes that identify rows of a table. One that is `deferrable`
-- lets several rows have one key until it is checked.
CREATE FUNCTION outbox_internal.unique_keys("table" regclass)
RETURNS TABLE (columns name[], is_primary boolean, is_deferrable boolean)
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT k.columns, i.indisprimary, NOT i.indimmediate
      FROM pg_index AS i
     CROSS JOIN LATERAL (SELECT array_agg(a.attname ORDER BY n.place) AS columns, bool_and(a.attnum IS NOT NULL) AS are_columns
                           FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS n(number, place)
                           LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = n.number AND a.attnum > 0) AS k
     WHERE i.indrelid = "table" AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND k.are_columns
     ORDER BY i.indisprimary DESC, i.indexrelid;
END;

-- Returns the columns of the primary key, or else those of `id` that identify a row. At no moment two
-- rows have the same values in them. Empty if there are none.
CREATE FUNCTION outbox_internal.row_key_of("table" regclass, id name[])
RETURNS name[]
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT k.columns FROM outbox_internal.unique_keys("table") AS k
                      WHERE NOT k.is_deferrable AND (k.is_primary OR k.columns <@ id) LIMIT 1), '{}');
END;

-- Refuses a key that several rows may have for a while: an event about one of these rows would make
-- consumers lose another.
CREATE FUNCTION outbox_internal.check_identity("table" regclass, id name[], row_key name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key name[] := (SELECT k.columns FROM outbox_internal.unique_keys("table") AS k
                    WHERE k.is_deferrable AND (k.is_primary OR k.columns <@ id) LIMIT 1);
BEGIN
    IF row_key = '{}' AND key IS NOT NULL THEN
        RAISE EXCEPTION 'table % has a deferrable key', "table" USING ERRCODE = '42P16',
            DETAIL = format('Until its constraint is checked, several rows may have one value of (%s), and an event about one of them would '
                            'make consumers lose another.', array_to_string(key, ', ')),
            HINT = 'Set aggregate_id to columns with a unique constraint that is not deferrable, or make this one NOT DEFERRABLE.';
    ELSIF id = '{}' THEN
        RAISE EXCEPTION 'table % has no primary key', "table" USING ERRCODE = '42P16',
            HINT = 'Set aggregate_id to the columns that identify the aggregate of a row.';
    END IF;
END
$$;

-- Returns whether events tell the rows of a table apart: a unique constraint that is not deferrable is
-- on columns of the aggregate id and the row key. Columns may have been renamed since.
CREATE FUNCTION outbox_internal.key_is_unique(capture outbox.captured)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM outbox_internal.unique_keys((capture).relation) AS k
                    WHERE NOT k.is_deferrable
                      AND k.columns <@ CASE WHEN (capture).relation::oid = ANY ((capture).known_members)
                                            THEN outbox_internal.follow_names((capture).aggregate_id || (capture).row_key, (capture).known_columns,
                                                                     outbox_internal.columns_of((capture).relation))
                                            ELSE (capture).aggregate_id || (capture).row_key END);
END;

-- Refuses a table that cannot be captured.
CREATE FUNCTION outbox_internal.check_capturable("table" regclass)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation record;
    other regclass;
BEGIN
    SELECT c.relkind, c.relpersistence, c.relowner, n.nspname INTO relation
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = "table";
    IF "table" IS NULL THEN
        RAISE EXCEPTION 'table must not be null' USING ERRCODE = '22004';
    ELSIF relation IS NULL THEN -- Citus hides shards from queries of pg_class
        RAISE EXCEPTION 'table % does not exist, or is a shard of Citus', "table"::oid USING ERRCODE = '42P01',
            HINT = 'Capture the distributed table, on the coordinator.';
    END IF;
    IF NOT pg_has_role(current_user, relation.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', "table" USING ERRCODE = '42501';
    END IF;
    IF relation.relkind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '% is not a table', "table" USING ERRCODE = '42809',
            HINT = 'Capture the tables that it is made of.';
    END IF;
    IF relation.relpersistence = 't' THEN
        RAISE EXCEPTION 'temporary tables cannot be captured' USING ERRCODE = '0A000';
    END IF;
    IF relation.nspname IN ('pg_catalog', 'information_schema', 'outbox', 'inbox') THEN
        RAISE EXCEPTION 'tables of schema % cannot be captured', relation.nspname USING ERRCODE = '0A000';
    END IF;
    SELECT c.captured INTO other
      FROM outbox.captures AS c
     WHERE c.captured <> "table"
       AND ("table" IN (SELECT outbox_internal.captured_tree(c.captured)) OR c.captured IN (SELECT outbox_internal.captured_tree("table")))
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table % cannot be captured together with %', "table", other USING ERRCODE = '55000',
            DETAIL = 'One is a partition or child of the other, and its rows would be captured twice.',
            HINT = format('Call outbox.uncapture(%L) first.', other);
    END IF;
END
$$;

-- Refuses a value that is not one of the choices.
CREATE FUNCTION outbox_internal.check_choice(argument text, value text, choices text[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (value = ANY (choices)) IS NOT TRUE THEN
        RAISE EXCEPTION '% must be one of %', argument, array_to_string(choices, ', ') USING ERRCODE = '22023';
    END IF;
END
$$;

-- A row that moves to another partition is deleted and inserted. For the same aggregate that would
-- be two events with one version.
CREATE FUNCTION outbox_internal.check_moves("table" regclass, aggregate_id name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_partitioned_table AS p
                CROSS JOIN LATERAL unnest(p.partattrs) AS k(number)
                 LEFT JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = k.number
                WHERE p.partrelid IN (SELECT outbox_internal.captured_tree("table"))
                  AND (a.attname = ANY (aggregate_id)) IS NOT TRUE) THEN
        RAISE EXCEPTION 'table % cannot be captured with a version column', "table" USING ERRCODE = '55000',
            DETAIL = 'A row that moves to another partition is deleted and inserted, and both events would have the same version.',
            HINT = 'Put the columns of the partition key into aggregate_id, or leave version out.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox_internal.check_moves(regclass, name[]) IS 'refuses a version column where rows may move between partitions';

CREATE VIEW outbox.captures AS
SELECT c.relation AS captured,
       c.aggregate_type, c.aggregate_id, c.version, c.topic, c.topic_column,
       coalesce(c.ordering_key, c.aggregate_id) AS ordering_key,
       c.headers, p.columns, p.not_captured,
       CASE WHEN c.columns IS NULL THEN 'include' ELSE 'exclude' END AS new_columns,
       c.on_update, c.old_values, c.on_delete, c.on_truncate,
       outbox.capture_condition(c.relation) AS condition,
       c.insert_type, c.update_type, c.delete_type, c.truncate_type, c.snapshot_type,
       c.fire,
       outbox_internal.has_capture_triggers(c.relation)
           AND NOT EXISTS (SELECT FROM pg_trigger AS t
                            WHERE t.tgrelid = ANY (c.known_members) AND t.tgfoid = 'outbox.capture_row'::regproc
                              AND t.tgenabled <> outbox_internal.trigger_state(c.fire)) AS enabled,
       outbox_internal.key_is_unique(c) AS key_is_unique,
       c.captured_by, c.captured_at
  FROM outbox.captured AS c
  JOIN pg_class AS r ON r.oid = c.relation
 CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(a.attname ORDER BY a.attnum) FILTER (WHERE in_payload), '{}') AS columns,
               coalesce(array_agg(a.attname ORDER BY a.attnum) FILTER (WHERE NOT in_payload), '{}') AS not_captured
          FROM pg_attribute AS a
         CROSS JOIN LATERAL (SELECT a.attname = ANY (c.aggregate_id || c.row_key || c.version)
                                    OR CASE WHEN c.columns IS NULL THEN a.attname <> ALL (c.excluded) AND a.attgenerated <> 'v'
                                            ELSE a.attname = ANY (c.columns) END AS in_payload) AS i
         WHERE a.attrelid = c.relation AND a.attnum > 0 AND NOT a.attisdropped) AS p
 WHERE NOT outbox_internal.is_captured_shard(c.relation);
COMMENT ON VIEW outbox.captures IS 'captured tables, and how they are captured';
COMMENT ON COLUMN outbox.captures.captured IS 'the table, with its partitions and children';
COMMENT ON COLUMN outbox.captures.columns IS 'columns in payloads';
COMMENT ON COLUMN outbox.captures.not_captured IS 'other columns, including those added since';
COMMENT ON COLUMN outbox.captures.enabled IS 'false if its triggers were dropped or disabled';
COMMENT ON COLUMN outbox.captures.key_is_unique IS 'false if several rows may have the same key, so that consumers take them for one';

-- Captures a table: its changes become events.
CREATE FUNCTION outbox.capture(
    "table"        regclass,
    aggregate_type text    DEFAULT NULL,
    aggregate_id   name[]  DEFAULT NULL,
    version        name    DEFAULT NULL,
    topic          text    DEFAULT NULL,
    topic_column   name    DEFAULT NULL,
    ordering_key   name[]  DEFAULT NULL,
    headers        jsonb   DEFAULT NULL,
    columns        name[]  DEFAULT NULL,
    exclude        name[]  DEFAULT NULL,
    new_columns    text    DEFAULT 'exclude',
    on_update      text    DEFAULT 'full',
    old_values     boolean DEFAULT false,
    on_delete      text    DEFAULT 'key',
    on_truncate    text    DEFAULT 'refuse',
    condition      text    DEFAULT NULL,
    insert_type    text    DEFAULT NULL,
    update_type    text    DEFAULT NULL,
    delete_type    text    DEFAULT NULL,
    truncate_type  text    DEFAULT NULL,
    snapshot_type  text    DEFAULT NULL,
    fire           text    DEFAULT 'origin',
    replace        boolean DEFAULT false,
    with_schema    boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    captured outbox.captured;
    member regclass;
    is_captured boolean;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.check_capturable("table");
    PERFORM outbox_internal.check_choice('new_columns', new_columns, '{exclude,include}');
    PERFORM outbox_internal.check_choice('on_update', on_update, '{full,changed,diff}');
    PERFORM outbox_internal.check_choice('on_delete', on_delete, '{key,old}');
    PERFORM outbox_internal.check_choice('on_truncate', on_truncate, '{refuse,ignore,announce}');
    PERFORM outbox_internal.check_choice('fire', fire, '{origin,replica,always}');
    PERFORM outbox_internal.lock_captured("table");
    is_captured := EXISTS (SELECT FROM outbox.captures AS c WHERE c.captured = "table");
    IF is_captured AND NOT replace THEN
        RAISE EXCEPTION 'table % is captured already', "table" USING ERRCODE = '42710',
            HINT = 'Use replace => true to capture it anew, with the arguments given here.';
    END IF;

    captured.relation := "table";
    captured.row_key := outbox_internal.row_key_of("table", aggregate_id);
    captured.aggregate_type := coalesce(aggregate_type, outbox_internal.aggregate_type_of("table", with_schema));
    captured.aggregate_id := coalesce(aggregate_id, captured.row_key);
    PERFORM outbox_internal.check_identity("table", captured.aggregate_id, captured.row_key);
    captured.version := version;
    IF version IS NOT NULL THEN
        PERFORM outbox_internal.check_moves("table", captured.aggregate_id);
    END IF;
    captured.topic := coalesce(topic, captured.aggregate_type || @{topic_suffix});
    captured.topic_column := topic_column;
    captured.ordering_key := ordering_key;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object' USING ERRCODE = '22023',
            HINT = 'Write for example ''{"tenant": "tenant_id"}''.';
    END IF;
    captured.headers := headers;

    IF new_columns = 'include' THEN
        IF columns IS NOT NULL THEN
            RAISE EXCEPTION 'columns cannot be given with new_columns => ''include''' USING ERRCODE = '22023',
                HINT = 'Use exclude to name the columns that are not captured.';
        END IF;
    ELSE
        captured.columns := coalesce(columns, (
            SELECT array_agg(a.attname ORDER BY a.attnum)
              FROM pg_attribute AS a
             WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
               AND a.attname <> ALL (coalesce(exclude, '{}'))));
    END IF;
    IF columns IS NOT NULL AND exclude IS NOT NULL THEN
        RAISE EXCEPTION 'either columns or exclude can be given, not both' USING ERRCODE = '22023';
    END IF;
    captured.excluded := coalesce(exclude, '{}');
    IF NOT outbox_internal.columns_of("table") @> exclude THEN
        RAISE EXCEPTION 'exclude names a column that table % does not have', "table" USING ERRCODE = '42703',
            HINT = format('Its columns are: %s.', array_to_string(outbox_internal.columns_of("table"), ', '));
    END IF;
    IF exclude && (captured.aggregate_id || captured.row_key || version) THEN
        RAISE EXCEPTION 'columns of the key and the version cannot be excluded' USING ERRCODE = '22023',
            HINT = 'Consumers need them to tell which row an event is about.';
    END IF;

    captured.on_update := on_update;
    captured.old_values := coalesce(old_values, false);
    IF old_values AND on_update <> 'changed' THEN
        RAISE EXCEPTION 'old_values needs on_update => ''changed''' USING ERRCODE = '22023',
            HINT = 'on_update => ''diff'' always includes old values.';
    END IF;
    captured.on_delete := on_delete;
    captured.conditional := condition IS NOT NULL;
    captured.insert_type := coalesce(insert_type, outbox_internal.event_type_of(captured.aggregate_type, 'Created'));
    captured.update_type := coalesce(update_type, outbox_internal.event_type_of(captured.aggregate_type, 'Updated'));
    captured.delete_type := coalesce(delete_type, outbox_internal.event_type_of(captured.aggregate_type, 'Deleted'));
    captured.truncate_type := coalesce(truncate_type, outbox_internal.event_type_of(captured.aggregate_type, 'Truncated'));
    captured.snapshot_type := coalesce(snapshot_type, outbox_internal.event_type_of(captured.aggregate_type, 'Snapshot'));
    captured.on_truncate := on_truncate;
    captured.fire := fire;
    captured.known_columns := '{}'; -- a trigger fills these
    captured.known_members := '{}';
    captured.captured_by := current_user; -- outbox_internal.save_captured() sets it again, and captured_at
    captured.captured_at := clock_timestamp();

    IF aggregate_type IS NULL THEN
        PERFORM outbox_internal.warn_of_namesake(captured);
    END IF;
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.drop_capture_triggers(member);
    END LOOP;
    PERFORM outbox_internal.save_captured(captured);
    PERFORM outbox_internal.add_capture_triggers("table", condition, on_truncate);
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.copy_capture_triggers("table", member, on_truncate);
    END LOOP;
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.set_capture_fire(member, fire);
        PERFORM outbox_internal.check_captured(member);
    END LOOP;
END
$$;

-- Ends the capture of a table. Returns false if the table was not captured, and has no triggers of a
-- capture either, as a table has that was restored without pg_outbox's own tables.
CREATE FUNCTION outbox.uncapture("table" regclass)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    is_known CONSTANT boolean := EXISTS (SELECT FROM outbox.captures AS c WHERE c.captured = "table");
    member   regclass;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF NOT is_known AND (NOT outbox_internal.has_capture_triggers("table")
                         OR outbox_internal.is_captured_shard("table")
                         OR EXISTS (WITH RECURSIVE above(relation) AS (
                                        SELECT i.inhparent FROM pg_inherits AS i WHERE i.inhrelid = "table"
                                        UNION
                                        SELECT i.inhparent FROM above AS a JOIN pg_inherits AS i ON i.inhrelid = a.relation
                                    )
                                    SELECT FROM above AS a JOIN outbox.captures AS c ON c.captured = a.relation)) THEN
        RETURN false;
    END IF;
    PERFORM outbox_internal.lock_captured("table"); -- first, as capture() does
    IF is_known THEN
        PERFORM outbox_internal.forget_captured("table");
    END IF;
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.drop_capture_triggers(member);
    END LOOP;
    RETURN true;
END
$$;
