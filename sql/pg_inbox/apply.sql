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
    kind     text;
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
        -- A new row can be given the value of an identity column, but no row that exists.
        SELECT concat(a.attgenerated, CASE WHEN required = version_column AND a.attidentity = 'a' THEN 'a' END)
          INTO kind FROM pg_attribute AS a
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

-- Returns the type that a domain, or a domain over it, is made of. Another type is returned as it is.
CREATE FUNCTION inbox_internal.without_domain(type oid)
RETURNS oid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base oid;
BEGIN
    LOOP
        SELECT t.typbasetype INTO base FROM pg_type AS t WHERE t.oid = type AND t.typtype = 'd';
        EXIT WHEN NOT FOUND;
        type := base;
    END LOOP;
    RETURN type;
END $$;

-- Returns the operator of an operator class for a strategy of btree: 1 is "<", 3 is "=".
CREATE FUNCTION inbox_internal.operator_in(class oid, strategy integer)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT format('OPERATOR(%I.%s)', n.nspname, o.oprname)
              FROM pg_opclass AS c
              JOIN pg_amop AS m ON m.amopfamily = c.opcfamily AND m.amoplefttype = c.opcintype
                               AND m.amoprighttype = c.opcintype AND m.amopstrategy = strategy
              JOIN pg_operator AS o ON o.oid = m.amopopr
              JOIN pg_namespace AS n ON n.oid = o.oprnamespace
             WHERE c.oid = class);
END $$;

-- Returns the operator that ORDER BY, DISTINCT and indexes use for a type: that of its default
-- operator class. Types without a class of their own, such as enums and arrays, use pg_catalog's.
CREATE FUNCTION inbox_internal.operator_of(type oid, strategy integer)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base oid := inbox_internal.without_domain(type);
BEGIN
    RETURN coalesce((SELECT inbox_internal.operator_in(c.oid, strategy)
                       FROM pg_opclass AS c JOIN pg_am AS a ON a.oid = c.opcmethod
                      WHERE c.opcintype = base AND c.opcdefault AND a.amname = 'btree'),
                    CASE strategy WHEN 1 THEN 'OPERATOR(pg_catalog.<)' WHEN 3 THEN 'OPERATOR(pg_catalog.=)' END);
END $$;

-- Refuses a projection without a unique constraint on its key: statements would change several rows
-- of a key. The constraint must call the same values equal as the columns do. The key of a view is
-- up to PostgreSQL and the view's owner.
CREATE FUNCTION inbox_internal.check_key(projection regclass, key_columns text[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_index AS i
                    WHERE i.indrelid = projection AND i.indisunique AND i.indimmediate AND i.indisvalid
                      AND i.indpred IS NULL AND i.indnkeyatts = cardinality(key_columns)
                      AND NOT EXISTS (SELECT FROM unnest(i.indkey, i.indclass, i.indcollation) WITH ORDINALITY AS k (number, class, coll, n)
                                        LEFT JOIN pg_attribute AS a
                                          ON a.attrelid = projection AND a.attnum = k.number
                                       WHERE k.n <= i.indnkeyatts
                                         AND (a.attname = ANY (key_columns)
                                              AND inbox_internal.operator_in(k.class, 3) = inbox_internal.operator_of(a.atttypid, 3)
                                              AND (k.coll = a.attcollation
                                                   OR (SELECT bool_and(c.collisdeterministic) FROM pg_collation AS c
                                                        WHERE c.oid IN (k.coll, a.attcollation)))) IS NOT TRUE))
        AND (SELECT c.relkind <> 'v' FROM pg_class AS c WHERE c.oid = projection) THEN
        RAISE EXCEPTION 'projection % has no unique constraint on its key columns', projection
            USING ERRCODE = 'invalid_column_reference',
                  DETAIL = format('They are: %s.', array_to_string(key_columns, ', ')),
                  HINT = 'Create a primary key that is not DEFERRABLE, or a unique index that is not partial and compares as the columns do.';
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

-- Returns the type of a column as SQL, with its schema and collation, because a statement must mean
-- the same whichever role prepared it. Only types that SQL has words for, such as numeric(6,2), and
-- types of others have modifiers.
CREATE FUNCTION inbox_internal.type_of_column(projection regclass, column_name name)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT concat(CASE WHEN a.atttypmod < 0 THEN format('%I.%I', n.nspname, t.typname)
                               ELSE format_type(a.atttypid, a.atttypmod) END,
                          (SELECT format(' COLLATE %I.%I', s.nspname, c.collname)
                             FROM pg_collation AS c JOIN pg_namespace AS s ON s.oid = c.collnamespace
                            WHERE c.oid = a.attcollation AND c.oid <> t.typcollation))
              FROM pg_attribute AS a
              JOIN pg_type AS t ON t.oid = a.atttypid
              JOIN pg_namespace AS n ON n.oid = t.typnamespace
             WHERE a.attrelid = projection AND a.attname = column_name);
