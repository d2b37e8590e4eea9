-- Raises an error unless the text is a list of patterns.
CREATE FUNCTION outbox_internal.check_topics(topics text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_topics';

-- Returns whether a text is a media type, as in outbox.enqueue().
CREATE FUNCTION outbox_internal.is_content_type(text text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_is_content_type';
