-- What the extension tells relays outside the server: settings are those of the server,
-- destinations are foreign servers with the option relay 'external'.

-- Durations are in milliseconds, sizes in kilobytes.
CREATE FUNCTION outbox_internal.relay_settings()
RETURNS TABLE (name text, value text)
LANGUAGE sql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT substr(s.name, length('outbox.') + 1), s.setting
      FROM pg_settings AS s
     WHERE s.name IN ('outbox.allowed_hosts', 'outbox.backoff_max', 'outbox.backoff_min', 'outbox.connect_timeout',
                      'outbox.cursor_flush_interval', 'outbox.expression_timeout', 'outbox.max_in_flight', 'outbox.max_in_flight_size',
                      'outbox.poll_max', 'outbox.poll_min', 'outbox.receipts', 'outbox.request_timeout')
    UNION ALL
    SELECT 'edition', 'native'
    UNION ALL
    SELECT 'version', e.extversion FROM pg_extension AS e WHERE e.extname = 'pg_outbox'
    UNION ALL
    SELECT 'database', current_database()
    UNION ALL
    SELECT 'encoding', getdatabaseencoding()
    UNION ALL
    SELECT 'system_identifier', s.system_identifier::text FROM pg_control_system() AS s
    UNION ALL
    SELECT 'notifies', 'on';
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
BEGIN ATOMIC
    SELECT c.number, d.name::text, r.rolname::text, NOT r.rolsuper,
           pg_has_role(r.oid, 'pg_read_server_files', 'USAGE'), -- true for superusers
           s.srvoptions,
           (SELECT m.umoptions FROM pg_user_mapping AS m
             WHERE m.umserver = s.oid AND m.umuser IN (s.srvowner, 0)
             ORDER BY m.umuser DESC LIMIT 1),
           outbox_internal.topic_patterns(outbox_internal.destination_option(d.name, 'topics'))
      FROM outbox.destination AS d
      JOIN outbox.cursor AS c ON c.destination = d.name
      JOIN pg_foreign_server AS s ON s.oid = d.server
      JOIN pg_roles AS r ON r.oid = s.srvowner
     WHERE d.external AND NOT d.pull;
END;
COMMENT ON FUNCTION outbox_internal.relay_destinations() IS 'destinations for relays outside the server, with their credentials';

-- A new or changed destination is looked at without delay.
CREATE FUNCTION outbox_internal.follow_destinations()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.tell_relays();
END $$;
COMMENT ON FUNCTION outbox_internal.follow_destinations() IS 'tells relays outside the server of changed destinations';

CREATE EVENT TRIGGER outbox_follow_destinations ON ddl_command_end
    WHEN tag IN ('CREATE SERVER', 'ALTER SERVER', 'DROP SERVER', 'CREATE USER MAPPING', 'ALTER USER MAPPING', 'DROP USER MAPPING')
    EXECUTE FUNCTION outbox_internal.follow_destinations();
ALTER EVENT TRIGGER outbox_follow_destinations ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_destinations IS 'tells relays outside the server of changed destinations';

-- Makes the worker of a destination take it; 0 means the default destination. Creates a cursor at the
-- beginning of the log if there is none. The token is NULL if the destination is gone, or if another
-- session is creating cursors now: try again.
CREATE FUNCTION outbox_internal.worker_take(
    server oid,
    OUT number          integer,
    OUT lease           bigint,
    OUT done            text,
    OUT upto            text,
    OUT "position"      bigint,
    OUT foreign_cluster boolean,
    OUT live_after      bigint,
    OUT published       bigint,
    OUT failures        bigint,
    OUT failing_since   bigint,
    OUT resumed         bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    target CONSTANT name := CASE WHEN server = 0 THEN 'default'
                                      ELSE (SELECT f.srvname FROM pg_foreign_server AS f WHERE f.oid = server) END;
BEGIN
    FOR attempt IN 1..2 LOOP
        UPDATE outbox.cursor AS c SET server = $1, relay = NULL, relay_locks = false
         WHERE c.destination = target
        RETURNING c.number INTO number;
        IF FOUND AND number IS NULL THEN -- the owner of the table may have dropped its constraints
            RAISE EXCEPTION 'null value in column "number" of outbox.cursor' USING ERRCODE = 'null_value_not_allowed';
        END IF;
        EXIT WHEN number IS NOT NULL OR attempt = 2 OR target IS NULL;
        PERFORM outbox_internal.make_cursor(target, server);
    END LOOP;
    IF number IS NOT NULL THEN
        SELECT t.lease, t.done, t.upto, t.position, t.foreign_cluster, t.live_after, t.published, t.failures, t.failing_since, t.resumed
          INTO lease, done, upto, "position", foreign_cluster, live_after, published, failures, failing_since, resumed
          FROM outbox_internal.next_lease(number) AS t;
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.worker_take(oid) IS 'makes the worker of a destination take it';
