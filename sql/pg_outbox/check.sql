-- Whether a destination can be used as it is configured, for whoever sets one up. A background worker
-- of its own looks, as the relay would; nothing is published, and nothing changes at the destination.

-- Events that tell which topics or queues a destination needs: the topic to look for, or else those
-- that the option `topics` names without a wildcard, and of the last events of the log those that the
-- destination takes. Where nothing but the topic is known, the rest is NULL.
CREATE FUNCTION outbox_internal.events_to_check(
    destination        name,
    looked_for         text,
    OUT topic          text,
    OUT aggregate_type text,
    OUT event_type     text)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT looked_for, NULL, NULL
     WHERE looked_for IS NOT NULL
    UNION
    SELECT btrim(pattern, E' \t\r\n'), NULL, NULL
      FROM string_to_table(outbox_internal.destination_option(destination, 'topics'), ',') AS pattern
     WHERE looked_for IS NULL AND pattern NOT LIKE '%*%'
    UNION
    SELECT e.topic, e.aggregate_type, e.event_type
      FROM (SELECT * FROM outbox.event ORDER BY xid DESC, position DESC LIMIT 300) AS e
     WHERE CASE
             WHEN looked_for IS NULL
             THEN e.topic LIKE ANY (outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics')))
             ELSE e.topic = looked_for
           END;
END;
COMMENT ON FUNCTION outbox_internal.events_to_check(name, text) IS 'events whose topics or queues a check looks for';

CREATE FUNCTION outbox_internal.run_check(server oid, topic text, OUT subject text, OUT ok boolean, OUT detail text)
RETURNS SETOF record
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_run_check';
COMMENT ON FUNCTION outbox_internal.run_check(oid, text) IS 'has a background worker check a destination';

-- One row for each step, in the order in which a relay would take it; the first that is not ok says
-- what is wrong and mostly ends the check. `topic`: what events to come will have, where that decides
-- which topic or queue of the destination they go to.
-- Errors: 42704 there is no such destination; 53400 no background worker could be started.
CREATE FUNCTION outbox.check_destination(name text, topic text DEFAULT NULL)
RETURNS TABLE (subject text, ok boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    server oid;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT d.server INTO server FROM outbox.destination AS d WHERE d.name = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'destination "%" does not exist', $1
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
    END IF;
    RETURN QUERY SELECT * FROM outbox_internal.run_check(server, $2);
END $$;
COMMENT ON FUNCTION outbox.check_destination(text, text) IS
    'tells what is wrong with a destination, without publishing anything';
