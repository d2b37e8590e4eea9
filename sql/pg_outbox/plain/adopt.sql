-- Runs a statement of outbox.adopt() with the rights of the owner of a table: a count, or an
-- INSERT. Reading a table runs code of its owner, so the caller must be the owner.
CREATE FUNCTION outbox_internal.run_as_owner("table" regclass, statement text)
RETURNS text[]
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found text[];
BEGIN
    PERFORM outbox_internal.check_owns_table("table");
    IF statement LIKE 'SELECT %' THEN
        EXECUTE format('SELECT ARRAY[a::text, b::text, c::text, d::text] FROM (%s) AS found(a, b, c, d)', statement) INTO found;
    ELSE
        EXECUTE statement;
    END IF;
    RETURN found;
END $$;
