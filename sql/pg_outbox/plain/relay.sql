-- What the SQL edition tells relays outside the server: settings are rows of outbox.setting,
-- destinations those of outbox.destination_config. Credentials are not in the database.

-- Durations are in milliseconds, sizes in kilobytes.
CREATE FUNCTION outbox_internal.relay_settings()
RETURNS TABLE (name text, value text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
BEGIN ATOMIC
    SELECT d.name, CASE WHEN d.unit IS NULL THEN outbox_internal.setting(d.name) ELSE outbox_internal.setting_number(d.name)::text END
      FROM outbox_internal.default_settings() AS d
     WHERE d.name IN ('allowed_hosts', 'backoff_max', 'backoff_min', 'connect_timeout', 'cursor_flush_interval', 'expression_timeout', 'max_in_flight',
                      'max_in_flight_size', 'poll_max', 'poll_min', 'receipts', 'request_timeout')
    UNION ALL
    SELECT 'edition', outbox_internal.edition()
    UNION ALL
    SELECT 'version', outbox.version()
    UNION ALL
    SELECT 'database', current_database()
    UNION ALL
    SELECT 'encoding', getdatabaseencoding()
    UNION ALL
    SELECT 'system_identifier', s.system_identifier::text FROM pg_control_system() AS s
    UNION ALL
    SELECT 'notifies', CASE current_setting('max_prepared_transactions') WHEN '0' THEN 'on' ELSE 'off' END; -- see enqueue.sql
END;
COMMENT ON FUNCTION outbox_internal.relay_settings() IS 'settings for relays outside the server';

-- Options are texts of the form name=value. `patterns` are the topics as patterns of LIKE.
CREATE FUNCTION outbox_internal.relay_destinations()
RETURNS TABLE (
    number            integer,
    name              text,
    owner             text,
    password_required boolean,
    may_read_files    boolean,
    options           text[],
    mapping_options   text[],
    patterns          text[])
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET row_security = off
BEGIN ATOMIC
    SELECT c.number, d.name::text, pg_get_userbyid(t.relowner)::text, true, false,
           ARRAY(SELECT o.key || '=' || o.value FROM jsonb_each_text(d.options) AS o ORDER BY o.key),
           NULL::text[],
           outbox_internal.topic_patterns(outbox_internal.destination_option(d.name, 'topics'))
      FROM outbox.destination_config AS d
      JOIN outbox.cursor AS c ON c.destination = d.name
      JOIN pg_class AS t ON t.oid = 'outbox.destination_config'::regclass
     WHERE d.options ->> 'url' <> 'pull:';
END;
COMMENT ON FUNCTION outbox_internal.relay_destinations() IS 'destinations for relays outside the server';
