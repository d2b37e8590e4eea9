-- Endpoints: a destination with the url 'endpoints:' delivers each event to all endpoints that select
-- it, such as the webhooks of its subscribers. They are rows of this table. lib/core/endpoints.hpp
-- says how a relay serves them.
--
-- An endpoint that is live costs the database nothing. One in trouble is *behind*: it is like a pull
-- destination (pull.sql) with the name <server>/<endpoint>, under which it has a row in outbox.cursor,
-- batches, and events in outbox.delivery. The relay of the server takes its events from there
-- (ask_endpoints.sql) until it has caught up; then that row is removed.
--
-- All endpoints of a server have one lock: its row of outbox.cursor, which operators and the relay
-- take first, as in pull.sql. A relay waits for no lock of a row of outbox.endpoint, because a
-- transaction that writes rows may stay open.
CREATE TABLE outbox.endpoint (
    server      name        NOT NULL,
    name        name        NOT NULL,
    url         text        NOT NULL,
    topics      text        NOT NULL DEFAULT '*',
    secret_name text,
    paused      boolean     NOT NULL DEFAULT false,
    tenant      text,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    changed_by  xid8        NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (server, name),
    -- A comma, or space around it, would make it another name in secret_name.
    CONSTRAINT endpoint_name_check CHECK (name::text ~ '^[^/,[:cntrl:][:space:]]([^/,[:cntrl:]]*[^/,[:cntrl:][:space:]])?$'),
    CONSTRAINT endpoint_length_check CHECK (octet_length(server::text) + octet_length(name::text) < 63),
    -- Credentials in a URL would be readable by others.
    CONSTRAINT endpoint_url_check CHECK (url ~* '^https?://[^/?#@[:space:][:cntrl:]]+([/?#][^[:space:][:cntrl:]]*)?$'
                                         AND octet_length(url) <= 4096),
    CONSTRAINT endpoint_topics_check CHECK (octet_length(topics) <= 4096),
    CONSTRAINT endpoint_secret_name_check CHECK (secret_name ~ '^[^[:cntrl:]]+$' AND octet_length(secret_name) <= 1024),
    CONSTRAINT endpoint_tenant_check CHECK (octet_length(tenant) <= 1024)
);
COMMENT ON TABLE outbox.endpoint IS 'endpoints of destinations with the url endpoints:; a row decides where the database server connects, as CREATE SERVER does';
COMMENT ON COLUMN outbox.endpoint.server IS 'name of the destination; follows a rename';
COMMENT ON COLUMN outbox.endpoint.name IS 'name of the endpoint; <server>/<name> is its name in functions and views';
COMMENT ON COLUMN outbox.endpoint.url IS 'address, with http or https';
COMMENT ON COLUMN outbox.endpoint.topics IS 'topics that it takes, of those that the destination takes; as the option topics';
COMMENT ON COLUMN outbox.endpoint.secret_name IS 'name from which its secret is derived, or two separated by a comma that both sign; null for the name of the endpoint. See outbox.endpoint_secret()';
COMMENT ON COLUMN outbox.endpoint.paused IS 'true if it gets nothing; its events are kept';
COMMENT ON COLUMN outbox.endpoint.tenant IS 'any text by which rows can be selected';
COMMENT ON COLUMN outbox.endpoint.created_at IS 'when the row was inserted; the endpoint gets events that are committed later';
COMMENT ON COLUMN outbox.endpoint.changed_by IS 'transaction that changed the row last, or made a decision about its events';

CREATE INDEX endpoint_changed ON outbox.endpoint (server, changed_by);
COMMENT ON INDEX outbox.endpoint_changed IS 'finds what a relay does not know yet';

-- What relays keep about endpoints. It is apart from outbox.endpoint because they must not wait for
-- transactions that change rows there.
CREATE TABLE outbox.endpoint_state (
    destination     name        PRIMARY KEY,
    since           pg_snapshot,
    known           boolean     NOT NULL DEFAULT false,
    failing_since   timestamptz,
    last_error      text,
    next_attempt_at timestamptz,
    inserted_by     xid8        NOT NULL DEFAULT pg_current_xact_id()
);
COMMENT ON TABLE outbox.endpoint_state IS 'state of endpoints';
COMMENT ON COLUMN outbox.endpoint_state.destination IS '<server>/<name> of the endpoint';
COMMENT ON COLUMN outbox.endpoint_state.since IS 'while it is live: it has the events of all transactions that had finished in this snapshot, or does not get them; null for none';
COMMENT ON COLUMN outbox.endpoint_state.known IS 'whether a relay has been told of it';
COMMENT ON COLUMN outbox.endpoint_state.failing_since IS 'since when it fails; null if it works';
COMMENT ON COLUMN outbox.endpoint_state.last_error IS 'error of the last failed attempt';
COMMENT ON COLUMN outbox.endpoint_state.next_attempt_at IS 'time of the next attempt, if it fails';
COMMENT ON COLUMN outbox.endpoint_state.inserted_by IS 'transaction that inserted the row, to detect a row restored from a dump';

