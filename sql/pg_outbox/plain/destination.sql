CREATE VIEW outbox.destination AS
SELECT c.number::oid AS server, d.name, coalesce(d.options ->> 'url' = 'pull:', false) AS pull,
       coalesce(d.options ->> 'url' <> 'pull:', false) AS external
  FROM outbox.destination_config AS d
  LEFT JOIN outbox.cursor AS c ON c.destination = d.name;
COMMENT ON VIEW outbox.destination IS 'destinations of events';
COMMENT ON COLUMN outbox.destination.server IS 'number of the destination';
COMMENT ON COLUMN outbox.destination.name IS 'name of the destination';
COMMENT ON COLUMN outbox.destination.pull IS 'true if it has no relay, and events are taken with outbox.fetch()';
COMMENT ON COLUMN outbox.destination.external IS 'true if outbox-relay serves it';

-- For views that call no function of pg_outbox.
CREATE VIEW outbox_internal.destination_topics AS
SELECT d.name, d.options ->> 'topics' AS topics
  FROM outbox.destination_config AS d;
COMMENT ON VIEW outbox_internal.destination_topics IS 'topics of destinations, for outbox.event_progress';
COMMENT ON COLUMN outbox_internal.destination_topics.name IS 'the destination';
COMMENT ON COLUMN outbox_internal.destination_topics.topics IS 'its option topics; null if it has none';

-- Returns an option of a destination, or else the setting of the same name. The name may be that of an
-- endpoint, <destination>/<name>.
CREATE FUNCTION outbox_internal.destination_option(destination name, option text)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce((SELECT d.options ->> option FROM outbox.destination_config AS d WHERE d.name = destination),
                    (SELECT d.options ->> option FROM outbox.destination_config AS d
                      WHERE strpos(destination::text, '/') > 0 AND d.name = split_part(destination::text, '/', 1)::name),
                    outbox_internal.setting(option));
END;
