-- Views with the columns of outbox tables that applications have. Inserted rows go straight into
-- the log. SELECT shows events of the log, with the columns that a publisher would have updated.
-- docs/existing-outbox.md says what such a view does and what it does not.

-- Views call functions with the rights of their readers, so this uses functions of pg_catalog only.
CREATE VIEW outbox.event_progress AS
WITH destination AS MATERIALIZED (
    SELECT d.name, c.number, c.done, c.upto, c.position, c.saved_at,
           -- as outbox_internal.topic_patterns() does
           (SELECT array_agg(replace(replace(replace(replace(btrim(topic, E' \t\r\n'), E'\\', E'\\\\'), '%', E'\\%'), '_', E'\\_'),
                                     '*', '%'))
              FROM string_to_table(
                       coalesce(d.topics, '*'), ',') AS topic) AS patterns
      FROM outbox_internal.destination_topics AS d
      LEFT JOIN outbox.cursor AS c ON c.destination = d.name
), unsettled AS (
    SELECT d.position, d.destination, d.attempts, d.next_retry_at, d.lock_token, d.locked_at
      FROM outbox.delivery AS d
     WHERE d.state <> 'DISCARDED' AND d.operation IS NULL -- a replayed event was published before
    UNION ALL
    SELECT o.position, b.destination, 0, NULL,
           CASE WHEN o.number <= b.taken THEN b.token END, CASE WHEN o.number <= b.taken THEN b.fetched_at END
      FROM outbox.batch AS b
     CROSS JOIN LATERAL unnest(b.positions) WITH ORDINALITY AS o(position, number)
), trouble AS (
    SELECT u.position, array_agg(u.destination) AS destinations, max(u.attempts) AS attempts,
           min(u.next_retry_at) AS next_retry_at,
           (array_agg(u.lock_token ORDER BY u.locked_at) FILTER (WHERE u.lock_token IS NOT NULL))[1] AS lock_token,
           min(u.locked_at) AS locked_at
      FROM unsettled AS u
     GROUP BY u.position
), event AS (
    SELECT e.* FROM outbox.event AS e
    UNION ALL
    SELECT DISTINCT ON (d.position)
           d.position, d.xid, d.occurred_at, d.event_id, d.version, d.schema_version, d.source_event_id, d.topic,
           d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key, d.content_type, d.headers, d.payload, d.only_to
      FROM outbox.delivery AS d
     WHERE NOT EXISTS (SELECT FROM outbox.event AS e WHERE e.xid = d.xid AND e.position = d.position)
)
SELECT e.position, e.event_id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.version, e.schema_version,
       e.content_type, e.payload, e.occurred_at,
       (SELECT CASE
                 WHEN d.name = ANY (t.destinations) THEN NULL
                 ELSE coalesce((SELECT max(r.published_at)
                                  FROM outbox.receipt AS r
                                 WHERE r.event_id = e.event_id AND r.destination = d.name),
                               CASE WHEN pg_visible_in_snapshot(e.xid, d.done)
                                         OR e.position <= d.position AND pg_visible_in_snapshot(e.xid, d.upto)
                                    THEN d.saved_at END)
               END AS settled_at
          FROM destination AS d
         WHERE e.topic LIKE ANY (d.patterns) AND (e.only_to IS NULL OR e.only_to = d.number)
         ORDER BY settled_at DESC NULLS FIRST
         LIMIT 1) AS published_at,
       coalesce(t.attempts, 0) AS attempts, t.next_retry_at, t.lock_token, t.locked_at
  FROM event AS e
  LEFT JOIN trouble AS t ON t.position = e.position;
COMMENT ON VIEW outbox.event_progress IS 'state of each event over all destinations that select it, for views of the log';
COMMENT ON COLUMN outbox.event_progress.position IS 'position in the log';
COMMENT ON COLUMN outbox.event_progress.event_id IS 'the event';
COMMENT ON COLUMN outbox.event_progress.topic IS 'topic as enqueued; so are the next columns';
COMMENT ON COLUMN outbox.event_progress.published_at IS
    'upper bound of the time when the last of its destinations confirmed it; null if some have not, or none selects it';
COMMENT ON COLUMN outbox.event_progress.attempts IS 'number of times that a destination refused it';
COMMENT ON COLUMN outbox.event_progress.next_retry_at IS 'not sent before this time';
COMMENT ON COLUMN outbox.event_progress.lock_token IS 'token under which it is being delivered, after trouble or to a fetcher';
COMMENT ON COLUMN outbox.event_progress.locked_at IS 'when lock_token was set';

