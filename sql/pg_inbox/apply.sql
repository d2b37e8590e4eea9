-- Projections: read models kept by consumers. A row has a version and never goes back to an older one,
-- in whatever order events come and however many are applied at the same time.
--
-- A row that is there is updated or deleted under its own lock. One that is not there has none: so
-- whoever inserts or removes a key that he does not find locks the key, and then looks again, with a
-- new snapshot, for what others have committed: READ COMMITTED.

-- The payload of a message as JSON.
CREATE FUNCTION inbox.json(message inbox.message)
RETURNS jsonb
LANGUAGE sql STABLE
RETURN pg_catalog.convert_from((message).payload, 'UTF8')::pg_catalog.jsonb;
COMMENT ON FUNCTION inbox.json(inbox.message) IS 'the payload of a message as JSON';

-- What a statement about a row is put together from, in the order of the placeholders of format():
-- 1 the projection, 2 the columns that data has, 3 the key columns, 4 assignments to the others, 5 the
-- condition that the keys are the same, 6 the key as JSON, 7 the version column, 8 its type. What is
-- stored is called `stored`; what is given, `excluded`, as in ON CONFLICT.
CREATE FUNCTION inbox.row_parts(projection regclass, key_columns text[], version_column text, data jsonb)
RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parts text[];
    given bigint;
BEGIN
    SELECT ARRAY[projection::text,
                 string_agg(c.name, ', '),
                 string_agg(c.name, ', ') FILTER (WHERE c.is_key),
                 string_agg(c.name || ' = excluded.' || c.name, ', ') FILTER (WHERE NOT c.is_key),
                 string_agg('stored.' || c.name || ' = excluded.' || c.name, ' AND ') FILTER (WHERE c.is_key),
                 'jsonb_build_object(' || string_agg(c.as_json, ', ') FILTER (WHERE c.is_key) || ')',
                 max(c.name) FILTER (WHERE c.is_version),
                 max(format_type(c.atttypid, c.atttypmod)) FILTER (WHERE c.is_version)],
           count(*) FILTER (WHERE c.is_key <> c.is_version AND data ->> c.attname IS NOT NULL)
      INTO parts, given
      FROM (SELECT a.attname, a.atttypid, a.atttypmod, quote_ident(a.attname) AS name,
                   -- The same text in all sessions.
                   concat(quote_literal(a.attname), ', excluded.', quote_ident(a.attname),
                          CASE a.atttypid WHEN 'timestamptz'::regtype THEN ' AT TIME ZONE ''UTC''' END) AS as_json,
                   a.attname = ANY (key_columns) AS is_key, a.attname = version_column AS is_version
              FROM pg_attribute AS a
             WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '' AND data ? a.attname
            OFFSET 0) AS c;
    IF given IS DISTINCT FROM cardinality(key_columns) + 1 THEN
        PERFORM inbox.refuse_row(projection, key_columns, version_column, data);
    END IF;
    RETURN parts;
END $$;
COMMENT ON FUNCTION inbox.row_parts(regclass, text[], text, jsonb) IS
    'internal: what statements about a row of a projection are made of';

CREATE FUNCTION inbox.refuse_row(projection regclass, key_columns text[], version_column text, data jsonb)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    missing text;
BEGIN
    IF coalesce(cardinality(key_columns), 0) = 0 THEN
        RAISE EXCEPTION 'key_columns must not be empty' USING ERRCODE = 'invalid_parameter_value';
    ELSIF version_column = ANY (key_columns) THEN
        RAISE EXCEPTION 'column "%" cannot be the version and part of the key', version_column
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH missing IN ARRAY key_columns || version_column LOOP
        IF NOT EXISTS (SELECT FROM pg_attribute AS a
                        WHERE a.attrelid = projection AND a.attname = missing AND NOT a.attisdropped) THEN
            RAISE EXCEPTION 'column "%" of projection % does not exist', missing, projection
                USING ERRCODE = 'undefined_column';
        ELSIF data ->> missing IS NULL THEN
            RAISE EXCEPTION 'data for projection % lacks "%"', projection, missing
                USING ERRCODE = 'null_value_not_allowed';
        END IF;
    END LOOP;
    RAISE EXCEPTION 'columns of projection % cannot be its key and version', projection
        USING ERRCODE = 'invalid_parameter_value',
              DETAIL = format('They are %s and %s.', array_to_string(key_columns, ', '), version_column),
              HINT = 'A generated column cannot, and none can be named twice.';
