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
    saved_at          timestamptz NOT NULL
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

SELECT pg_extension_config_dump('outbox.cursor', '');