-- ---------------------------------------------------------------------------------------------
-- Layouts
-- ---------------------------------------------------------------------------------------------

-- Returns the properties of a layout of outbox tables. `unpublished` selects the rows of a table
-- that are moved into the log. `in_order` is their order: by time, but within an aggregate by
-- version, because a transaction that began earlier may have changed it later.
CREATE FUNCTION outbox_internal.layout(
    layout text,
    OUT topic        text,
    OUT content_type text,
    OUT unpublished  text,
    OUT in_order     text,
    OUT shown        text)
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    by_version CONSTANT text := 'max(occurred_at) OVER (PARTITION BY %s ORDER BY version ROWS UNBOUNDED PRECEDING), version';
BEGIN
    topic := '{aggregate_type}.events';
    CASE layout
        WHEN 'seed' THEN
            content_type := 'application/octet-stream';
            unpublished := 'published_at IS NULL';
            in_order := format(by_version, 'aggregate_type, aggregate_id');
        WHEN 'seed_jsonb' THEN
            unpublished := 'published_at IS NULL';
            in_order := format(by_version, 'aggregatetype, aggregateid');
        WHEN 'debezium' THEN
            topic := 'outbox.event.{aggregate_type}';
            in_order := 'tableoid, ctid';
        WHEN 'tutorial' THEN
            topic := '{event_type}';
            unpublished := $q$state <> 'processed'$q$;
            in_order := 'created_at';
            shown := 'e.aggregate_id = e.event_id::text';
        WHEN 'cqrs' THEN
            unpublished := 'processed_at IS NULL';
            in_order := 'id';
            shown := $q$e.aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'$q$;
        ELSE
            RAISE EXCEPTION 'layout "%" does not exist', layout
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'The layouts are seed, seed_jsonb, debezium, tutorial and cqrs.';
    END CASE;
END $$;

-- Returns the columns of a layout of outbox tables: the type and default of each, and its
-- expression in the view. The application supplies columns that are `given`; all others show the
-- state of the event. extension/views/outbox_view.cpp has them in the same order.
CREATE FUNCTION outbox_internal.layout_columns(
    layout text,
    OUT number     bigint,
    OUT name       name,
    OUT type       text,
    OUT given      boolean,
    OUT by_default text,
    OUT shows      text)
