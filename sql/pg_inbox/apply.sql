-- Projections: read models kept by consumers. A row has a version and never goes back to an older
-- one, in whatever order events come and however many are applied at the same time.
--
-- An existing row is updated or deleted under its own lock. A missing row has no lock. So a
-- transaction that inserts or removes a key that it does not find locks the key, and then looks
-- again with a new snapshot for what others have committed. That needs READ COMMITTED.

-- Returns the payload of a message as JSON.
CREATE FUNCTION inbox.json(message inbox.message)
RETURNS jsonb
LANGUAGE sql STABLE
RETURN pg_catalog.convert_from((message).payload, 'UTF8')::pg_catalog.jsonb;

-- Refuses a row without a key or a version.
CREATE FUNCTION inbox_internal.check_row(projection regclass, key_columns text[], version_column text, data jsonb)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    no_use CONSTANT text := 'In a handler no further attempt is made: the event becomes a dead letter at once.';
    required text;
    kind     "char";
BEGIN
    IF coalesce(cardinality(key_columns), 0) = 0 THEN
        RAISE EXCEPTION 'key_columns must not be empty' USING ERRCODE = 'invalid_parameter_value';
    ELSIF (SELECT count(DISTINCT c) < count(*) FROM unnest(key_columns || version_column) AS c) THEN
        RAISE EXCEPTION 'key_columns and version_column must name different columns'
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF data IS NULL THEN
        RAISE EXCEPTION 'data for projection % is NULL', projection
            USING ERRCODE = 'IL002', DETAIL = no_use, HINT = 'An event without payload has no data to apply.';
    END IF;
    FOREACH required IN ARRAY key_columns || version_column LOOP
        SELECT a.attgenerated INTO kind FROM pg_attribute AS a
         WHERE a.attrelid = projection AND a.attname = required AND a.attnum > 0 AND NOT a.attisdropped;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'column "%" of projection % does not exist', required, projection
                USING ERRCODE = 'undefined_column';
        ELSIF kind <> '' THEN
            RAISE EXCEPTION 'column "%" of projection % is generated', required, projection
                USING ERRCODE = 'generated_always', HINT = 'A key or a version must be given.';
        ELSIF data ->> required IS NULL THEN
            RAISE EXCEPTION 'data for projection % lacks "%"', projection, required
                USING ERRCODE = 'IL002', DETAIL = no_use;
        END IF;
    END LOOP;
END $$;

