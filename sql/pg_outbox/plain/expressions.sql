-- Expressions of destinations: the options filter and payload of outbox.destination_config. They run
-- as the owner of this table, which owns all of pg_outbox, so only that role may set them. They may
-- only read: each run is a subtransaction that is read-only and always rolled back, as in the
-- extension (native/expressions.sql). OBX00 is the SQLSTATE by which such a subtransaction ends.

-- The payload that a result stands for, and its content type. There is a function for each type
-- that the option payload may have.
CREATE FUNCTION outbox_internal.payload_bytes(result jsonb) RETURNS bytea
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC SELECT convert_to(result::text, 'UTF8'); END;
CREATE FUNCTION outbox_internal.payload_bytes(result json) RETURNS bytea
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC SELECT convert_to(result::text, 'UTF8'); END;
CREATE FUNCTION outbox_internal.payload_bytes(result text) RETURNS bytea
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC SELECT convert_to(result, 'UTF8'); END;
CREATE FUNCTION outbox_internal.payload_bytes(result bytea) RETURNS bytea
LANGUAGE sql STABLE STRICT PARALLEL SAFE
BEGIN ATOMIC SELECT result; END;
COMMENT ON FUNCTION outbox_internal.payload_bytes(jsonb) IS 'a result of the option payload as bytes';
COMMENT ON FUNCTION outbox_internal.payload_bytes(json) IS 'a result of the option payload as bytes';
COMMENT ON FUNCTION outbox_internal.payload_bytes(text) IS 'a result of the option payload as bytes';
COMMENT ON FUNCTION outbox_internal.payload_bytes(bytea) IS 'a result of the option payload as bytes';

