-- The arguments of the trigger are the layout, the content type of payloads that are bytes, and the
-- template for topics. The columns must have the types of the layout: values of other types would
-- be converted by casts of other roles, with the rights of this function.
CREATE FUNCTION outbox_internal.check_view_row(view regclass, layout text, "row" jsonb, names jsonb)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    name CONSTANT name := (SELECT c.relname FROM pg_class AS c WHERE c.oid = view);
    schema CONSTANT name := (SELECT n.nspname FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = view);
    column_ record;
BEGIN
    FOR column_ IN
        SELECT l.name, l.given, l.by_default, "row" -> l.name::text AS value FROM outbox_internal.layout_columns(layout) AS l ORDER BY l.number
    LOOP
        IF column_.value = 'null' THEN
            CONTINUE WHEN NOT column_.given AND column_.by_default IS NULL OR layout = 'debezium' AND column_.name = 'payload';
            RAISE EXCEPTION 'null value in column "%" of view "%"', names ->> column_.name::text, name
                USING ERRCODE = 'not_null_violation', SCHEMA = schema, TABLE = name, COLUMN = names ->> column_.name::text,
                      DETAIL = 'The column must have a value, as in the table that the view stands for.';
        ELSIF column_.given OR column_.value = '0' OR column_.value = '"pending"' AND column_.name = 'state' THEN
            CONTINUE WHEN column_.given OR column_.by_default IS NOT NULL;
        END IF;
        RAISE EXCEPTION 'cannot insert a value into column "%" of view "%"', names ->> column_.name::text, name
            USING ERRCODE = 'generated_always', SCHEMA = schema, TABLE = name, COLUMN = names ->> column_.name::text,
                  DETAIL = CASE WHEN layout = 'cqrs' AND column_.name = 'id' THEN 'It is the position of the event in the log, given to it here.'
                                ELSE 'It says what became of the event, which is not delivered yet.' END,
                  HINT = CASE WHEN layout = 'cqrs' AND column_.name = 'id' THEN 'Leave the column out, and get its value with RETURNING.'
                              ELSE 'Leave the column out. An event that need not be delivered need not be inserted.' END;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.check_view_row(regclass, text, jsonb, jsonb) IS 'refuses rows that a view of the log cannot take';

-- Returns the names of the columns of a view in the order of the layout; NULL if it does not have the
-- types of the layout. Columns may have been renamed.
CREATE FUNCTION outbox_internal.names_in_view(view regclass, layout text)
RETURNS jsonb
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE WHEN bool_and((a.atttypid = l.type::regtype) IS TRUE) THEN jsonb_object_agg(coalesce(l.name, ''), a.attname) END
      FROM (SELECT * FROM pg_attribute WHERE attrelid = view AND attnum > 0) AS a
      FULL JOIN outbox_internal.layout_columns(layout) AS l ON l.number = a.attnum;
END;

-- Enqueues an event for a row inserted into a view of the log.
CREATE FUNCTION outbox.insert_event()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    layout       CONSTANT text := TG_ARGV[0];
    names        jsonb;
    "row"        jsonb;
    payload_name text;
    has_payload  boolean;
    type         text;
    event_type   text;
    bytes        bytea;
BEGIN
    IF TG_WHEN <> 'INSTEAD OF' OR TG_OP <> 'INSERT' OR TG_NARGS <> 3 THEN
        RAISE EXCEPTION 'outbox.insert_event() must be fired INSTEAD OF INSERT, with a layout, a content type and a topic as arguments'
            USING ERRCODE = 'trigger_protocol_violated';
    END IF;
    names := outbox_internal.names_in_view(TG_RELID, layout);
    IF names IS NULL AND NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = TG_RELID) THEN
        RAISE EXCEPTION 'could not serialize access, because view "%" was made after the transaction began', TG_TABLE_NAME
            USING ERRCODE = 'serialization_failure', HINT = 'The transaction might succeed if retried.';
    ELSIF names IS NULL THEN
        RAISE EXCEPTION 'view "%" does not have the columns of the layout "%"', TG_TABLE_NAME, layout
            USING ERRCODE = 'datatype_mismatch', HINT = 'Make it with outbox.create_outbox_view().';
    END IF;
    "row" := to_jsonb(NEW);
    "row" := (SELECT jsonb_object_agg(n.key, "row" -> n.value) FROM jsonb_each_text(names) AS n);
    payload_name := CASE layout WHEN 'tutorial' THEN 'message' ELSE 'payload' END;
    has_payload := "row" ->> payload_name IS NOT NULL;
    IF NOT has_payload THEN -- null, or the null of JSON
        EXECUTE format('SELECT ($1).%I IS NOT NULL', names ->> payload_name) INTO has_payload USING NEW;
    END IF;
    PERFORM outbox_internal.check_view_row(TG_RELID, layout, CASE WHEN has_payload THEN "row" || jsonb_build_object(payload_name, true) ELSE "row" END,
                                           names);
    type := CASE layout WHEN 'tutorial' THEN split_part("row" ->> 'topic', '.', 1)
                        ELSE coalesce("row" ->> 'aggregate_type', "row" ->> 'aggregatetype') END;
    event_type := coalesce("row" ->> 'event_type', "row" ->> 'type', "row" ->> 'topic');
    IF layout = 'seed' THEN
        bytes := ("row" ->> 'payload')::bytea;
        PERFORM outbox_internal.check_payload(TG_ARGV[1], bytes);
    ELSIF has_payload THEN
        bytes := convert_to(("row" -> payload_name)::text, 'UTF8');
    END IF;
    PERFORM outbox_internal.put_event(
        type, CASE layout WHEN 'tutorial' THEN "row" ->> 'id' ELSE coalesce("row" ->> 'aggregate_id', "row" ->> 'aggregateid') END,
        event_type, CASE layout WHEN 'seed' THEN TG_ARGV[1] ELSE 'application/json' END, bytes, ("row" ->> 'version')::bigint,
        array_to_string(ARRAY(SELECT replace(part, '{event_type}', event_type)
                                FROM unnest(string_to_array(TG_ARGV[2], '{aggregate_type}')) WITH ORDINALITY AS p(part, n) ORDER BY n), type),
        CASE layout WHEN 'tutorial' THEN '' END, NULL, ("row" ->> 'schema_version')::integer,
        CASE WHEN layout <> 'cqrs' THEN ("row" ->> 'id')::uuid END, NULL,
        coalesce("row" ->> 'occurred_at', "row" ->> 'created_at')::timestamptz,
        (SELECT pg_get_userbyid(c.relowner) FROM pg_class AS c WHERE c.oid = TG_RELID));
    IF layout = 'cqrs' THEN
        NEW := jsonb_populate_record(NEW, jsonb_build_object(names ->> 'id', currval('outbox.event_position')));
    END IF;
    RETURN NEW;
END $$;