-- Refuses a projection without a unique constraint on its key: statements would change several rows
-- of a key. The key of a view is up to PostgreSQL and the view's owner.
CREATE FUNCTION inbox_internal.check_key(projection regclass, key_columns text[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index AS i
                    WHERE i.indrelid = projection AND i.indisunique AND i.indimmediate AND i.indisvalid
                      AND i.indpred IS NULL AND i.indnkeyatts = cardinality(key_columns)
                      AND NOT EXISTS (SELECT FROM unnest(i.indkey) WITH ORDINALITY AS k (number, n)
                                        LEFT JOIN pg_attribute AS a
                                          ON a.attrelid = projection AND a.attnum = k.number
                                       WHERE k.n <= i.indnkeyatts
                                         AND (a.attname = ANY (key_columns)) IS NOT TRUE))
        AND (SELECT c.relkind <> 'v' FROM pg_class AS c WHERE c.oid = projection) THEN
        RAISE EXCEPTION 'projection % has no unique constraint on its key columns', projection
            USING ERRCODE = 'invalid_column_reference',
                  DETAIL = format('They are: %s.', array_to_string(key_columns, ', ')),
                  HINT = 'Create a primary key, or a unique index that is not partial.';
    END IF;
END $$;

-- Runs a statement whose plan is kept. The statement returns whether it changed a row, and reads
-- its data from the setting inbox.given. The plan is kept for the session as a prepared statement,
-- under a name derived from its text. So deallocated statements, altered tables and earlier users
-- of the session do no harm. If a projection is given, its columns and its key are checked when a
-- plan is made.
--
-- This may run with more rights than the session has, and the session can prepare any statement
-- under that name. So the text found there must be equal to this statement. It has no parameters,
-- whose types the session would choose, and all its functions and operators are schema-qualified,
-- so it means the same whichever role prepared it. The row is not part of the text, because the
-- text is logged when the statement fails.
--
-- This and row_parts() run for every event. A search_path of their own would cost as much as their
-- call, so they have none, and every name and operator is schema-qualified.
CREATE FUNCTION inbox_internal.run(
    statement      text,
    data           jsonb,
    projection     regclass DEFAULT NULL,
    key_columns    text[] DEFAULT NULL,
    version_column text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    kept_as pg_catalog.text := pg_catalog.concat('inbox_', pg_catalog.to_hex(pg_catalog.hashtextextended(statement, 0)));
    prepare pg_catalog.text := pg_catalog.concat('PREPARE ', kept_as, ' AS ', statement);
    is_ours pg_catalog.bool;
    ignored pg_catalog.text;
    did     pg_catalog.bool;
BEGIN
    SELECT p.statement OPERATOR(pg_catalog.=) prepare AND p.parameter_types OPERATOR(pg_catalog.=) '{}' AND p.from_sql
      INTO is_ours
      FROM pg_catalog.pg_prepared_statements AS p WHERE p.name OPERATOR(pg_catalog.=) kept_as;
    IF is_ours IS NULL THEN
        IF projection IS NOT NULL THEN
            PERFORM inbox_internal.check_row(projection, key_columns, version_column, data),
                    inbox_internal.check_key(projection, key_columns);
        END IF;
        -- With more prepared statements, a search through them would cost as much as planning.
        IF (SELECT pg_catalog.count(*) OPERATOR(pg_catalog.<) 100 FROM pg_catalog.pg_prepared_statements) THEN
            EXECUTE prepare;
            is_ours := true;
        END IF;
    END IF;
    ignored := pg_catalog.set_config('inbox.given', data::pg_catalog.text, true);
    EXECUTE CASE WHEN is_ours THEN pg_catalog.concat('EXECUTE ', kept_as) ELSE statement END INTO did;
    ignored := pg_catalog.set_config('inbox.given', '', true);
    RETURN did IS TRUE;
END $$;

-- In statements `stored` is the stored row, and `excluded` the given row, as in ON CONFLICT. A
-- stored version that is NULL is older than any other.
--
-- Plain SQL cannot tell that columns have changed, so this reads them for every event. Without
-- OFFSET 0 the query would also be planned for every event.
CREATE FUNCTION inbox_internal.row_parts(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb,
    OUT given       text,
    OUT assignments text,
    OUT same_key    text,
    OUT version     text)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    required pg_catalog.text;
    name     pg_catalog.text;
BEGIN
    IF data OPERATOR(pg_catalog.->>) version_column IS NULL OR key_columns[1] IS NULL THEN
        PERFORM inbox_internal.check_row(projection, key_columns, version_column, data);
    END IF;
    FOREACH required IN ARRAY key_columns LOOP
        IF data OPERATOR(pg_catalog.->>) required IS NULL THEN
            PERFORM inbox_internal.check_row(projection, key_columns, version_column, data);
        END IF;
        name := pg_catalog.quote_ident(required);
        same_key := pg_catalog.concat(same_key OPERATOR(pg_catalog.||) ' AND ',
                                      'stored.', name, ' OPERATOR(pg_catalog.=) excluded.', name);
    END LOOP;
    SELECT pg_catalog.string_agg(c.assignment, ', ') INTO assignments
      FROM (SELECT pg_catalog.concat(pg_catalog.quote_ident(a.attname), ' = excluded.', pg_catalog.quote_ident(a.attname)) AS assignment
              FROM pg_catalog.pg_attribute AS a
             WHERE a.attrelid OPERATOR(pg_catalog.=) projection AND a.attnum OPERATOR(pg_catalog.>) 0 AND NOT a.attisdropped
               AND a.attgenerated OPERATOR(pg_catalog.=) '' AND data OPERATOR(pg_catalog.?) a.attname
               AND a.attname OPERATOR(pg_catalog.<>) ALL (key_columns)
            OFFSET 0) AS c;
    given := pg_catalog.concat('pg_catalog.jsonb_populate_record(NULL::', projection,
                               ', pg_catalog.current_setting(''inbox.given'')::pg_catalog.jsonb) AS excluded');
    version := pg_catalog.quote_ident(version_column);
END $$;
COMMENT ON FUNCTION inbox_internal.row_parts(regclass, text[], text, jsonb) IS
    'parts of statements about a row of a projection';

-- Returns parts of statements about the key of a row that is inserted or removed.
CREATE FUNCTION inbox_internal.key_parts(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb,
    OUT columns      text,
    OUT keys         text,
    OUT key          text,  -- in the form of inbox.tombstone
    OUT version_type text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    complete boolean;
BEGIN
    SELECT string_agg(c.name, ', '),
           string_agg(c.name, ', ') FILTER (WHERE c.is_key),
           'pg_catalog.jsonb_build_object('
               || string_agg(quote_literal(c.attname) || ', excluded.' || c.name
                             -- The text of a time does not depend on the time zone of the session.
                             || CASE c.atttypid WHEN 'timestamptz'::regtype THEN ' AT TIME ZONE ''UTC''' ELSE '' END, ', ')
                      FILTER (WHERE c.is_key) || ')',
           max(format_type(c.atttypid, c.atttypmod)) FILTER (WHERE c.is_version),
           count(*) FILTER (WHERE c.is_key <> c.is_version) = cardinality(key_columns) + 1
      INTO columns, keys, key, version_type, complete
      FROM (SELECT a.attname, a.atttypid, a.atttypmod, quote_ident(a.attname) AS name,
                   a.attname = ANY (key_columns) AS is_key,
                   a.attname = version_column AS is_version
              FROM pg_attribute AS a
             WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped
               AND a.attgenerated = '' AND data ? a.attname
            OFFSET 0) AS c;
    IF complete IS NOT TRUE THEN
        PERFORM inbox_internal.check_row(projection, key_columns, version_column, data);
    END IF;
END $$;

-- Keys with the same hash share a lock, which is a row of inbox.key_lock. Transactions that insert
-- share it, because the table itself keeps them apart; one that removes holds it alone.
CREATE FUNCTION inbox_internal.key_slot(projection regclass, key jsonb)
RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN (pg_catalog.jsonb_hash_extended(key, projection::pg_catalog.oid::pg_catalog.int8) & 16383)::pg_catalog.int4;
COMMENT ON FUNCTION inbox_internal.key_slot(regclass, jsonb) IS 'number of the lock of a key';

-- Refuses an unsafe use of the lock of a key.
CREATE FUNCTION inbox_internal.check_locked(locked boolean)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') = 'repeatable read' THEN
        RAISE EXCEPTION 'rows of projections cannot be inserted or removed in a REPEATABLE READ transaction'
            USING ERRCODE = 'feature_not_supported',
                  DETAIL = 'It cannot see which of them have been removed, or inserted, since it began.',
                  HINT = 'Use READ COMMITTED.';
    ELSIF NOT locked THEN
        RAISE EXCEPTION 'a row of inbox.key_lock is missing' USING ERRCODE = 'data_corrupted';
    END IF;
END $$;

-- A role that has a privilege on rows of a projection may record, read and wait for their removal.
CREATE FUNCTION inbox_internal.check_right(projection regclass, privilege text, caller inbox_internal.caller)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (has_table_privilege(caller, projection, privilege)
        OR privilege <> 'DELETE' AND has_any_column_privilege(caller, projection, privilege)) IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for projection %', projection
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = format('Role "%s" lacks %s.', caller, privilege);
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.check_right(regclass, text, inbox_internal.caller) IS 'refuses a role without the privilege on a projection';

-- Returns the version with which a row was removed, or NULL.
CREATE FUNCTION inbox_internal.tombstone_version(projection regclass, key jsonb, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'SELECT') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'SELECT', caller);
    END IF;
    RETURN (SELECT t.version FROM inbox.tombstone AS t
             WHERE t.projection = tombstone_version.projection AND t.key = tombstone_version.key);
END $$;

-- Returns the version with which a row was removed, and locks the key for an insert: until the
-- transaction ends, no other transaction removes the row.
CREATE FUNCTION inbox_internal.removed_version(projection regclass, key jsonb, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'INSERT') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'INSERT', caller);
    END IF;
    PERFORM FROM inbox.key_lock AS k WHERE k.slot = inbox_internal.key_slot(projection, key) FOR SHARE;
    IF NOT FOUND OR current_setting('transaction_isolation') = 'repeatable read' THEN
        PERFORM inbox_internal.check_locked(FOUND);
    END IF;
    RETURN (SELECT t.version FROM inbox.tombstone AS t
             WHERE t.projection = removed_version.projection AND t.key = removed_version.key);
END $$;

-- Locks a key for a removal until the transaction ends.
CREATE FUNCTION inbox_internal.lock_removal(projection regclass, key jsonb, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'DELETE') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'DELETE', caller);
    END IF;
    PERFORM FROM inbox.key_lock AS k WHERE k.slot = inbox_internal.key_slot(projection, key) FOR NO KEY UPDATE;
    PERFORM inbox_internal.check_locked(FOUND);
    RETURN true;
