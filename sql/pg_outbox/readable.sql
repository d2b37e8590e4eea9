-- Rows whose texts have no form in UTF-8, in a database with another encoding. Enqueueing refuses such
-- texts, so these rows were written otherwise: by an older version, or by the owner of the log. Relays
-- cannot send them: they become dead letters. A relay reads them with "?" in place of what is not
-- ASCII, and without an ordering key that is unreadable, so that it holds no other key.

CREATE FUNCTION outbox_internal.is_readable(value text)
RETURNS boolean
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF getdatabaseencoding() <> 'UTF8' THEN
        BEGIN
            PERFORM convert_to(value, 'UTF8');
        EXCEPTION WHEN untranslatable_character OR character_not_in_repertoire THEN
            RETURN false;
        END;
    END IF;
    RETURN true;
END $$;
COMMENT ON FUNCTION outbox_internal.is_readable(text) IS 'returns whether a text has a form in UTF-8';

CREATE FUNCTION outbox_internal.readable_text(value text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN outbox_internal.is_readable(value) THEN value
                ELSE regexp_replace(value COLLATE "C", E'[^\\x01-\\x7f]', '?', 'g') END;
END;
COMMENT ON FUNCTION outbox_internal.readable_text(text) IS 'returns a text, or what it has in ASCII if it has no form in UTF-8';

-- Returns an event as a relay can read it, and why it cannot be sent. As in bgworker/relay/event_copy.cpp.
CREATE FUNCTION outbox_internal.readable(event outbox.event, OUT readable outbox.event, OUT fault text)
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    readable := event;
    IF outbox_internal.is_readable(concat_ws(E'\n', event.topic, event.aggregate_type, event.aggregate_id, event.event_type,
                                             event.ordering_key, event.content_type, event.headers)) THEN
        RETURN;
    END IF;
    fault := 'a name or a header of the event has no form in UTF-8';
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