CREATE FUNCTION outbox_internal.payload_type(result jsonb, content_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC SELECT CASE WHEN result IS NULL THEN content_type ELSE 'application/json' END; END;
CREATE FUNCTION outbox_internal.payload_type(result json, content_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC SELECT CASE WHEN result IS NULL THEN content_type ELSE 'application/json' END; END;
CREATE FUNCTION outbox_internal.payload_type(result text, content_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC SELECT content_type; END;
CREATE FUNCTION outbox_internal.payload_type(result bytea, content_type text) RETURNS text
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC SELECT content_type; END;
COMMENT ON FUNCTION outbox_internal.payload_type(jsonb, text) IS 'content type of a result of the option payload';
COMMENT ON FUNCTION outbox_internal.payload_type(json, text) IS 'content type of a result of the option payload';
COMMENT ON FUNCTION outbox_internal.payload_type(text, text) IS 'content type of a result of the option payload';
COMMENT ON FUNCTION outbox_internal.payload_type(bytea, text) IS 'content type of a result of the option payload';

-- Refuses an expression that a destination cannot have. The parser of the server says what it is: a
-- function with this body is created, and its parse tree looked at.
CREATE FUNCTION outbox_internal.check_expression(option text, expression text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    name CONSTANT text := 'expression_' || replace(gen_random_uuid()::text, '-', ''); -- found nowhere else
    tree text;
    what text;
BEGIN
    IF NOT pg_has_role(current_user, (SELECT t.relowner FROM pg_class AS t WHERE t.oid = 'outbox.destination_config'::regclass), 'USAGE') THEN
        RAISE EXCEPTION 'permission denied to set option "%"', option
            USING ERRCODE = 'insufficient_privilege',
                  DETAIL = 'It is code that runs with the rights of the owner of pg_outbox.', HINT = 'Let that role set it.';
    ELSIF btrim(expression, E' \t\r\n') = '' THEN
        RAISE EXCEPTION 'option "%" must not be empty', option
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Omit the option if you do not need it.';
    END IF;
    BEGIN
        EXECUTE format('CREATE FUNCTION outbox_internal.%I(event_id uuid, topic text, aggregate_type text, aggregate_id text, event_type text,
                            version bigint, schema_version integer, ordering_key text, content_type text, payload jsonb, headers jsonb,
                            occurred_at timestamptz, source_event_id uuid, "position" bigint)
                        RETURNS %s LANGUAGE sql BEGIN ATOMIC SELECT %s; END', name,
                       CASE option WHEN 'filter' THEN 'boolean' ELSE 'bytea' END,
                       CASE option WHEN 'filter' THEN format(E'((%s\n)) IS TRUE', expression)
                                   ELSE format(E'outbox_internal.payload_bytes((%s\n))', expression) END);
        SELECT p.prosqlbody::text INTO tree FROM pg_proc AS p WHERE p.proname = name;
        RAISE EXCEPTION USING ERRCODE = 'OBX00', MESSAGE = 'rolled back';
    EXCEPTION
        WHEN SQLSTATE 'OBX00' THEN
        WHEN undefined_function THEN
            IF SQLERRM LIKE '%payload_bytes%' THEN
                RAISE EXCEPTION 'option "payload" must be of type jsonb, json, text or bytea, not %',
                                substring(SQLERRM FROM 'payload_bytes\((.*)\)') USING ERRCODE = 'datatype_mismatch';
            END IF;
            RAISE EXCEPTION USING MESSAGE = SQLERRM, ERRCODE = SQLSTATE, HINT = format('Correct the option "%s".', option);
        WHEN syntax_error_or_access_rule_violation OR data_exception OR feature_not_supported THEN
            RAISE EXCEPTION USING MESSAGE = replace(SQLERRM, 'argument of IS TRUE', format('argument of option "%s"', option)),
                                  ERRCODE = SQLSTATE, HINT = format('Correct the option "%s".', option);
    END;
    what := CASE WHEN tree LIKE '%:hasSubLinks true%' THEN 'subqueries'
                 WHEN tree LIKE '%:hasAggs true%' THEN 'aggregate functions'
                 WHEN tree LIKE '%:hasWindowFuncs true%' THEN 'window functions'
                 WHEN tree LIKE '%:hasTargetSRFs true%' THEN 'set-returning functions' END;
    IF what IS NOT NULL THEN
        RAISE EXCEPTION '% are not allowed in option "%"', what, option
            USING ERRCODE = 'feature_not_supported',
                  HINT = concat('It is an expression over the columns of one event.',
                                CASE what WHEN 'subqueries' THEN ' Put the query into a function that is STABLE and PARALLEL SAFE.' END);
    ELSIF tree NOT LIKE '%:rtable <>%' OR (SELECT count(*) FROM regexp_matches(tree, '\{QUERY ', 'g')) <> 1 THEN
        RAISE EXCEPTION 'option "%" is not a single expression', option USING ERRCODE = 'syntax_error';
    END IF;
    SELECT format('Function %s is not.', p.oid::regprocedure) INTO what
      FROM regexp_matches(tree, ':(?:funcid|opfuncid) (\d+)', 'g') AS f
      JOIN pg_proc AS p ON p.oid = f[1]::oid
     WHERE p.provolatile = 'v' OR p.proparallel <> 's'
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'functions in option "%" must be STABLE or IMMUTABLE, and PARALLEL SAFE', option
            USING ERRCODE = 'invalid_object_definition', DETAIL = what,
                  HINT = 'It is evaluated for each event, by a process that only reads.';
    END IF;
END $$;

-- Returns the query that applies the expressions of a destination to the events of its parameter.
CREATE FUNCTION outbox_internal.expression_query(destination name)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT format('SELECT array_agg(ROW(e.position, e.xid, e.occurred_at, e.event_id, e.version, e.schema_version, e.source_event_id,
                          e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key, %s, e.headers, %s,
                          e.only_to)::outbox.event ORDER BY e.position)
          FROM unnest($1) AS e
         CROSS JOIN LATERAL (
            SELECT %s AS result
              FROM (SELECT e.event_id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.version, e.schema_version,
                           e.ordering_key, e.content_type,
                           CASE WHEN lower(btrim(split_part(e.content_type, '';'', 1))) LIKE ANY (ARRAY[''application/json'', ''%%+json''])
                                THEN convert_from(e.payload, ''UTF8'')::jsonb END AS payload,
                           e.headers, e.occurred_at, e.source_event_id, e.position OFFSET 0) AS event
             WHERE %s
            OFFSET 0) AS r',
        CASE WHEN o.payload IS NULL THEN 'e.content_type' ELSE 'outbox_internal.payload_type(r.result, e.content_type)' END,
        CASE WHEN o.payload IS NULL THEN 'e.payload' ELSE 'outbox_internal.payload_bytes(r.result)' END,
        coalesce('(' || o.payload || E'\n)', 'NULL::text'), coalesce('(' || o.filter || E'\n)', 'true'))
      FROM (SELECT outbox_internal.destination_option(destination, 'filter'),
                   outbox_internal.destination_option(destination, 'payload')) AS o(filter, payload);
END;

-- Applies expressions to events. Runs the query for all events at once. If that fails, it halves
-- them until the event is alone for which an expression fails. A timeout ends a statement once, so
-- with several events it is an error: the relay asks for fewer.
CREATE FUNCTION outbox_internal.apply_query(query text, options text, events outbox.event[], OUT event outbox.event, OUT fault text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    half    CONSTANT integer := cardinality(events) / 2;
    changed outbox.event[];
    error   text;
BEGIN
    BEGIN
        PERFORM set_config('transaction_read_only', 'on', true);
        EXECUTE query INTO changed USING events;
        RAISE EXCEPTION USING ERRCODE = 'OBX00', MESSAGE = 'rolled back';
    EXCEPTION
        WHEN SQLSTATE 'OBX00' THEN
            RETURN QUERY SELECT (c::outbox.event), NULL::text FROM unnest(changed) AS c;
            RETURN;
        WHEN query_canceled THEN
            IF cardinality(events) > 1
               OR clock_timestamp() < statement_timestamp() + make_interval(secs => outbox_internal.setting_number('expression_timeout') / 1000.0) THEN
                RAISE;
            END IF;
            error := format('it took longer than expression_timeout (%s)', outbox_internal.setting('expression_timeout'));
        WHEN OTHERS OR assert_failure THEN
            error := SQLERRM;
    END;
    IF cardinality(events) > 1 THEN
        RETURN QUERY SELECT * FROM outbox_internal.apply_query(query, options, events[:half]);
        RETURN QUERY SELECT * FROM outbox_internal.apply_query(query, options, events[half + 1:]);
    ELSE
        event := events[1];
        fault := left(options || ': ' || error, 1000);
        RETURN NEXT;
    END IF;
END $$;

-- Returns those of the events that the filter selects, in their order, with what the option payload
-- makes of them. An event with a `fault` cannot be sent: that is the error of an expression. An error
-- that concerns all events, such as a function that is gone, is raised.
CREATE FUNCTION outbox_internal.apply_expressions(destination name, events outbox.event[], OUT event outbox.event, OUT fault text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    query   CONSTANT text := outbox_internal.expression_query(destination);
    options CONSTANT text := concat_ws(' or ', CASE WHEN outbox_internal.destination_option(destination, 'filter') IS NOT NULL THEN 'filter' END,
                                       CASE WHEN outbox_internal.destination_option(destination, 'payload') IS NOT NULL THEN 'payload' END);
BEGIN
    EXECUTE query USING '{}'::outbox.event[];
    RETURN QUERY SELECT * FROM outbox_internal.apply_query(query, options, events);
END $$;

-- Returns why the expressions of a destination cannot be evaluated; NULL if they can.
CREATE FUNCTION outbox_internal.expression_trouble(destination name)
RETURNS text
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.apply_expressions(destination, '{}');
    RETURN NULL;
EXCEPTION WHEN OTHERS THEN
    RETURN SQLERRM;
END $$;

-- Expressions are code of the role that owns all of pg_outbox.
CREATE FUNCTION outbox_internal.may_evaluate(destination name, role name)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT pg_has_role(may_evaluate.role, c.relowner, 'USAGE') AND NOT (r.rolsuper AND NOT o.rolsuper)
      FROM pg_class AS c
      JOIN pg_roles AS o ON o.oid = c.relowner
     CROSS JOIN pg_roles AS r
     WHERE c.oid = 'outbox.destination_config'::regclass AND r.rolname = may_evaluate.role;
END;
COMMENT ON FUNCTION outbox_internal.may_evaluate(name, name) IS 'returns whether expressions of a destination may run in a session of this role';
