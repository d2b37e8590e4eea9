-- outbox.enqueue() for ids of other types than text, and for json. Each function passes its
-- arguments on. The planner puts it into the statement that calls it, so it has no search_path.
--
-- None of them may make a call ambiguous whose literals have no type. If all are unknown,
-- PostgreSQL chooses the form with text and jsonb, because it prefers text to a polymorphic type.
-- For this, the payloads of all forms must be of one type category: jsonb, json and bytea are, and
-- text is not.
CREATE FUNCTION outbox.enqueue(
    aggregate_type  text,
    aggregate_id    anycompatiblenonarray,
    event_type      text,
    payload         jsonb,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$
    SELECT outbox.enqueue($1, $2::pg_catalog.text, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
$$;
COMMENT ON FUNCTION outbox.enqueue(text, anycompatiblenonarray, text, jsonb, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz) IS
    'commits an event with a JSON payload together with the current transaction; its aggregate id may be of any type';

-- PostgreSQL prefers text to varchar for an unknown literal, so such literals choose the form with
-- jsonb.
CREATE FUNCTION outbox.enqueue(
    aggregate_type  varchar,
    aggregate_id    anycompatiblenonarray,
    event_type      text,
    payload         json,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$
    SELECT outbox.enqueue($1::pg_catalog.text, $2::pg_catalog.text, $3, $4::pg_catalog.jsonb, $5, $6, $7, $8, $9, $10, $11, $12)
$$;
COMMENT ON FUNCTION outbox.enqueue(varchar, anycompatiblenonarray, text, json, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz) IS
    'commits an event with a payload of the type json together with the current transaction';

CREATE FUNCTION outbox.enqueue(
    aggregate_type  text,
    aggregate_id    anycompatiblenonarray,
    event_type      text,
    payload         bytea,
    content_type    text,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE sql VOLATILE PARALLEL UNSAFE
AS $$
    SELECT outbox.enqueue($1, $2::pg_catalog.text, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)
$$;
COMMENT ON FUNCTION outbox.enqueue(text, anycompatiblenonarray, text, bytea, text, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz) IS
    'commits an event with a payload of any media type together with the current transaction; its aggregate id may be of any type';
