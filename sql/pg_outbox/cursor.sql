-- How far each destination has come. One row per destination, updated by its relay alone, at most
-- every outbox.cursor_flush_interval. No index on purpose: the relay finds its row by ctid, which
-- costs the same however many dead versions a held snapshot keeps alive.
CREATE TABLE outbox.cursor (
    destination       name        NOT NULL,
    server            oid         NOT NULL,
    done              pg_snapshot NOT NULL,
    upto              pg_snapshot,
    position          bigint      NOT NULL,
    system_identifier bigint      NOT NULL,
    lease             bigint      NOT NULL,
    saved_at          timestamptz NOT NULL,
    paused            boolean     NOT NULL DEFAULT false
);
COMMENT ON TABLE outbox.cursor IS 'how far each destination has come';
COMMENT ON COLUMN outbox.cursor.destination IS 'name of the foreign server; default: outbox.default_destination';
COMMENT ON COLUMN outbox.cursor.server IS 'the foreign server; 0: outbox.default_destination';
COMMENT ON COLUMN outbox.cursor.done IS 'the events of all transactions that had finished in this snapshot are settled';
COMMENT ON COLUMN outbox.cursor.upto IS 'of the window that ends here, the events up to position are settled as well; NULL: none';
COMMENT ON COLUMN outbox.cursor.position IS 'highest settled position';
COMMENT ON COLUMN outbox.cursor.system_identifier IS 'the cluster whose transactions the snapshots speak of';
COMMENT ON COLUMN outbox.cursor.lease IS 'token of the relay that may settle; a new relay takes a new one';
COMMENT ON COLUMN outbox.cursor.saved_at IS 'when the row was written';
COMMENT ON COLUMN outbox.cursor.paused IS 'nothing is delivered until outbox.resume()';

SELECT pg_extension_config_dump('outbox.cursor', '');

-- A destination that starts at the end of the log gets what commits after it was created, however
-- long its relay takes to start. One that starts at the beginning has no cursor until then.
CREATE FUNCTION outbox.start_at_end()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    INSERT INTO outbox.cursor
        (destination, server, done, position, system_identifier, lease, saved_at)
    SELECT s.srvname, s.oid, pg_current_snapshot(), 0, c.system_identifier, 0, clock_timestamp()
      FROM pg_event_trigger_ddl_commands() AS command
      JOIN pg_foreign_server AS s ON s.oid = command.objid
      JOIN pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
     CROSS JOIN pg_control_system() AS c
     WHERE command.classid = 'pg_foreign_server'::regclass
       AND w.fdwname = 'pg_outbox'
       AND 'start=end' = ANY (s.srvoptions);
END
$$;
COMMENT ON FUNCTION outbox.start_at_end() IS 'internal: makes the cursor of a destination that starts at the end';

CREATE EVENT TRIGGER outbox_start_at_end ON ddl_command_end WHEN tag IN ('CREATE SERVER')
    EXECUTE FUNCTION outbox.start_at_end();
ALTER EVENT TRIGGER outbox_start_at_end ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_start_at_end IS 'makes the cursor of a destination that starts at the end';