END $$;
COMMENT ON FUNCTION inbox.refuse_row(regclass, text[], text, jsonb) IS
    'internal: says what is wrong with a row';

-- Runs a statement that returns whether it did something, with data as $1. Its plan is kept for the
-- session as that of a prepared statement; what the statement is called says what it is, so a session
-- in which somebody else has worked before, or which has been reset, is as good as any. What is found
-- under the name must be that statement to the letter: functions with more rights than the session
-- work through here.
--
-- `first` is planned before the statement is used for the first time, for the errors that this may bring.
CREATE FUNCTION inbox.run(statement text, data jsonb, first text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    kept_as   text := 'inbox_' || to_hex(hashtextextended(statement, 0));
    prepare   text := concat('PREPARE ', kept_as, ' (jsonb) AS ', statement);
    found_as  text;
    prepared  bigint;
    did       boolean;
BEGIN
    SELECT max(p.statement) FILTER (WHERE p.name = kept_as), count(*) INTO found_as, prepared
      FROM pg_prepared_statements AS p;
    IF found_as IS NULL THEN
        IF first IS NOT NULL THEN
            EXECUTE 'EXPLAIN ' || first USING data;
        END IF;
        -- Looking through many would cost more than planning.
        IF prepared < 100 THEN
            EXECUTE prepare;
            found_as := prepare;
        END IF;
    END IF;
    IF found_as = prepare THEN
        EXECUTE concat('EXECUTE ', kept_as, '(', quote_literal(data), ')') INTO did;
    ELSE
        EXECUTE statement INTO did USING data;
    END IF;
    RETURN coalesce(did, false);
END $$;
COMMENT ON FUNCTION inbox.run(text, jsonb, text) IS 'internal: runs a statement whose plan is kept';

-- A transaction that has locked so many keys takes one lock instead for those that follow, as the table
-- of locks is small: until it ends nothing is removed from any projection.
CREATE FUNCTION inbox.lock_key(projection regclass, key jsonb, removal boolean)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    locked integer := coalesce(nullif(current_setting('inbox.locked_keys', true), ''), '0');
BEGIN
    IF current_setting('transaction_isolation') = 'repeatable read' THEN
        RAISE EXCEPTION 'rows of projections cannot be inserted or removed in a REPEATABLE READ transaction'
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'It cannot see which of them have been removed, or inserted, since it began.',
                  HINT = 'Use READ COMMITTED.';
    END IF;
    IF removal THEN
        LOCK TABLE inbox.tombstone IN ROW EXCLUSIVE MODE;
    ELSIF locked >= 1000 THEN
        LOCK TABLE inbox.tombstone IN SHARE MODE;
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(jsonb_hash_extended(key, projection::oid::bigint));
    PERFORM set_config('inbox.locked_keys', (locked + 1)::text, true);
END $$;
COMMENT ON FUNCTION inbox.lock_key(regclass, jsonb, boolean) IS
    'internal: has those who insert and remove a row that is not there wait for each other';

-- The version with which a row was removed; NULL: it was not. Until the transaction ends nobody else
-- removes it.
CREATE FUNCTION inbox.removed_version(projection regclass, key jsonb)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox.lock_key(projection, key, removal => false);
    RETURN (SELECT t.version FROM inbox.tombstone AS t
             WHERE t.projection = removed_version.projection AND t.key = removed_version.key);
END $$;
COMMENT ON FUNCTION inbox.removed_version(regclass, jsonb) IS 'internal: with which version a row was removed';

CREATE FUNCTION inbox.lock_removal(projection regclass, key jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM inbox.lock_key(projection, key, removal => true);
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox.lock_removal(regclass, jsonb) IS 'internal: until the transaction ends nobody else inserts the row';

-- Who may delete the rows of a projection may keep them away.
CREATE FUNCTION inbox.leave_tombstone(projection regclass, key jsonb, version text)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    actor name := coalesce(nullif(current_setting('role'), 'none'), session_user);
BEGIN
    IF NOT has_table_privilege(actor, projection, 'DELETE') THEN
        RAISE EXCEPTION 'role "%" must not delete rows of projection %', actor, projection
            USING ERRCODE = 'insufficient_privilege';
    END IF;
    INSERT INTO inbox.tombstone AS t (projection, key, version)
        VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT tombstone_pkey DO UPDATE
           SET version = excluded.version, removed_at = excluded.removed_at;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox.leave_tombstone(regclass, jsonb, text) IS 'internal: notes that a row was removed';

-- Writes a row of a projection, unless the projection has the same or a newer version of it already, or
-- it has been removed with such a version.
--
-- `data` has a member for each column to write; others are ignored, and columns without a member stay as
-- they are. key_columns must be those of a primary key or unique constraint; they and the version must be
-- there and not null. A stored version that is NULL is older than any. Returns whether the row was written.
-- Errors: 42703 a column does not exist; 22004 a key or the version is missing; 42P10 no unique constraint.
CREATE FUNCTION inbox.apply(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- A plan that was made while the projection was small must do when it is large.
SET enable_seqscan = off
AS $$
DECLARE
    parts      text[] := inbox.row_parts(projection, key_columns, version_column, data);
    update_row text := format(
        'UPDATE %1$s AS stored SET %4$s FROM jsonb_populate_record(NULL::%1$s, $1) AS excluded '
        'WHERE %5$s AND (stored.%7$s < excluded.%7$s) IS NOT FALSE RETURNING true', VARIADIC parts);
    insert_row text := format(
        'INSERT INTO %1$s AS stored (%2$s) '
        'SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, $1) AS excluded '
        'WHERE (inbox.removed_version(%9$L, %6$s)::%8$s < excluded.%7$s) IS NOT FALSE '
        'ON CONFLICT (%3$s) DO UPDATE SET %4$s WHERE (stored.%7$s < excluded.%7$s) IS NOT FALSE '
        'RETURNING true', VARIADIC parts || projection::oid::text);
BEGIN
    RETURN inbox.run(update_row, data, first => insert_row) OR inbox.run(insert_row, data);
END $$;
COMMENT ON FUNCTION inbox.apply(regclass, text[], text, jsonb) IS
    'writes a row of a projection unless a newer version is there';

-- Removes a row of a projection, unless the projection has the same or a newer version of it. The version
-- of the removal is kept, as long as ids of events are: what is older and comes later does not bring the
-- row back. Of `data` only the key and the version count. Returns whether the removal was news: false when
-- the same or a newer version of the row, or of its removal, is known. Errors: as apply().
CREATE FUNCTION inbox.remove(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    parts text[] := inbox.row_parts(projection, key_columns, version_column, data) || projection::oid::text;
BEGIN
    PERFORM inbox.run(format(
        'SELECT inbox.lock_removal(%9$L, %6$s) FROM jsonb_populate_record(NULL::%1$s, $1) AS excluded',
        VARIADIC parts), data);
    PERFORM inbox.run(format(
        'DELETE FROM %1$s AS stored USING jsonb_populate_record(NULL::%1$s, $1) AS excluded '
        'WHERE %5$s AND (stored.%7$s < excluded.%7$s) IS NOT FALSE RETURNING true', VARIADIC parts), data);
    RETURN inbox.run(format(
        'SELECT inbox.leave_tombstone(%9$L, %6$s, to_jsonb(excluded.%7$s) #>> ''{}'') '
        'FROM jsonb_populate_record(NULL::%1$s, $1) AS excluded '
        'WHERE NOT EXISTS (SELECT FROM %1$s AS stored WHERE %5$s) '
        'AND (inbox.removed_version(%9$L, %6$s)::%8$s < excluded.%7$s) IS NOT FALSE', VARIADIC parts), data);
END $$;
COMMENT ON FUNCTION inbox.remove(regclass, text[], text, jsonb) IS
    'removes a row of a projection unless a newer version is there';
