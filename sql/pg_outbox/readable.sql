-- Rows whose texts have no form in UTF-8, in a database with another encoding. Enqueueing refuses such
-- texts, so these rows were written otherwise: by an older version, or by the owner of the log. No
-- relay can send them, and no fetcher can receive them: they become dead letters. A relay reads them
-- with "?" in place of what is not ASCII, and without an ordering key that is unreadable, so that it
-- holds no other key. Those for a fetcher or an endpoint are refused before they are handed out.

-- Returns whether a text has a form in UTF-8.
CREATE FUNCTION outbox_internal.is_readable(value text)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
RETURN outbox_internal.has_form(value, 'UTF8');

CREATE FUNCTION outbox_internal.readable_text(value text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN outbox_internal.is_readable(value) THEN value
                ELSE regexp_replace(value COLLATE "C", E'[^\\x01-\\x7f]', '?', 'g') END;
END;
COMMENT ON FUNCTION outbox_internal.readable_text(text) IS 'returns a text, or what it has in ASCII if it has no form in UTF-8';

-- Returns why an event with these texts cannot be sent; NULL if it can.
CREATE FUNCTION outbox_internal.fault_of(
    topic text, aggregate_type text, aggregate_id text, event_type text, ordering_key text, content_type text, headers jsonb)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'a name or a header of the event has no form in UTF-8'
     WHERE NOT outbox_internal.is_readable(concat_ws(E'\n', topic, aggregate_type, aggregate_id, event_type, ordering_key, content_type, headers));
END;

-- Returns an event as a relay can read it, and why it cannot be sent. As in bgworker/relay/event_copy.cpp.
CREATE FUNCTION outbox_internal.readable(event outbox.event, OUT readable outbox.event, OUT fault text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    readable := event;
    fault := outbox_internal.fault_of(event.topic, event.aggregate_type, event.aggregate_id, event.event_type,
                                      event.ordering_key, event.content_type, event.headers);
    IF fault IS NULL THEN
        RETURN;
    END IF;
    readable.topic := outbox_internal.readable_text(event.topic);
    readable.aggregate_type := outbox_internal.readable_text(event.aggregate_type);
    readable.aggregate_id := outbox_internal.readable_text(event.aggregate_id);
    readable.event_type := outbox_internal.readable_text(event.event_type);
    readable.content_type := outbox_internal.readable_text(event.content_type);
    IF NOT outbox_internal.is_readable(event.ordering_key) THEN
        readable.ordering_key := '';
    END IF;
    readable.headers := NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.readable(outbox.event) IS 'returns an event as a relay can read it, and why it cannot be sent';