END $$;

-- Returns the columns of a projection that can be given. `operator` is "=" for a key and "<" for
-- the version. The first OID that is not of PostgreSQL itself is 16384, and types before it have
-- the operators of pg_catalog. Values of a plain type are equal if their texts are.
--
-- Plain SQL cannot tell that columns have changed, so this reads them for every event. Without
-- OFFSET 0 the query would also be planned for every event.
CREATE FUNCTION inbox_internal.columns_of(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS TABLE (attname name, name text, type_id oid, is_given boolean, is_key boolean, is_version boolean, is_identity boolean, is_plain boolean, operator text)
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT c.attname, quote_ident(c.attname), c.atttypid, c.is_given, c.is_key, c.is_version, c.attidentity = 'a',
           c.atttypid = ANY ('{int2,int4,int8,text,varchar,uuid}'::regtype[]) AND c.attcollation IN (0, 100),
           CASE WHEN c.atttypid >= 16384 AND c.is_key THEN inbox_internal.operator_of(c.atttypid, 3)
                WHEN c.atttypid >= 16384 AND c.is_version THEN inbox_internal.operator_of(c.atttypid, 1)
                WHEN c.is_key THEN 'OPERATOR(pg_catalog.=)'
                ELSE 'OPERATOR(pg_catalog.<)' END
      FROM (SELECT a.attname, a.atttypid, a.attcollation, a.attidentity,
                   data ? a.attname AS is_given,
                   a.attname = ANY (key_columns) AS is_key,
                   a.attname = version_column AS is_version
              FROM pg_attribute AS a
             WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
            OFFSET 0) AS c;
END;

-- In statements `stored` is the stored row, and `excluded` the given row, as in ON CONFLICT. A
-- stored version that is NULL is older than any other. If the projection has types of others,
-- `excluded` has only the columns that are needed: another one may be of a domain that refuses NULL.
CREATE FUNCTION inbox_internal.row_parts(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb,
    is_removal     boolean,
    OUT given       text,
    OUT assignments text,
    OUT same_key    text,
    OUT older       text)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    found_columns    pg_catalog.int4;
    has_foreign_type pg_catalog.bool;
BEGIN
    SELECT pg_catalog.string_agg(pg_catalog.concat(c.name, ' = excluded.', c.name), ', ')
               FILTER (WHERE c.is_given AND NOT c.is_key AND NOT c.is_identity),
           pg_catalog.string_agg(pg_catalog.concat('stored.', c.name, ' ', c.operator, ' excluded.', c.name), ' AND ')
               FILTER (WHERE c.is_key),
           pg_catalog.max(pg_catalog.concat('(stored.', c.name, ' ', c.operator, ' excluded.', c.name, ')'))
               FILTER (WHERE c.is_version AND NOT c.is_identity),
           pg_catalog.count(data OPERATOR(pg_catalog.->>) c.attname::pg_catalog.text) FILTER (WHERE c.is_key OR c.is_version),
           pg_catalog.bool_or(c.type_id OPERATOR(pg_catalog.>=) 16384::pg_catalog.oid)
      INTO assignments, same_key, older, found_columns, has_foreign_type
      FROM inbox_internal.columns_of(projection, key_columns, version_column, data) AS c;
    IF same_key IS NULL OR older IS NULL OR (found_columns OPERATOR(pg_catalog.=) (pg_catalog.cardinality(key_columns) OPERATOR(pg_catalog.+) 1)) IS NOT TRUE THEN
        PERFORM inbox_internal.check_row(projection, key_columns, version_column, data);
    END IF;
    IF has_foreign_type THEN
        SELECT pg_catalog.concat('pg_catalog.jsonb_to_record(pg_catalog.current_setting(''inbox.given'')::pg_catalog.jsonb) AS excluded(',
                                 pg_catalog.string_agg(pg_catalog.concat(c.name, ' ', inbox_internal.type_of_column(projection, c.attname)), ', '),
                                 ')')
          INTO given
          FROM inbox_internal.columns_of(projection, key_columns, version_column, data) AS c
         WHERE c.is_key OR c.is_version OR (c.is_given AND NOT is_removal);
    ELSE
        given := pg_catalog.concat('pg_catalog.jsonb_populate_record(NULL::', projection,
                                   ', pg_catalog.current_setting(''inbox.given'')::pg_catalog.jsonb) AS excluded');
    END IF;
END $$;
COMMENT ON FUNCTION inbox_internal.row_parts(regclass, text[], text, jsonb, boolean) IS
    'parts of statements about a row of a projection';

-- Returns whether equal values of a type have the same hash in every database, so after a dump and
-- restore. Hashes of enums are made of OIDs.
CREATE FUNCTION inbox_internal.has_hash(type oid)
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    base    oid := inbox_internal.without_domain(type);
    element oid := (SELECT CASE WHEN t.typsubscript = 'array_subscript_handler'::regproc THEN t.typelem
                                ELSE (SELECT r.rngsubtype FROM pg_range AS r WHERE t.oid IN (r.rngtypid, r.rngmultitypid)) END
                      FROM pg_type AS t WHERE t.oid = base);
BEGIN
    IF element IS NOT NULL THEN
        RETURN inbox_internal.has_hash(element);
    END IF;
    RETURN EXISTS (SELECT FROM pg_opclass AS c
                     JOIN pg_am AS a ON a.oid = c.opcmethod AND a.amname = 'hash'
                     JOIN pg_amproc AS p ON p.amprocfamily = c.opcfamily AND p.amproclefttype = c.opcintype
                                        AND p.amprocrighttype = c.opcintype AND p.amprocnum = 2
                    WHERE c.opcdefault
                      AND (c.opcintype = base
                           OR EXISTS (SELECT FROM pg_cast AS t
                                       WHERE t.castsource = base AND t.casttarget = c.opcintype
                                         AND t.castmethod = 'b' AND t.castcontext = 'i')));
END $$;

-- Returns a value as text that means the same in all sessions, whatever their settings.
CREATE FUNCTION inbox_internal.portable_text(value anyelement)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
SET "DateStyle" = 'ISO'
SET "IntervalStyle" = 'iso_8601'
SET bytea_output = 'hex'
SET extra_float_digits = 1
AS $$
BEGIN
    RETURN format('%s', value);
END $$;

-- Returns parts of statements about the key of a row that is inserted or removed. A tombstone has
-- the key as text, and is found by a hash, which equal keys share. It is called `removed`. What its
-- text means is up to the types of the projection, so the caller compares it, with its own rights.
CREATE FUNCTION inbox_internal.key_parts(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb,
    OUT columns     text,
    OUT keys        text,
    OUT hash        text,
    OUT key         text,  -- in the form of inbox.tombstone, as is the version
    OUT version     text,
    OUT was_removed text,
    OUT was_older   text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT string_agg(c.name, ', ') FILTER (WHERE c.is_key OR NOT c.is_identity),
           string_agg(c.name, ', ') FILTER (WHERE c.is_key),
           coalesce('pg_catalog.hash_record_extended(ROW(' || string_agg(c.hashed, ', ') || '), 0)', '0::pg_catalog.int8'),
           'pg_catalog.jsonb_build_object(' || string_agg(quote_literal(c.attname) || ', ' || c.text, ', ') FILTER (WHERE c.is_key) || ')',
           max(c.text) FILTER (WHERE c.is_version),
           string_agg(concat('(removed.key OPERATOR(pg_catalog.->>) ', quote_literal(c.attname), ')',
                             CASE WHEN c.is_plain THEN ' OPERATOR(pg_catalog.=) ' || c.text
                                  ELSE concat('::', c.type, ' ', c.operator, ' excluded.', c.name) END), ' AND ')
               FILTER (WHERE c.is_key),
           max(concat('(removed.version::', c.type, ' ', c.operator, ' excluded.', c.name, ')')) FILTER (WHERE c.is_version)
      INTO columns, keys, hash, key, version, was_removed, was_older
      FROM (SELECT g.*, t.text,
                   CASE WHEN g.is_key AND g.is_plain OR NOT g.is_key AND NOT g.is_version THEN NULL
                        WHEN g.type_id = 'int8'::regtype THEN 'pg_catalog.int8' -- as most versions
                        ELSE inbox_internal.type_of_column(projection, g.attname) END AS type,
                   CASE WHEN NOT g.is_key THEN NULL
                        WHEN g.is_plain OR inbox_internal.has_hash(g.type_id) THEN 'excluded.' || g.name
                        WHEN (SELECT y.typtype = 'e' FROM pg_type AS y WHERE y.oid = inbox_internal.without_domain(g.type_id)) THEN t.text
                   END AS hashed
              FROM inbox_internal.columns_of(projection, key_columns, version_column, data) AS g,
                   concat(CASE WHEN g.is_plain THEN 'pg_catalog.format(''%s'', excluded.' ELSE 'inbox_internal.portable_text(excluded.' END,
                          g.name, ')') AS t(text)
             WHERE g.is_given) AS c;
END $$;

-- Keys with the same slot share a lock, which is a row of inbox.key_lock. Transactions that insert
-- share it, because the table itself keeps them apart; one that removes holds it alone.
CREATE FUNCTION inbox_internal.key_slot(projection regclass, key_hash bigint)
RETURNS integer
LANGUAGE sql IMMUTABLE
RETURN (pg_catalog.hashint8extended(key_hash, projection::pg_catalog.oid::pg_catalog.int8) & 16383)::pg_catalog.int4;
COMMENT ON FUNCTION inbox_internal.key_slot(regclass, bigint) IS 'number of the lock of a key';

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

-- Returns the removed keys that have this hash, with their versions, as an array of objects, or NULL
-- if there are none.
CREATE FUNCTION inbox_internal.tombstones(projection regclass, key_hash bigint, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'SELECT') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'SELECT', caller);
    END IF;
    RETURN (SELECT jsonb_agg(jsonb_build_object('key', t.key, 'version', t.version)) FROM inbox.tombstone AS t
             WHERE t.projection = tombstones.projection AND t.key_hash = tombstones.key_hash);
END $$;

-- Does the same, and locks these keys for an insert: until the transaction ends, no other
-- transaction removes such a row.
CREATE FUNCTION inbox_internal.lock_insert(projection regclass, key_hash bigint, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'INSERT') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'INSERT', caller);
    END IF;
    PERFORM FROM inbox.key_lock AS k WHERE k.slot = inbox_internal.key_slot(projection, key_hash) FOR SHARE;
    IF NOT FOUND OR current_setting('transaction_isolation') = 'repeatable read' THEN
        PERFORM inbox_internal.check_locked(FOUND);
    END IF;
    RETURN (SELECT jsonb_agg(jsonb_build_object('key', t.key, 'version', t.version)) FROM inbox.tombstone AS t
             WHERE t.projection = lock_insert.projection AND t.key_hash = lock_insert.key_hash);
