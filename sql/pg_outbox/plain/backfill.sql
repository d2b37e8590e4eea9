-- Parts of backfills that are C++ in the extension (extension/capture/backfill.cpp). outbox-relay
-- runs them, as the role that installed pg_outbox, so only tables of this role can be walked: a
-- table may run code of its owner when it is read.

-- Returns the columns of a unique index that the table can be walked by, preferably those of the
-- primary key.
CREATE FUNCTION outbox_internal.walking_key(part regclass, columns name[])
RETURNS name[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key   name[];
    name  CONSTANT name := (SELECT c.relname FROM pg_class AS c WHERE c.oid = part);
BEGIN
    SELECT k.columns INTO key
      FROM pg_index AS i
      JOIN pg_class AS c ON c.oid = i.indexrelid
      JOIN pg_am AS m ON m.oid = c.relam
     CROSS JOIN LATERAL (
        SELECT array_agg(a.attname ORDER BY n.place) AS columns,
               bool_and(n.number > 0 AND a.attnotnull AND i.indoption[n.place - 1] & 1 = 0) AS fits
          FROM unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS n(number, place)
          LEFT JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = n.number) AS k
     WHERE i.indrelid = part AND i.indisunique AND i.indisvalid AND i.indpred IS NULL AND m.amname = 'btree' AND k.fits
       AND (walking_key.columns IS NULL OR k.columns = walking_key.columns)
     ORDER BY i.indisprimary DESC, i.indexrelid
     LIMIT 1;
    IF NOT FOUND AND columns IS NOT NULL THEN
        RAISE EXCEPTION 'the unique index by which table "%" was scanned does not exist any more', name
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Create it again, or start a new backfill.';
    ELSIF NOT FOUND THEN
        RAISE EXCEPTION 'table "%" has no unique index to scan it by', name
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Create a primary key, or a unique index on columns that are NOT NULL.';
    END IF;
    RETURN key;
END $$;

-- Returns whether the condition of a capture is code of roles with all rights of the current user. It
-- is code of the owner of the captured table, and of the role that captured it, also after a change of
-- owner.
CREATE FUNCTION outbox_internal.may_run_condition(capture outbox.captured)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox.capture_condition(capture.relation) IS NULL
        OR EXISTS (SELECT FROM pg_class AS c JOIN pg_roles AS r ON r.rolname = capture.captured_by
                    WHERE c.oid = capture.relation AND pg_has_role(c.relowner, current_user, 'USAGE')
                      AND pg_has_role(r.oid, current_user, 'USAGE'));
END;

-- Raises an error unless a table is captured and may be read here.
CREATE FUNCTION outbox_internal.check_captured_by_owner(part regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    class   pg_class;
    capture outbox.captured;
BEGIN
    SELECT c.* INTO class FROM pg_class AS c WHERE c.oid = part;
    IF NOT FOUND THEN
        RETURN;
    ELSIF class.relkind <> 'r' THEN
        RAISE EXCEPTION '"%" is not a table that has rows of its own', class.relname USING ERRCODE = 'wrong_object_type';
    END IF;
    capture := outbox_internal.capture_of(part);
    IF capture.relation IS NULL THEN
        RAISE EXCEPTION 'table "%" is not captured', class.relname
            USING ERRCODE = 'object_not_in_prerequisite_state', HINT = 'Call outbox.capture() for the table first.';
    ELSIF pg_get_userbyid(class.relowner) <> current_user THEN
        RAISE EXCEPTION 'table "%" belongs to role "%", and only tables of role "%" can be backfilled', class.relname,
                pg_get_userbyid(class.relowner), current_user
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'Reading a table may run code of its owner, here with the rights of the role that installed pg_outbox.',
                  HINT = format('ALTER TABLE %s OWNER TO %I; or enqueue the events of its rows with outbox.enqueue().', part, current_user);
    ELSIF NOT outbox_internal.may_run_condition(capture) THEN
        RAISE EXCEPTION 'the condition of the capture of table "%" does not belong to its owner',
                (SELECT c.relname FROM pg_class AS c WHERE c.oid = capture.relation)
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'Another role has called outbox.capture(), and its functions would run with the rights of the owner.',
                  HINT = 'Call outbox.capture() again, with replace => true.';
    END IF;
END $$;

-- Raises an error unless a table is captured and can be walked.
CREATE FUNCTION outbox_internal.check_can_backfill(part regclass)
RETURNS void
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.check_captured_by_owner(part), outbox_internal.walking_key(c.oid, NULL)
      FROM pg_class AS c WHERE c.oid = part;
END;

-- Estimates the number of rows from the present size of the table. Nothing is planned, because
-- planning runs functions of the table's owner.
CREATE FUNCTION outbox_internal.estimate_rows(part regclass)
RETURNS bigint
LANGUAGE sql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT (pg_relation_size(c.oid) / current_setting('block_size')::integer
                             * CASE WHEN c.relpages > 0 AND c.reltuples > 0 THEN c.reltuples / c.relpages ELSE 60 END)::bigint
                       FROM pg_class AS c WHERE c.oid = part AND c.relkind = 'r'), 0);
END;

