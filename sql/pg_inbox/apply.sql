-- The payload of a message as JSON.
CREATE FUNCTION inbox.json(message inbox.message)
RETURNS jsonb
LANGUAGE sql STABLE
RETURN pg_catalog.convert_from((message).payload, 'UTF8')::pg_catalog.jsonb;
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
    required text[] := key_columns || version_column;
    missing  text;
    columns  text[];
    written  bigint;
BEGIN
    columns := ARRAY(SELECT a.attname::text
                       FROM pg_attribute AS a
                      WHERE a.attrelid = projection AND a.attnum > 0 AND NOT a.attisdropped
                        AND a.attgenerated = '' AND data ? a.attname);
    FOREACH missing IN ARRAY required LOOP
        CONTINUE WHEN missing = ANY (columns) AND data ->> missing IS NOT NULL;
        IF EXISTS (SELECT FROM pg_attribute AS a
                    WHERE a.attrelid = projection AND a.attname = missing AND NOT a.attisdropped) THEN
            RAISE EXCEPTION 'data for projection % lacks "%"', projection, missing
                USING ERRCODE = 'null_value_not_allowed';
        END IF;
        RAISE EXCEPTION 'column "%" of projection % does not exist', missing, projection
            USING ERRCODE = 'undefined_column';
    END LOOP;

    EXECUTE (SELECT format('INSERT INTO %1$s AS old (%2$s) '
                           'SELECT %2$s FROM jsonb_populate_record(NULL::%1$s, $1) '
                           'ON CONFLICT (%3$s) DO UPDATE SET %4$s WHERE old.%5$I < excluded.%5$I',
                           projection,
                           string_agg(quote_ident(c), ', '),
                           string_agg(quote_ident(c), ', ') FILTER (WHERE c = ANY (key_columns)),
                           string_agg(format('%1$I = excluded.%1$I', c), ', ')
                               FILTER (WHERE c <> ALL (key_columns)),
                           version_column)
               FROM unnest(columns) AS c) USING data;
    GET DIAGNOSTICS written = ROW_COUNT;
    RETURN written > 0;
END $$;
COMMENT ON FUNCTION inbox.apply(regclass, text[], text, jsonb) IS
    'writes a row of a projection unless a newer version is there';
