-- Settings of pg_outbox, and what is different where its library is loaded.

-- Returns a setting in the form of current_setting(), without the prefix "outbox."; NULL if the
-- library is not loaded.
CREATE FUNCTION outbox_internal.setting(name text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT current_setting('outbox.' || name, true);
END;
COMMENT ON FUNCTION outbox_internal.setting(text) IS 'a setting of pg_outbox';

CREATE FUNCTION outbox_internal.edition()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'native';
END;
COMMENT ON FUNCTION outbox_internal.edition() IS 'native for the extension, sql for the SQL edition';

CREATE FUNCTION outbox_internal.is_preloaded()
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT current_setting('outbox.max_workers', true) IS NOT NULL;
END;
COMMENT ON FUNCTION outbox_internal.is_preloaded() IS 'returns whether the server has what this edition needs to deliver events';

-- Returns how destinations are made here, for hints.
CREATE FUNCTION outbox_internal.how_to_make_destination()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'CREATE SERVER ... FOREIGN DATA WRAPPER pg_outbox';
END;
COMMENT ON FUNCTION outbox_internal.how_to_make_destination() IS 'the statement that makes a destination';
