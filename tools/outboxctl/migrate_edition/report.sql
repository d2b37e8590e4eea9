-- Reports the steps of the migration to people.

-- Counts what the migration would move.
CREATE FUNCTION outbox_migration.foresee()
RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    INSERT INTO outbox_migration.moved
    SELECT t.name, (outbox_migration.run_as_owner(t.class, format('SELECT count(*) FROM ONLY %s', t.class)))[1]::bigint
      FROM outbox_migration.old_table AS t;
    PERFORM outbox_migration.take_notes();
END $$;

CREATE FUNCTION outbox_migration.things(OUT thing text, OUT number bigint)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT CASE WHEN m.name ~ '^event_[0-9]$' THEN 'events in the log' WHEN m.name ~ '^receipt_[0-9]$' THEN 'receipts'
                ELSE CASE m.name WHEN 'delivery' THEN 'events in trouble' WHEN 'batch' THEN 'batches of fetchers'
                                 WHEN 'source_event' THEN 'source events' WHEN 'captured' THEN 'captured tables'
                                 WHEN 'producer' THEN 'rights to topics' WHEN 'operation' THEN 'operations'
                                 WHEN 'backfill_task' THEN 'backfills' WHEN 'transaction' THEN 'transactions of destinations'
                                 WHEN 'cursor' THEN 'cursors' END END AS thing, sum(m.rows)::bigint
      FROM outbox_migration.moved AS m
     WHERE m.name NOT IN ('ring', 'receipt_turn', 'backfill_row')
     GROUP BY 1
    UNION ALL
    SELECT 'destinations', count(*) FROM outbox_migration.old_destination
    UNION ALL
    SELECT 'views', count(*) FROM outbox_migration.old_view
    UNION ALL
    SELECT 'settings', count(*) FROM outbox_migration.old_setting AS s, outbox_migration.request AS r
     WHERE r.target = 'sql' AND outbox_migration.measure(s.of_server, s.unit) <> outbox_migration.measure(s.by_default, s.unit)
$$;

-- Lists destinations that live on what a superuser lends them: the identity of the server, or files that
-- it may read. The SQL edition lends nothing; relay.toml may.
CREATE FUNCTION outbox_migration.will_stop(OUT destination name, OUT why text)
RETURNS SETOF record
LANGUAGE sql STABLE
AS $$
    SELECT d.name, lacks.why
      FROM outbox_migration.destinations() AS d
     CROSS JOIN LATERAL (SELECT split_part(d.options ->> 'url', ':', 1) AS scheme, d.options ->> 'url' AS url,
                                ARRAY(SELECT s.option FROM outbox_migration.secret AS s WHERE s.destination = d.name) AS has) AS o
     CROSS JOIN LATERAL (
        SELECT format('it has no %s, and the identity of the server is not lent to it; write that, and urls, into [credentials.%s] of relay.toml', n.lacking, d.name)
          FROM (VALUES ('password', o.scheme IN ('postgresql', 'postgres')),
                       ('access_key_id', o.scheme IN ('sqs', 'sns', 'kinesis', 'eventbridge') OR d.options ->> 'sasl_mechanism' = 'AWS_MSK_IAM'),
                       ('key', o.scheme = 'pubsub' AND o.url NOT LIKE '%endpoint=http:%')) AS n(lacking, needed)
         WHERE n.needed AND n.lacking <> ALL (o.has)
           AND NOT (n.lacking <> 'password' AND o.has && '{profile,key_file,token}')
        UNION ALL
        SELECT format('"%s" names a file, which only relay.toml may; write it into [credentials.%s] there, and remove it here', f.option, d.name)
          FROM jsonb_object_keys(d.options) AS f(option) WHERE f.option IN ('ca_file', 'https_ca_file')
        UNION ALL
        SELECT format('its URL names a file ("%s"), which it may not any more; remove it', f.parameter)
          FROM regexp_matches(o.url, '[?&](sslrootcert|sslcrl)=(?!system(&|$))', 'g') AS m, LATERAL (SELECT m[1]) AS f(parameter)
     ) AS lacks(why)
$$;

