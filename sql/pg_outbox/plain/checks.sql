-- Checks of names and media types.

-- Raises an error unless the text is a list of patterns.
CREATE FUNCTION outbox_internal.check_topics(topics text)
RETURNS boolean
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM string_to_table(topics, ',') AS pattern WHERE btrim(pattern, E' \t\r\n') = '') OR topics = '' THEN
        RAISE EXCEPTION 'topic pattern is empty'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write a list such as "video.*, user.events".';
    END IF;
    RETURN true;
END $$;

-- The grammar is that of lib/core/content_type.cpp.
CREATE FUNCTION outbox_internal.is_content_type(text text)
RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT text COLLATE "C" ~ ('^' || token || '/' || token || E'([ \\t]*;[ \\t]*' || token || '=('  || token
                               || E'|"([^"\\\\\\x01-\\x08\\x0a-\\x1f\\x7f]|\\\\[^\\x01-\\x1f])*"))*$')
      FROM (VALUES ('[-0-9A-Za-z!#$%&''*+.^_`|~]+')) AS t(token);
END;
COMMENT ON FUNCTION outbox_internal.is_content_type(text) IS 'returns whether a text is a media type, as in outbox.enqueue()';

-- Returns whether a media type promises JSON.
CREATE FUNCTION outbox_internal.is_json_type(content_type text)
RETURNS boolean
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
BEGIN ATOMIC -- without a search_path, so that the planner can put it into the expression that calls it
    SELECT lower(content_type COLLATE "C") ~ E'^(application/json|[^/]+/[^/; \\t]+\\+json)([; \\t]|$)';
END;
