-- Returns the id of a consumer, and creates the consumer if it is new. It runs with the caller's
-- rights, so only functions of the inbox can use it.
CREATE FUNCTION inbox_internal.consumer_id(consumer text)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found_id integer;
BEGIN
    SELECT c.id INTO found_id FROM inbox.consumer AS c WHERE c.name = consumer;
    IF found_id IS NULL THEN
        IF coalesce(consumer, '') = '' THEN
            RAISE EXCEPTION 'consumer must not be empty' USING ERRCODE = 'invalid_parameter_value';
        END IF;
        IF octet_length(consumer) > @{max_name_length} THEN
            RAISE EXCEPTION 'name of a consumer is too long'
                USING ERRCODE = 'program_limit_exceeded',
                      DETAIL = format('It has %s bytes; at most @{max_name_length} are allowed.', octet_length(consumer));
        END IF;
        IF NOT inbox_internal.has_form(consumer, 'UTF8') THEN
            RAISE EXCEPTION 'name of a consumer has no form in UTF-8'
                USING ERRCODE = 'untranslatable_character', DETAIL = 'Others could not read the list of consumers.';
        END IF;
        INSERT INTO inbox.consumer (name) VALUES (consumer) ON CONFLICT (name) DO NOTHING;
        SELECT c.id INTO STRICT found_id FROM inbox.consumer AS c WHERE c.name = consumer;
    END IF;
    RETURN found_id;
END $$;