CREATE INDEX endpoint_state_new ON outbox.endpoint_state (destination) WHERE NOT known;
COMMENT ON INDEX outbox.endpoint_state_new IS 'finds endpoints that no relay knows';

-- The policies are in endpoint_policy.sql. Without any, as in the SQL edition, only the owner of the table
-- may use it.
ALTER TABLE outbox.endpoint ENABLE ROW LEVEL SECURITY;

-- ------------------------------------------------------------------------------------------------
-- Names
-- ------------------------------------------------------------------------------------------------

-- These functions are called for each endpoint. In PL/pgSQL their plans are kept.

-- Returns the endpoint with a name <server>/<name>; NULL if there is none.
CREATE FUNCTION outbox_internal.endpoint_of(destination name)
RETURNS outbox.endpoint
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found outbox.endpoint;
BEGIN
    IF strpos(destination::text, '/') > 0 THEN
        SELECT e.* INTO found FROM outbox.endpoint AS e
         WHERE e.server = split_part(destination::text, '/', 1)::name AND e.name = split_part(destination::text, '/', 2)::name
           AND e.server || '/' || e.name = destination;
    END IF;
    RETURN found;
END $$;

-- Returns the destination of an endpoint. For a destination it returns its own name.
CREATE FUNCTION outbox_internal.server_of(destination name)
RETURNS name
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN coalesce((outbox_internal.endpoint_of(destination)).server, destination);
END $$;

-- Returns whether a name is that of an endpoint.
CREATE FUNCTION outbox_internal.is_endpoint(destination name)
RETURNS boolean
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN outbox_internal.server_of(destination) <> destination;
END $$;

-- Returns the topics of an endpoint as patterns of LIKE. It gets events that these select, and the
-- option `topics` of its destination as well. For a destination they select all.
CREATE FUNCTION outbox_internal.endpoint_patterns(destination name)
RETURNS text[]
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN outbox_internal.topic_patterns((outbox_internal.endpoint_of(destination)).topics);
END $$;

-- Returns the number that outbox.event.only_to has for a destination, and for its endpoints.
CREATE FUNCTION outbox_internal.destination_number(destination name)
RETURNS integer
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_server CONSTANT name := outbox_internal.server_of(destination);
BEGIN
    RETURN (SELECT c.number FROM outbox.cursor AS c WHERE c.destination = own_server);
END $$;

-- ------------------------------------------------------------------------------------------------
-- Changes of rows
-- ------------------------------------------------------------------------------------------------

-- Refuses endpoints that are not valid.
-- Errors: 42704 there is no such destination; 55000 it has no endpoints; 42710 the name is that of a
-- destination; 0A000 the key is changed; 22023 topics are not valid.
CREATE FUNCTION outbox_internal.check_endpoint()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF TG_OP = 'UPDATE' THEN
        -- When a row follows a renamed server, the old name does not exist any more.
        IF NEW.name <> OLD.name
           OR NEW.server <> OLD.server AND EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = OLD.server) THEN
            RAISE EXCEPTION 'endpoint "%/%" cannot be renamed', OLD.server, OLD.name
                USING ERRCODE = 'feature_not_supported',
                      HINT = 'Insert another endpoint, and delete this one when it has nothing to deliver any more.';
        END IF;
    ELSIF NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = NEW.server) THEN
        RAISE EXCEPTION 'destination "%" does not exist', NEW.server
            USING ERRCODE = 'undefined_object', HINT = format('%s with the url ''endpoints:''.', outbox_internal.how_to_make_destination());
    ELSIF EXISTS (SELECT FROM outbox.destination AS d WHERE d.name::text = NEW.server || '/' || NEW.name) THEN
        RAISE EXCEPTION 'there is a destination "%/%"', NEW.server, NEW.name
            USING ERRCODE = 'duplicate_object', HINT = 'Give the endpoint another name.';
    END IF;
    IF TG_OP = 'INSERT' OR NEW.server <> OLD.server THEN
        PERFORM outbox_internal.check_has_endpoints(NEW.server);
    END IF;
    PERFORM outbox_internal.check_topics(NEW.topics);
    -- A relay could not read the row, nor those beside it.
    IF NOT outbox_internal.is_readable(concat_ws(E'\n', NEW.name, NEW.url, NEW.topics, NEW.secret_name, NEW.tenant)) THEN
        RAISE EXCEPTION 'a text of an endpoint has no form in UTF-8' USING ERRCODE = 'untranslatable_character';
    END IF;
    NEW.changed_by := pg_current_xact_id();
    RETURN NEW;