-- Returns columns compared with the texts of a key, each converted to the type of its column.
CREATE FUNCTION outbox_internal.key_comparison(part regclass, columns name[], key text[], operator text)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF cardinality(key) <> cardinality(columns) THEN
        RAISE EXCEPTION 'a key of table "%" has % values, not %', (SELECT c.relname FROM pg_class AS c WHERE c.oid = part),
            cardinality(columns), cardinality(key) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    RETURN (SELECT format('(%s) %s (%s)', string_agg(format('outbox_row.%I', k.name), ', ' ORDER BY k.place), operator,
                          string_agg(format('%L::%s', k.value, format_type(a.atttypid, a.atttypmod)), ', ' ORDER BY k.place))
              FROM unnest(columns, key) WITH ORDINALITY AS k(name, value, place)
              JOIN pg_attribute AS a ON a.attrelid = part AND a.attname = k.name);
END $$;

-- Writes the event of one row, if it can be locked at once or `waits`. Returns whether it is done.
CREATE FUNCTION outbox_internal.write_row(part regclass, columns name[], key text[], only_to integer, waits boolean)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    capture CONSTANT outbox.captured := outbox_internal.capture_of(part);
    shape   CONSTANT record := outbox_internal.shape_of(part, capture);
    its     record;
BEGIN
    -- Takes the lock first: a later version of the row may have replaced the one that was found.
    EXECUTE format('SELECT row_to_json(outbox_row) AS row, (%s) IS TRUE AS captured FROM ONLY %s AS outbox_row WHERE %s FOR SHARE %s',
                   coalesce(outbox.capture_condition(capture.relation), 'true'), part,
                   outbox_internal.key_comparison(part, columns, key, '='), CASE WHEN waits THEN '' ELSE 'SKIP LOCKED' END)
       INTO its;
    IF its IS NULL THEN
        RETURN false;
    ELSIF its.captured THEN
        PERFORM outbox_internal.put_captured(capture, shape, capture.snapshot_type, its.row,
                                             outbox_internal.members_of(its.row, shape.payload),
                                             (its.row ->> capture.version)::bigint, true, only_to);
    END IF;
    RETURN true;
END $$;

-- Raises an error once more, with the row that it is about: backfills stop and show it.
CREATE FUNCTION outbox_internal.raise_for_row(state text, message text, detail text, hint text, part regclass, key text[])
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION USING ERRCODE = state, MESSAGE = message, HINT = hint,
        DETAIL = concat_ws('; ', nullif(detail, ''),
                           format('row %s of table "%s"', key, (SELECT c.relname FROM pg_class AS c WHERE c.oid = part)));
END $$;

-- Writes the events of a batch of a backfill.
CREATE FUNCTION outbox_internal.write_snapshots(
    part regclass, columns name[], after text[], "limit" integer, only_to integer,
    OUT key_columns name[], OUT rows integer, OUT last_key text[], OUT locked text[])
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    key     text[];
    written text[]; -- the row that an error is about
    detail  text;
    hint    text;
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = part) THEN
        RETURN;
    END IF;
    PERFORM outbox_internal.check_captured_by_owner(part);
    key_columns := outbox_internal.walking_key(part, columns);
    rows := 0;
    locked := '{}';
    FOR key IN EXECUTE format('SELECT ARRAY[%s] FROM ONLY %s AS outbox_row WHERE %s ORDER BY %s LIMIT %s',
                              (SELECT string_agg(format('outbox_row.%I::text', k), ', ' ORDER BY n) FROM unnest(key_columns) WITH ORDINALITY AS c(k, n)),
                              part,
                              CASE WHEN after IS NULL THEN 'true' ELSE outbox_internal.key_comparison(part, key_columns, after, '>') END,
                              (SELECT string_agg(format('outbox_row.%I', k), ', ' ORDER BY n) FROM unnest(key_columns) WITH ORDINALITY AS c(k, n)),
                              "limit")
    LOOP
        rows := rows + 1;
        written := key;
        IF NOT outbox_internal.write_row(part, key_columns, key, only_to, false) THEN
            locked := locked || key::text;
        END IF;
        written := NULL;
        last_key := key;
    END LOOP;
    IF rows < "limit" THEN
        last_key := NULL;
    END IF;
EXCEPTION WHEN OTHERS THEN
    IF written IS NULL THEN
        RAISE;
    END IF;
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    PERFORM outbox_internal.raise_for_row(SQLSTATE, SQLERRM, detail, hint, part, written);
END $$;

-- Writes the event of one row of a backfill, if it is still there. Waits for its lock.
CREATE FUNCTION outbox_internal.write_snapshot(part regclass, columns name[], key text[], only_to integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    detail text;
    hint   text;
BEGIN
    IF EXISTS (SELECT FROM pg_class AS c WHERE c.oid = part) THEN
        PERFORM outbox_internal.check_captured_by_owner(part);
        PERFORM outbox_internal.write_row(part, outbox_internal.walking_key(part, columns), key, only_to, true);
    END IF;
EXCEPTION WHEN OTHERS THEN
    GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, hint = PG_EXCEPTION_HINT;
    PERFORM outbox_internal.raise_for_row(SQLSTATE, SQLERRM, detail, hint, part, key);
END $$;