RETURNS SETOF record
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT row_number() OVER (), c.name, c.type, c.given, c.by_default,
           CASE c.shows
             WHEN 'state' THEN $q$CASE WHEN e.published_at IS NULL THEN 'pending' ELSE 'processed' END$q$
             WHEN 'json' THEN
                 $q$CASE WHEN e.content_type = 'application/json' THEN outbox.payload_as_jsonb(e.payload) END$q$
             WHEN 'uuid' THEN $q$CASE WHEN e.aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                      THEN e.aggregate_id::uuid END$q$
             ELSE 'e.' || c.shows
           END
      FROM (VALUES
        ('seed',       'id',               'uuid',         true,  NULL,                'event_id'),
        ('seed',       'aggregate_type',   'text',         true,  NULL,                'aggregate_type'),
        ('seed',       'aggregate_id',     'text',         true,  NULL,                'aggregate_id'),
        ('seed',       'event_type',       'text',         true,  NULL,                'event_type'),
        ('seed',       'version',          'bigint',       true,  NULL,                'version'),
        ('seed',       'schema_version',   'integer',      true,  '1',                 'schema_version'),
        ('seed',       'payload',          'bytea',        true,  NULL,                'payload'),
        ('seed',       'occurred_at',      'timestamptz',  true,  'now()',             'occurred_at'),
        ('seed',       'published_at',     'timestamptz',  false, NULL,                'published_at'),
        ('seed',       'publish_attempts', 'integer',      false, '0',                 'attempts'),
        ('seed',       'next_retry_at',    'timestamptz',  false, NULL,                'next_retry_at'),
        ('seed',       'lock_token',       'text',         false, NULL,                'lock_token'),
        ('seed',       'locked_at',        'timestamptz',  false, NULL,                'locked_at'),

        ('seed_jsonb', 'id',               'uuid',         true,  NULL,                'event_id'),
        ('seed_jsonb', 'aggregatetype',    'text',         true,  NULL,                'aggregate_type'),
        ('seed_jsonb', 'aggregateid',      'text',         true,  NULL,                'aggregate_id'),
        ('seed_jsonb', 'event_type',       'text',         true,  NULL,                'event_type'),
        ('seed_jsonb', 'version',          'bigint',       true,  NULL,                'version'),
        ('seed_jsonb', 'payload',          'jsonb',        true,  NULL,                'json'),
        ('seed_jsonb', 'occurred_at',      'timestamptz',  true,  'now()',             'occurred_at'),
        ('seed_jsonb', 'published_at',     'timestamptz',  false, NULL,                'published_at'),
        ('seed_jsonb', 'publish_attempts', 'integer',      false, '0',                 'attempts'),
        ('seed_jsonb', 'next_retry_at',    'timestamptz',  false, NULL,                'next_retry_at'),
        ('seed_jsonb', 'lock_token',       'text',         false, NULL,                'lock_token'),
        ('seed_jsonb', 'locked_at',        'timestamptz',  false, NULL,                'locked_at'),

        ('debezium',   'id',               'uuid',         true,  NULL,                'event_id'),
        ('debezium',   'aggregatetype',    'varchar(255)', true,  NULL,                'aggregate_type'),
        ('debezium',   'aggregateid',      'varchar(255)', true,  NULL,                'aggregate_id'),
        ('debezium',   'type',             'varchar(255)', true,  NULL,                'event_type'),
        ('debezium',   'payload',          'jsonb',        true,  NULL,                'json'),

        ('tutorial',   'id',               'uuid',         true,  'gen_random_uuid()', 'event_id'),
        ('tutorial',   'topic',            'varchar(255)', true,  NULL,                'event_type'),
        ('tutorial',   'message',          'jsonb',        true,  NULL,                'json'),
        ('tutorial',   'state',            'varchar(50)',  false, $q$'pending'$q$,    'state'),
        ('tutorial',   'created_at',       'timestamptz',  true,  'now()',             'occurred_at'),
        ('tutorial',   'processed_at',     'timestamptz',  false, NULL,                'published_at'),

        ('cqrs',       'id',               'bigint',       false, NULL,                'position'),
        ('cqrs',       'aggregate_id',     'uuid',         true,  NULL,                'uuid'),
        ('cqrs',       'aggregate_type',   'varchar(255)', true,  NULL,                'aggregate_type'),
        ('cqrs',       'event_type',       'varchar(255)', true,  NULL,                'event_type'),
        ('cqrs',       'payload',          'jsonb',        true,  NULL,                'json'),
        ('cqrs',       'created_at',       'timestamptz',  true,  'now()',             'occurred_at'),
        ('cqrs',       'processed_at',     'timestamptz',  false, NULL,                'published_at')
      ) AS c(of_layout, name, type, given, by_default, shows)
     WHERE c.of_layout = layout;
END;

