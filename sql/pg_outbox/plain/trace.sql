-- Trace context of events: the settings outbox.traceparent and outbox.tracestate, a comment of the client's
-- statement, and inbox.traceparent in the handler of an event. Settings have no check here, so an enqueue
-- refuses those that are not valid.

-- Returns whether with_trace_context() may find something. The planner inlines it, and an event without a
-- trace costs no more than that. Reading a comment copies the text of the statement, once for each captured
-- row. So comments are read only if outbox.trace_comments is `always`: a server that has preloaded the library
-- shows `on` in databases without the extension, too.
CREATE FUNCTION outbox_internal.may_be_traced()
RETURNS boolean
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT coalesce(nullif(current_setting('outbox.traceparent', true), ''),
                    nullif(current_setting('inbox.traceparent', true), '')) IS NOT NULL
        OR coalesce(current_setting('outbox.trace_comments', true) = 'always', false);
END;

-- Returns the trace context in a comment of a statement, as name='value' members. The comment is at
-- the end of the statement, or else at its beginning, and has a valid traceparent. Values are
-- URL-encoded; one with other characters than ASCII is left out.
CREATE FUNCTION outbox_internal.trace_of_comment(statement text, OUT traceparent text, OUT tracestate text)
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    comment text;
    value   text;
BEGIN
    statement := btrim(statement, E' \t\r\n\f;');
    FOREACH comment IN ARRAY ARRAY[
        CASE WHEN right(statement, 2) = '*/' THEN split_part(left(right(statement, 4098), -2), '/*', -1) END,
        CASE WHEN left(statement, 2) = '/*' THEN split_part(substr(statement, 3, 4096), '*/', 1) END] LOOP
        traceparent := NULL;
        tracestate := NULL;
        FOR comment, value IN
            SELECT m[1], (SELECT string_agg(CASE WHEN c[1] LIKE '\%%' THEN chr(('x' || substr(c[1], 2))::bit(8)::integer)
                                                 WHEN c[1] LIKE '\\%' THEN substr(c[1], 2) ELSE c[1] END, '' ORDER BY n)
                            FROM regexp_matches(m[2], '%[2-7][0-9A-Fa-f]|\\.|.', 'g') WITH ORDINALITY AS v(c, n))
              FROM regexp_matches(comment, '([^\s,=]+)=''((?:[^''\\]|\\.)*)''', 'g') AS m
             WHERE m[1] IN ('traceparent', 'tracestate') AND m[2] !~ '%(?![2-7][0-9A-Fa-f])' LOOP
            IF comment = 'tracestate' THEN
                tracestate := value;
            ELSIF outbox_internal.is_traceparent(value) THEN
                traceparent := value;
            END IF;
        END LOOP;
        EXIT WHEN traceparent IS NOT NULL;
    END LOOP;
END $$;

-- Reports that a setting is not a trace context.
CREATE FUNCTION outbox_internal.refuse_trace_setting(name text, value text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF name = 'outbox.tracestate' THEN
        RAISE EXCEPTION 'invalid value for parameter "%": "%"', name, value
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = 'A tracestate has at most 512 printable ASCII characters.';
    END IF;
    RAISE EXCEPTION 'invalid value for parameter "%": "%"', name, value
        USING ERRCODE = 'invalid_parameter_value',
              DETAIL = 'A traceparent has a version, a trace id, a parent id and flags, in lower-case hexadecimal digits (W3C Trace Context).',
              HINT = 'Write for example ''00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'', or an empty string for none.';
END $$;

-- Returns the headers of an event with the trace context of the session, unless they have a
-- traceparent.
CREATE FUNCTION outbox_internal.with_trace_context(headers jsonb)
RETURNS jsonb
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parent text := current_setting('outbox.traceparent', true);
    state  text := current_setting('outbox.tracestate', true);
BEGIN
    IF headers ? 'traceparent' OR (SELECT count(*) FROM jsonb_object_keys(headers)) + 2 > @{max_headers} THEN
        RETURN headers;
    ELSIF parent <> '' THEN
        IF NOT outbox_internal.is_traceparent(parent) THEN
            PERFORM outbox_internal.refuse_trace_setting('outbox.traceparent', parent);
        ELSIF NOT outbox_internal.is_tracestate(state) THEN
            PERFORM outbox_internal.refuse_trace_setting('outbox.tracestate', state);
        END IF;
    ELSE
        parent := NULL;
        IF current_setting('outbox.trace_comments', true) = 'always' THEN
            SELECT c.traceparent, c.tracestate INTO parent, state FROM outbox_internal.trace_of_comment(current_query()) AS c;
        END IF;
        IF parent IS NULL THEN
            parent := current_setting('inbox.traceparent', true);
            state := current_setting('inbox.tracestate', true);
        END IF;
    END IF;
    IF outbox_internal.is_traceparent(parent) IS NOT TRUE THEN
        RETURN headers;
    END IF;
    RETURN jsonb_build_object('traceparent', parent)
        || CASE WHEN state <> '' AND outbox_internal.is_tracestate(state) THEN jsonb_build_object('tracestate', state) ELSE '{}' END
        || coalesce(headers, '{}');
END $$;
