-- Finds destinations whose option `topics` is misspelt. Such an option is valid, but no event
-- arrives.

-- Returns the topics in use: of the last 10,000 events, the latest first, and of captured tables.
-- NULL for a captured table whose topics are in a column.
CREATE FUNCTION outbox_internal.topics_in_use()
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
BEGIN ATOMIC
    (SELECT last.topic
       FROM (SELECT e.topic, e.xid, e.position FROM outbox.event AS e ORDER BY e.xid DESC, e.position DESC LIMIT 10000) AS last
      GROUP BY last.topic
      ORDER BY max(last.xid) DESC, max(last.position) DESC)
    UNION ALL
    SELECT CASE WHEN c.topic_column IS NULL THEN c.topic END FROM outbox.captured AS c;
END;

-- Returns whether topics are in use, and a destination selects none of them. A topic that a role was
-- granted counts as selected, because its events may come.
CREATE FUNCTION outbox.selects_nothing(destination name)
RETURNS boolean
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    selected CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics'));
    in_use   text[];
BEGIN
    IF '%' = ANY (selected)
       OR EXISTS (SELECT FROM outbox.producer AS p, string_to_table(p.topics, ',') AS granted
                   WHERE btrim(granted, E' \t\r\n') LIKE ANY (selected)) THEN
        RETURN false;
    END IF;
    in_use := ARRAY(SELECT * FROM outbox_internal.topics_in_use());
    RETURN in_use <> '{}' AND NOT EXISTS (SELECT FROM unnest(in_use) AS topic WHERE topic IS NULL OR topic LIKE ANY (selected));
END $$;

-- Warns if the option topics of a destination fits no event seen and no captured table.
CREATE FUNCTION outbox_internal.warn_of_unknown_topics(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox.selects_nothing(destination) THEN
        RAISE WARNING 'no event and no captured table has a topic that destination "%" selects', destination
            USING DETAIL = format('It selects %s. The last events and captured tables have %s.',
                                  outbox_internal.destination_option(destination, 'topics'),
                                  (SELECT string_agg(format('"%s"', t.topic), ', ')
                                     FROM (SELECT * FROM outbox_internal.topics_in_use() LIMIT 5) AS t(topic))),
                  HINT = 'Check the option "topics". The topic of an event is <aggregate type>.events unless another is given, and * matches any characters.';
    END IF;
END $$;