END $$;

-- Returns whether a destination has endpoints.
CREATE FUNCTION outbox_internal.has_endpoints(destination name)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(outbox_internal.destination_option(destination, 'url') ~* E'^\\s*endpoints:', false)
       AND EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = destination);
END;

-- A slash in the name of the destination would make names of endpoints ambiguous.
CREATE FUNCTION outbox_internal.check_has_endpoints(server name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT outbox_internal.has_endpoints(server) THEN
        RAISE EXCEPTION 'destination "%" has no endpoints', server
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'Rows of outbox.endpoint belong to a destination with the url ''endpoints:''.';
    ELSIF strpos(server::text, '/') > 0 THEN
        RAISE EXCEPTION 'a destination with a slash in its name can have no endpoints'
            USING ERRCODE = 'object_not_in_prerequisite_state', DETAIL = format('The destination is "%s".', server), HINT = 'Rename it.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_has_endpoints(name) IS 'refuses a destination that cannot have endpoints';

-- Refuses to change a destination with endpoints into one without.
CREATE FUNCTION outbox_internal.check_keeps_endpoints(server name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox.endpoint AS e WHERE e.server = check_keeps_endpoints.server) THEN
        PERFORM outbox_internal.check_has_endpoints(server);
    END IF;
END $$;

CREATE TRIGGER check_endpoint BEFORE INSERT OR UPDATE ON outbox.endpoint
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.check_endpoint();
ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER check_endpoint;
COMMENT ON TRIGGER check_endpoint ON outbox.endpoint IS 'refuses endpoints that are not valid';

-- A new endpoint gets what its own transaction and later ones commit. The snapshot of the row says
-- which these are, however late a relay is told of it. A restored endpoint has a state already, or
-- gets it when that is restored.
CREATE FUNCTION outbox_internal.add_endpoints()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO outbox.endpoint_state (destination, since)
    SELECT a.server || '/' || a.name, s.now
      FROM added AS a
     CROSS JOIN (SELECT outbox_internal.finished_by_now()) AS s(now)
        ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.add_endpoints() IS 'notes which events new endpoints do not get';

CREATE TRIGGER add_endpoints AFTER INSERT ON outbox.endpoint
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.add_endpoints();
ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER add_endpoints;
COMMENT ON TRIGGER add_endpoints ON outbox.endpoint IS 'notes which events new endpoints do not get';

-- Removes what belongs to endpoints that are gone.
CREATE FUNCTION outbox_internal.remove_endpoints()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    names CONSTANT name[] := ARRAY(SELECT (r.server || '/' || r.name)::name FROM removed AS r);
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM FROM outbox.cursor AS c
      WHERE c.destination IN (SELECT r.server FROM removed AS r)
      ORDER BY c.destination FOR UPDATE;
    DELETE FROM outbox.cursor AS c WHERE c.destination = ANY (names);
    DELETE FROM outbox.batch AS b WHERE b.destination = ANY (names);
    DELETE FROM outbox.delivery AS d WHERE d.destination = ANY (names);
    DELETE FROM outbox.endpoint_state AS s WHERE s.destination = ANY (names);
    RETURN NULL;
END $$;

CREATE TRIGGER remove_endpoints AFTER DELETE ON outbox.endpoint
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.remove_endpoints();
ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER remove_endpoints;
COMMENT ON TRIGGER remove_endpoints ON outbox.endpoint IS 'removes the events of endpoints that are gone';

-- Deletes an endpoint with its events. It is for roles without the privilege to delete rows, see
-- outbox_internal.privileges_of_right(). Returns false if there is no such endpoint.
-- Errors: 42501 the role does not own the destination.
CREATE FUNCTION outbox.delete_endpoint(server name, endpoint name, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.check_owns_destination(server, caller);
    DELETE FROM outbox.endpoint AS e WHERE e.server = delete_endpoint.server AND e.name = delete_endpoint.endpoint;
    RETURN FOUND;
END $$;

-- Tells relays that endpoints have changed.
CREATE FUNCTION outbox_internal.follow_endpoints()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.wake_relays();
    PERFORM outbox_internal.tell_relays();
    RETURN NULL;
END $$;

CREATE TRIGGER follow_endpoints AFTER INSERT OR UPDATE OR DELETE ON outbox.endpoint
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.follow_endpoints();
COMMENT ON TRIGGER follow_endpoints ON outbox.endpoint IS 'tells relays that endpoints have changed';

-- Refuses TRUNCATE, which would keep the events of endpoints.
CREATE FUNCTION outbox_internal.refuse_truncate_of_endpoints()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'cannot truncate table outbox.endpoint'
        USING ERRCODE = 'feature_not_supported', HINT = 'Use DELETE.';
END $$;

CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON outbox.endpoint
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.refuse_truncate_of_endpoints();
COMMENT ON TRIGGER refuse_truncate ON outbox.endpoint IS 'refuses TRUNCATE, which would keep the events of endpoints';

-- A restored snapshot says nothing about transactions of this cluster. Without it, the endpoint gets
-- everything that its destination has not settled, some of it perhaps once more.
CREATE FUNCTION outbox_internal.adopt_endpoint_state()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    DELETE FROM outbox.endpoint_state AS s WHERE s.destination = NEW.destination; -- it came with the endpoint
    NEW.since := NULL;
    NEW.inserted_by := pg_current_xact_id();
    RETURN NEW;
END $$;
COMMENT ON FUNCTION outbox_internal.adopt_endpoint_state() IS 'adapts the restored state of an endpoint to this database';

CREATE TRIGGER adopt_endpoint_state BEFORE INSERT ON outbox.endpoint_state
    FOR EACH ROW WHEN (NEW.inserted_by <> pg_current_xact_id()) EXECUTE FUNCTION outbox_internal.adopt_endpoint_state();
ALTER TABLE outbox.endpoint_state ENABLE ALWAYS TRIGGER adopt_endpoint_state;
COMMENT ON TRIGGER adopt_endpoint_state ON outbox.endpoint_state IS 'adapts the restored state of an endpoint to this database';

-- Refuses names that no destination and no endpoint has.
-- Errors: 42704 there is no such destination or endpoint.
CREATE FUNCTION outbox_internal.check_exists(destination name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = destination) OR outbox_internal.is_endpoint(destination) THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM outbox.destination AS d
                   WHERE d.name = split_part(destination::text, '/', 1)::name AND outbox_internal.has_endpoints(d.name)) THEN
        RAISE EXCEPTION 'endpoint "%" does not exist', destination
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.endpoint_status lists all endpoints.';
    END IF;
    RAISE EXCEPTION 'destination "%" does not exist', destination
        USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
END $$;

-- Makes the relay look at an endpoint again, after a decision about its events. Returns false if there
-- is none of this name.
CREATE FUNCTION outbox_internal.touch_endpoint(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE outbox.endpoint AS e SET changed_by = pg_current_xact_id()
     WHERE e.server = split_part(destination::text, '/', 1)::name AND e.name = split_part(destination::text, '/', 2)::name;
    RETURN FOUND;
END $$;

-- When a destination is renamed, its endpoints are as well.
CREATE FUNCTION outbox_internal.rename_endpoints(old name, new name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    endpoint name;
    before   name;
    after    name;
BEGIN
    FOR endpoint IN UPDATE outbox.endpoint AS e SET server = new WHERE e.server = old RETURNING e.name LOOP
        before := old || '/' || endpoint;
        after := new || '/' || endpoint;
        UPDATE outbox.endpoint_state AS s SET destination = after WHERE s.destination = before;
        PERFORM outbox_internal.keep_fetchers_out(before);
        UPDATE outbox.cursor AS c SET destination = after WHERE c.destination = before;
        UPDATE outbox.batch AS b SET destination = after WHERE b.destination = before;
        UPDATE outbox.delivery AS d SET destination = after WHERE d.destination = before;
        UPDATE outbox.operation AS o SET destination = after WHERE o.destination = before;
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.rename_endpoints(name, name) IS 'makes endpoints follow their renamed destination';
