-- Settings of pg_outbox, and what is different where its library is loaded.

-- Returns a setting of pg_outbox in the form of current_setting(), without the prefix "outbox.";
-- NULL if the library is not loaded.
CREATE FUNCTION outbox_internal.setting(name text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT current_setting('outbox.' || name, true);
END;

-- Returns the name of this edition: native for the extension, sql for the SQL edition.
CREATE FUNCTION outbox_internal.edition()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'native';
END;

-- Returns whether the server has what this edition needs to deliver events.
CREATE FUNCTION outbox_internal.is_preloaded()
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT current_setting('outbox.max_workers', true) IS NOT NULL;
END;

-- Returns how destinations are made here, for hints.
CREATE FUNCTION outbox_internal.how_to_make_destination()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'CREATE SERVER ... FOREIGN DATA WRAPPER pg_outbox';
END;
