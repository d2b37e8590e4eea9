-- The payload of a message as JSON.
CREATE FUNCTION inbox.json(message inbox.message)
RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
RETURN convert_from((message).payload, 'UTF8')::jsonb;
COMMENT ON FUNCTION inbox.json(inbox.message) IS 'the payload of a message as JSON';

-- Writes a row of a projection, unless the projection has the same or a newer version of it already.
--
-- `data` has a member for each column to write; others are ignored. key_columns must be those of a
-- primary key or unique constraint; they and the version must be there and not null. Returns whether
-- the row was written. Errors: 42703 a column does not exist; 22004 a key or the version is missing.
CREATE FUNCTION inbox.apply(
    projection     regclass,
    key_columns    text[],
    version_column text,
    data           jsonb)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    required text;
    columns  text;
    updates  text;
    written  bigint;
BEGIN
    FOREACH required IN ARRAY key_columns || version_column LOOP
        IF NOT EXISTS (SELECT FROM pg_attribute AS a
                        WHERE a.attrelid = projection AND a.attname = required
                          AND a.attnum > 0 AND NOT a.attisdropped) THEN
            RAISE EXCEPTION 'column "%" of projection % does not exist', required, projection
                USING ERRCODE = 'undefined_column';
        END IF;
        IF data ->> required IS NULL THEN
            RAISE EXCEPTION 'data for projection % lacks "%"', projection, required
                USING ERRCODE = 'null_value_not_allowed';
        END IF;
    END LOOP;

    SELECT string_agg(quote_ident(a.attname), ', '),
           string_agg(format('%1$I = excluded.%1$I', a.attname), ', ')
               FILTER (WHERE a.attname <> ALL (key_columns))
      INTO columns, updates
      FROM pg_attribute AS a
     WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped
       AND a.attgenerated = '' AND data ? a.attname;
    EXECUTE format(
        'INSERT INTO %1$s AS old (%2$s) SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, $1) '
        'ON CONFLICT (%3$s) DO UPDATE SET %4$s WHERE old.%5$I < excluded.%5$I',
        projection, columns,
        (SELECT string_agg(quote_ident(k), ', ') FROM unnest(key_columns) AS k),
        updates, version_column) USING data;
    GET DIAGNOSTICS written = ROW_COUNT;
    RETURN written > 0;
END $$;
COMMENT ON FUNCTION inbox.apply(regclass, text[], text, jsonb) IS
    'writes a row of a projection unless a newer version is there';
