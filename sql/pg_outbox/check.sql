-- Checks whether a destination can be used as it is configured. A background worker uses it as a
-- relay would, but publishes nothing and changes nothing at the destination.

-- Returns events from which the names of topics or queues are made. They are for the given topic,
-- or else for the topics that the option `topics` names without a wildcard. Of the last events of
-- the log, and of those that changes of captured tables will be, they are those that the destination
-- selects. If only the topic is known, the rest is NULL.
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
      FROM (
            (SELECT l.topic, l.aggregate_type, l.event_type
               FROM outbox.event AS l
              ORDER BY l.xid DESC, l.position DESC
              LIMIT 300)
            UNION ALL
            SELECT c.topic, c.aggregate_type, t.event_type
              FROM outbox.captured AS c, unnest(ARRAY[c.insert_type, c.update_type, c.delete_type]) AS t(event_type)
             WHERE c.topic_column IS NULL) AS e
     WHERE CASE
             WHEN looked_for IS NULL
             THEN e.topic LIKE ANY (outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics')))
             ELSE e.topic = looked_for
           END;
END;

-- Checks a destination without publishing anything. Returns one row for each step, in the order in
-- which a relay takes it. The first row that is not ok says what is wrong, and usually ends the
-- check. `topic` is the topic of future events, where that decides which topic or queue of the
-- destination they go to. A check ends after a minute.
-- Errors: 42704 there is no such destination; 53400 no background worker could be started, four
-- checks are running already, or two of this role.
CREATE FUNCTION outbox.check_destination(
    name   text,
    topic  text DEFAULT NULL,
    caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS TABLE (subject text, ok boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    server  oid;
    trouble text;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT d.server INTO server FROM outbox.destination AS d WHERE d.name = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'destination "%" does not exist', $1
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
    END IF;
    RETURN QUERY SELECT * FROM outbox_internal.run_check(server, $2, caller);
    IF outbox_internal.destination_option($1, 'filter') IS NOT NULL OR outbox_internal.destination_option($1, 'payload') IS NOT NULL THEN
        trouble := outbox_internal.expression_trouble($1);
        RETURN QUERY SELECT 'expressions', trouble IS NULL, coalesce(trouble, 'filter and payload can be evaluated');
    END IF;
END $$;
