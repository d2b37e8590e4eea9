-- Trace context of the event that is handled. process() and complete() set it, so that events that
-- a handler enqueues in this database continue the trace (docs/tracing.md).

-- Sets inbox.traceparent and inbox.tracestate until the end of the transaction, to those of an event
-- with these headers, or to nothing if they have no valid traceparent. For consumers that call
-- begin_event(). Headers come from outside, so nothing in them is an error.
CREATE FUNCTION inbox.continue_trace(headers jsonb)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    parent text := coalesce(headers ->> 'traceparent', '');
    state  text := coalesce(headers ->> 'tracestate', '');
BEGIN
    IF NOT inbox_internal.is_traceparent(parent) THEN
        parent := '';
    END IF;
    IF parent = '' OR NOT inbox_internal.is_tracestate(state) THEN
        state := '';
    END IF;
    PERFORM set_config('inbox.traceparent', parent, true), set_config('inbox.tracestate', state, true);
END $$;

-- Returns whether an event begins or ends a trace context, so that continue_trace() would change
-- anything. The planner inlines it, and an event without a trace costs no more than that.
CREATE FUNCTION inbox_internal.changes_trace(headers jsonb)
RETURNS boolean
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT (headers ? 'traceparent') IS TRUE OR current_setting('inbox.traceparent', true) <> '';
END;
