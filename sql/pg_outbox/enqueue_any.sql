-- outbox.enqueue() for ids of other types than text, and for json. Each of them passes its arguments on. The
-- planner puts it into the statement that calls it, so it has no search_path.
--
-- None of them may make a call ambiguous whose literals have no type. If all are unknown, the form with
-- text and jsonb is chosen, because an unknown literal is rather a text than of any type. For this, the
-- payloads of all forms must be of one category, as jsonb, json and bytea are, which text is not.
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

-- Of two strings a literal is rather a text than a varchar, so unknown literals choose the form with jsonb.
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