END $$;

-- A role that may delete rows of the projection may also keep them away.
CREATE FUNCTION inbox_internal.leave_tombstone(
    projection regclass,
    key        jsonb,
    version    text,
    caller     inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'DELETE') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'DELETE', caller);
    END IF;
    INSERT INTO inbox.tombstone AS t (projection, key, version)
        VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT tombstone_pkey DO UPDATE
           SET version = excluded.version, removed_at = excluded.removed_at;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox_internal.leave_tombstone(regclass, jsonb, text, inbox_internal.caller) IS 'records that a row was removed';

-- Writes a row of a projection, unless the projection has the same or a newer version of it
-- already, or it has been removed with such a version.
--
-- `data` has a member for each column to write. Other members are ignored, and columns without a
-- member stay as they are. key_columns must be those of a primary key or unique constraint. The key
-- and the version must not be null; a stored version that is NULL is older than any other. Returns
-- whether the row was written.
--
-- Errors: 42703 a column does not exist; IL002 a key or the version is missing; 42P10 no unique
-- constraint.
CREATE FUNCTION inbox.apply(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
-- The plan may be made while the projection is small, and must be good when it is large.
SET enable_seqscan = off
AS $$
DECLARE
    p     record := inbox_internal.row_parts(projection, key_columns, version_column, data);
    older text   := concat('(stored.', p.version, ' OPERATOR(pg_catalog.<) excluded.', p.version, ') IS NOT FALSE');
    k     record;
BEGIN
    IF inbox_internal.run(concat('UPDATE ', projection, ' AS stored SET ', p.assignments, ' FROM ', p.given,
                                 ' WHERE ', p.same_key, ' AND ', older, ' RETURNING true'),
                          data, projection, key_columns, version_column) THEN
        RETURN true;
    END IF;
    k := inbox_internal.key_parts(projection, key_columns, version_column, data);
    RETURN inbox_internal.run(concat('INSERT INTO ', projection, ' AS stored (', k.columns, ') '
                            'SELECT ', k.columns, ' FROM ', p.given,
                            -- The update may have locked a row that is newer. With that lock this
                            -- must not wait for a transaction that has locked the key and waits for
                            -- the row.
                            ' WHERE CASE WHEN EXISTS (SELECT FROM ', projection, ' AS stored WHERE ', p.same_key,
                                                    ' AND NOT ', older, ') THEN false '
                            'ELSE (inbox_internal.removed_version(', projection::oid, ', ', k.key, ')::', k.version_type,
                                 ' OPERATOR(pg_catalog.<) excluded.', p.version, ') IS NOT FALSE END '
                            'ON CONFLICT (', k.keys, ') DO UPDATE SET ', p.assignments, ' WHERE ', older,
                            ' RETURNING true'),
                     data);
END $$;

-- Removes a row of a projection, unless the projection has the same or a newer version of it. The
-- version of the removal is kept as long as ids of events, so that an older event that comes later
-- does not bring the row back. Only the key and the version of `data` are used. Returns false if
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
    p record := inbox_internal.row_parts(projection, key_columns, version_column, data);
    k record := inbox_internal.key_parts(projection, key_columns, version_column, data);
BEGIN
    PERFORM inbox_internal.run(format('SELECT inbox_internal.lock_removal(%s, %s) FROM %s', projection::oid, k.key, p.given), data);
    PERFORM inbox_internal.run(format('DELETE FROM %s AS stored USING %s WHERE %s '
                             'AND (stored.%4$s OPERATOR(pg_catalog.<) excluded.%4$s) IS NOT FALSE RETURNING true',
                             projection, p.given, p.same_key, p.version),
                      data, projection, key_columns, version_column);
    RETURN inbox_internal.run(format('SELECT inbox_internal.leave_tombstone(%1$s, %2$s, pg_catalog.to_jsonb(excluded.%3$s) OPERATOR(pg_catalog.#>>) ''{}'') '
                            'FROM %4$s WHERE NOT EXISTS (SELECT FROM %5$s AS stored WHERE %6$s) '
                            'AND (inbox_internal.tombstone_version(%1$s, %2$s)::%7$s OPERATOR(pg_catalog.<) excluded.%3$s) IS NOT FALSE',
                            projection::oid, k.key, p.version, p.given, projection, p.same_key, k.version_type), data);
END $$;