END $$;

-- Locks keys for a removal until the transaction ends.
CREATE FUNCTION inbox_internal.lock_removal(projection regclass, key_hash bigint, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF has_table_privilege(caller, projection, 'DELETE') IS NOT TRUE THEN
        PERFORM inbox_internal.check_right(projection, 'DELETE', caller);
    END IF;
    PERFORM FROM inbox.key_lock AS k WHERE k.slot = inbox_internal.key_slot(projection, key_hash) FOR NO KEY UPDATE;
    PERFORM inbox_internal.check_locked(FOUND);
    RETURN true;
END $$;

-- A role that may delete rows of the projection may also keep them away.
CREATE FUNCTION inbox_internal.leave_tombstone(
    projection regclass,
    key_hash   bigint,
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
    INSERT INTO inbox.tombstone AS t (projection, key_hash, key, version)
        VALUES ($1, $2, $3, $4)
        ON CONFLICT ON CONSTRAINT tombstone_pkey DO UPDATE
           SET version = excluded.version, removed_at = excluded.removed_at;
    RETURN true;
END $$;
COMMENT ON FUNCTION inbox_internal.leave_tombstone(regclass, bigint, jsonb, text, inbox_internal.caller) IS 'records that a row was removed';

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
    p record := inbox_internal.row_parts(projection, key_columns, version_column, data, false);
    k record;
BEGIN
    IF inbox_internal.run(concat('UPDATE ', projection, ' AS stored SET ', p.assignments, ' FROM ', p.given,
                                 ' WHERE ', p.same_key, ' AND ', p.older, ' IS NOT FALSE RETURNING true'),
                          data, projection, key_columns, version_column) THEN
        RETURN true;
    END IF;
    k := inbox_internal.key_parts(projection, key_columns, version_column, data);
    -- A replica has the values of identity columns from its original.
    RETURN inbox_internal.run(concat('INSERT INTO ', projection, ' AS stored (', k.columns, ') OVERRIDING SYSTEM VALUE '
                            'SELECT ', k.columns, ' FROM ', p.given,
                            -- The update may have locked a row that is newer. With that lock this
                            -- must not wait for a transaction that has locked the key and waits for
                            -- the row.
                            ' WHERE CASE WHEN EXISTS (SELECT FROM ', projection, ' AS stored WHERE ', p.same_key,
                                                    ' AND ', p.older, ' IS FALSE) THEN false '
                            'ELSE NOT EXISTS (SELECT FROM pg_catalog.jsonb_to_recordset(inbox_internal.lock_insert(', projection::oid, ', ', k.hash, ')) '
                                             'AS removed(key pg_catalog.jsonb, version pg_catalog.text) '
                                             'WHERE ', k.was_removed, ' AND ', k.was_older, ' IS FALSE) END '
                            'ON CONFLICT (', k.keys, ') DO UPDATE SET ', p.assignments, ' WHERE ', p.older,
                            ' IS NOT FALSE RETURNING true'),
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
    p record := inbox_internal.row_parts(projection, key_columns, version_column, data, true);
    k record := inbox_internal.key_parts(projection, key_columns, version_column, data);
BEGIN
    PERFORM inbox_internal.run(concat('SELECT inbox_internal.lock_removal(', projection::oid, ', ', k.hash, ') FROM ', p.given), data);
    PERFORM inbox_internal.run(concat('DELETE FROM ', projection, ' AS stored USING ', p.given, ' WHERE ', p.same_key,
                                      ' AND ', p.older, ' IS NOT FALSE RETURNING true'),
                      data, projection, key_columns, version_column);
    RETURN inbox_internal.run(concat('SELECT inbox_internal.leave_tombstone(', projection::oid, ', ', k.hash, ', '
                                           'coalesce(removed.key, ', k.key, '), ', k.version, ') FROM ', p.given,
                            ' LEFT JOIN pg_catalog.jsonb_to_recordset(inbox_internal.tombstones(', projection::oid, ', ', k.hash, ')) '
                                           'AS removed(key pg_catalog.jsonb, version pg_catalog.text) ON ', k.was_removed,
                            ' WHERE NOT EXISTS (SELECT FROM ', projection, ' AS stored WHERE ', p.same_key, ') '
                            'AND ', k.was_older, ' IS NOT FALSE'), data);
END $$;