-- Turns a template with {aggregate_type} and {event_type} into an SQL expression over e.
CREATE FUNCTION outbox_internal.topic_expression(topic text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    wrong text;
    expression text;
BEGIN
    SELECT string_agg(CASE part
                        WHEN '{aggregate_type}' THEN 'e.aggregate_type'
                        WHEN '{event_type}' THEN 'e.event_type'
                        ELSE quote_literal(part)
                      END, ' || ' ORDER BY n),
           min(part) FILTER (WHERE part ~ '[{}]' AND part NOT IN ('{aggregate_type}', '{event_type}'))
      INTO expression, wrong
      FROM regexp_matches(topic, '\{[^{}]*\}|[^{}]+|[{}]', 'g') WITH ORDINALITY AS m(parts, n)
     CROSS JOIN LATERAL unnest(parts) AS part;
    IF wrong IS NOT NULL OR expression IS NULL THEN
        RAISE EXCEPTION 'topic "%" is not a template', topic
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = CASE WHEN wrong IS NULL THEN 'It is empty.' ELSE format('There is no field "%s".', wrong) END,
                  HINT = 'Fields are: {aggregate_type}, {event_type}.';
    END IF;
    RETURN expression;
END $$;

-- ---------------------------------------------------------------------------------------------
-- Views
-- ---------------------------------------------------------------------------------------------

-- Refuses changes of events, with a hint.
CREATE FUNCTION outbox.refuse_change()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'cannot % events in view "%"', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'object_not_in_prerequisite_state',
              DETAIL = 'The view shows the log of pg_outbox, which delivers the events.',
              HINT = CASE TG_OP
                       WHEN 'UPDATE' THEN 'The view shows the state of each event. Turn off the application''s own publisher.'
                       ELSE 'Events are removed from the log when every destination has received them. Remove the statement.'
                     END;
END $$;

-- Creates a view of the log.
CREATE FUNCTION outbox_internal.make_outbox_view(schema name, name name, layout text, content_type text, topic text, shows text)
RETURNS regclass
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    its       CONSTANT record := outbox_internal.layout(layout);
    topics    CONSTANT text   := coalesce($5, its.topic);
    type      CONSTANT text   := coalesce($4, its.content_type, '');
    shown     CONSTANT text   := concat_ws(' AND ', 'e.topic = ' || outbox_internal.topic_expression(topics), its.shown,
                                           CASE shows WHEN 'published' THEN 'e.published_at IS NOT NULL' END);
    view_name text;
    column_   record;
BEGIN
    IF schema IS NULL THEN
        RAISE EXCEPTION 'no schema has been selected to create the view in'
            USING ERRCODE = 'invalid_schema_name', HINT = 'Write the name with its schema, or set search_path.';
    ELSIF shows IS NULL OR shows NOT IN ('published', 'all') THEN
        RAISE EXCEPTION 'shows must be ''published'' or ''all'''
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF $4 IS NOT NULL AND its.content_type IS NULL THEN
        RAISE EXCEPTION 'payloads of layout "%" are JSON', $3
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave content_type out.';
    ELSIF type <> '' AND NOT outbox_internal.is_content_type(type) THEN
        RAISE EXCEPTION 'content_type is not a media type'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write for example ''application/x-protobuf''.';
    END IF;
    view_name := format('%I.%I', schema, name);
    -- The barrier keeps functions in a reader's conditions from seeing other events.
    EXECUTE (SELECT format('CREATE VIEW %s WITH (security_barrier) AS SELECT %s FROM outbox.event_progress AS e WHERE %s', view_name,
                           string_agg(format('(%s)::%s AS %I', c.shows, c.type, c.name), ', ' ORDER BY c.number), shown)
               FROM outbox_internal.layout_columns($3) AS c);
    FOR column_ IN SELECT * FROM outbox_internal.layout_columns($3) AS c WHERE c.by_default IS NOT NULL LOOP
        EXECUTE format('ALTER VIEW %s ALTER %I SET DEFAULT %s', view_name, column_.name, column_.by_default);
    END LOOP;
    EXECUTE format('CREATE TRIGGER insert_event INSTEAD OF INSERT ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION outbox.insert_event(%L, %L, %L)', view_name, $3, type, topics);
    -- The row trigger replaces an error of the server; without the statement trigger, a statement
    -- that matches no row would not fail.
    EXECUTE format('CREATE TRIGGER refuse_change INSTEAD OF UPDATE OR DELETE ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION outbox.refuse_change()', view_name);
    EXECUTE format('CREATE TRIGGER refuse_statement BEFORE UPDATE OR DELETE ON %s FOR EACH STATEMENT '
                   'EXECUTE FUNCTION outbox.refuse_change()', view_name);
    EXECUTE format('COMMENT ON VIEW %s IS %L', view_name,
                   format('the log of pg_outbox, with the columns of the layout "%s"', $3));
    RETURN view_name::regclass;
END $$;

-- Creates a view of the log for an application that inserts into an outbox table. The template
-- gives its events their topics. `shows` is 'published' or 'all' events of such topics: a publisher
-- of the application's that was not stopped would find the others, and send them again and again
-- because it cannot mark them. The view belongs to the caller, and uses the caller's rights to read
-- the log and to produce topics (outbox.grant_produce()). Roles that insert into it need only INSERT
-- on it.
-- Errors: 22023 no such layout, no such field in topic, content_type where payloads are JSON, or
-- another value of shows; 42P07 the name is taken; 3F000 the name has no schema and search_path is
-- empty.
CREATE FUNCTION outbox.create_outbox_view(
    name         text,
    layout       text DEFAULT 'seed',
    content_type text DEFAULT NULL,
    topic        text DEFAULT NULL,
    shows        text DEFAULT 'published')
RETURNS regclass
LANGUAGE sql VOLATILE
BEGIN ATOMIC -- without a search_path of its own: names without a schema are the caller's
    SELECT outbox_internal.make_outbox_view(
               CASE cardinality(parts) WHEN 1 THEN current_schema() ELSE array_to_string(trim_array(parts, 1), '.')::name END,
               parts[cardinality(parts)]::name, layout, content_type, topic, shows)
      FROM parse_ident(name) AS parts;
END;