-- Lists what is different afterwards, and what to do.
CREATE FUNCTION outbox_migration.advice()
RETURNS SETOF text
LANGUAGE sql STABLE
AS $$
    SELECT a.text
      FROM outbox_migration.request AS r
     CROSS JOIN LATERAL (
        SELECT 1, 'outbox-relay goes on with all destinations: ' || string_agg(d.name, ', ' ORDER BY d.name)
                  || '. To hand one to a worker of the server, create its user mapping, then ALTER SERVER ... OPTIONS (DROP relay).'
          FROM outbox_migration.old_destination AS d WHERE r.target = 'native' AND d.options ->> 'url' <> 'pull:' HAVING count(*) > 0
        UNION ALL
        SELECT 2, format('Role "%s" owned the SQL edition. It owns the foreign servers, reads all tables, and has the rights produce, capture, operate, monitor, fetch and relay.', o.rolname)
          FROM outbox_migration.old_owner AS w JOIN pg_roles AS o ON o.oid = w.owner AND NOT o.rolsuper WHERE r.target = 'native'
        UNION ALL
        SELECT 3, 'Start outbox-relay: no worker of the server delivers any more. SELECT outbox.grant_relay(...) gives its role the right.'
         WHERE r.target = 'sql'
        UNION ALL
        SELECT 4, format('Put the file of --credentials into relay.toml, and limit each section with databases, too.')
         WHERE r.target = 'sql' AND r.has_secrets_file
        UNION ALL
        SELECT 5, format('Destination "%s" belonged to role "%s", which cannot change it any more.', f.destination, f.owner)
          FROM outbox_migration.old_foreign_owner AS f WHERE r.target = 'sql'
        UNION ALL
        SELECT 6, format('%s could create destinations (USAGE on the wrapper), and cannot any more: only the owner of pg_outbox changes outbox.destination_config.',
                         CASE c.role WHEN 'PUBLIC' THEN 'Every role' ELSE 'Role ' || c.role END)
          FROM outbox_migration.old_creator AS c WHERE r.target = 'sql'
        UNION ALL
        SELECT 7, format('Destination "%s" will stop: %s.', w.destination, w.why)
          FROM outbox_migration.old_stop AS w WHERE r.target = 'sql'
     ) AS a(n, text)
     ORDER BY a.n, a.text
$$;

CREATE FUNCTION outbox_migration.result()
RETURNS jsonb
LANGUAGE sql STABLE
AS $$
    SELECT jsonb_build_object(
               'to', r.target,
               'moved', (SELECT coalesce(jsonb_object_agg(t.thing, t.number), '{}') FROM outbox_migration.things() AS t WHERE t.thing IS NOT NULL),
               'advice', (SELECT coalesce(jsonb_agg(a), '[]') FROM outbox_migration.advice() AS a))
      FROM outbox_migration.request AS r
$$;

-- Returns JSON as TOML: strings, and arrays of them, are the same, except for one character.
CREATE FUNCTION outbox_migration.toml(value json)
RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT replace(value::text, E'\x7f', '\u007F') $$;

-- Options of credentials as a part of relay.toml, for the URLs of their destination. A pattern cannot
-- have a comma.
CREATE FUNCTION outbox_migration.credentials()
RETURNS text
LANGUAGE sql STABLE
AS $$
    SELECT string_agg(format(E'[credentials.%s]\n%s\nurls = %s\n', outbox_migration.toml(to_json(s.destination::text)), s.lines, u.urls), E'\n' ORDER BY s.destination)
      FROM (SELECT c.destination,
                   string_agg(format('%s = %s', to_json(c.option), outbox_migration.toml(to_json(c.value))), E'\n' ORDER BY c.option) AS lines
              FROM outbox_migration.secret AS c GROUP BY c.destination) AS s
      JOIN (SELECT d.name, outbox_migration.toml(json_agg(replace(url, ',', '*')))
              FROM outbox_migration.destinations() AS d,
                   unnest(ARRAY[d.options ->> 'url', d.options ->> 'token_endpoint', d.options ->> 'schema_registry']) AS url
             WHERE url IS NOT NULL GROUP BY d.name) AS u(name, urls) ON u.name = s.destination
$$;
