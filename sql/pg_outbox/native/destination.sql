-- Destinations are the servers of the wrapper; without any, outbox.default_destination.
CREATE VIEW outbox.destination AS
SELECT s.oid AS server, s.srvname AS name, coalesce('url=pull:' = ANY (s.srvoptions), false) AS pull,
       coalesce('relay=external' = ANY (s.srvoptions), false) AS external
  FROM pg_catalog.pg_foreign_server AS s
  JOIN pg_catalog.pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
 WHERE f.fdwname = 'pg_outbox'
UNION ALL
SELECT 0, 'default', pg_catalog.current_setting('outbox.default_destination', true) = 'pull:', false
 WHERE pg_catalog.current_setting('outbox.default_destination', true) <> ''
   AND NOT EXISTS (SELECT
                     FROM pg_catalog.pg_foreign_server AS s
                     JOIN pg_catalog.pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
                    WHERE f.fdwname = 'pg_outbox');
COMMENT ON VIEW outbox.destination IS 'destinations of events';
COMMENT ON COLUMN outbox.destination.server IS 'OID of the foreign server; 0 for outbox.default_destination';
COMMENT ON COLUMN outbox.destination.name IS 'name of the foreign server, or default for outbox.default_destination';
COMMENT ON COLUMN outbox.destination.pull IS 'true if it has no relay, and events are taken with outbox.fetch()';
COMMENT ON COLUMN outbox.destination.external IS 'true if its relay is a program outside the server: outbox-relay';

-- For views that call no function of pg_outbox.
CREATE VIEW outbox_internal.destination_topics AS
SELECT d.name,
       (SELECT o.option_value
          FROM pg_catalog.pg_foreign_server AS s, pg_catalog.pg_options_to_table(s.srvoptions) AS o
         WHERE s.oid = d.server AND o.option_name = 'topics') AS topics
  FROM outbox.destination AS d;
COMMENT ON VIEW outbox_internal.destination_topics IS 'topics of destinations, for outbox.event_progress';
COMMENT ON COLUMN outbox_internal.destination_topics.name IS 'the destination';
COMMENT ON COLUMN outbox_internal.destination_topics.topics IS 'its option topics; null if it has none';

-- Returns an option of a destination, or else the setting of the same name. The name may be that of an
-- endpoint, <server>/<name>.
CREATE FUNCTION outbox_internal.destination_option(destination name, option text)
RETURNS text
LANGUAGE c STABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_destination_option';
