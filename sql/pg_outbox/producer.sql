-- Topics that roles may produce. A role may use the topics of its own rows, and of the rows of
-- roles whose rights it has; without any row it may use none. Rows with the right 'capture' are for
-- its captured tables only. extension/produce/producer.cpp names the columns in this order. Roles
-- are stored as regrole, so a rename changes nothing, and a dump contains their names.

CREATE FUNCTION outbox_internal.check_topics(topics text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_topics';
COMMENT ON FUNCTION outbox_internal.check_topics(text) IS 'raises an error unless the text is a list of patterns';

CREATE TABLE outbox.producer (
    role       regrole     NOT NULL,
    topics     text        NOT NULL CHECK (outbox_internal.check_topics(topics)),
    granted_by name        NOT NULL DEFAULT CURRENT_USER,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    right_to   text        NOT NULL DEFAULT 'produce' CHECK (right_to IN ('produce', 'capture')),
    follows    boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (role, right_to)
);
COMMENT ON TABLE outbox.producer IS 'topics that roles may produce; see outbox.grant_produce(), outbox.grant_capture()';
COMMENT ON COLUMN outbox.producer.role IS 'the role, for itself and for its members';
COMMENT ON COLUMN outbox.producer.topics IS 'patterns separated by commas, in which * matches any number of characters';
COMMENT ON COLUMN outbox.producer.granted_by IS 'the role that granted it';
COMMENT ON COLUMN outbox.producer.granted_at IS 'when it was granted';
COMMENT ON COLUMN outbox.producer.right_to IS 'produce for outbox.enqueue(), views of the log and captured tables, or capture for captured tables only';
COMMENT ON COLUMN outbox.producer.follows IS 'true for capture without topics, whose topics follow a later outbox.grant_produce()';

-- Rows of dropped roles would name no role, or another one in another cluster.
SELECT pg_extension_config_dump('outbox.producer', 'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');

-- Sessions cache some tables. When one changes, they are told at commit.
CREATE FUNCTION outbox_internal.table_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_table_changed';
COMMENT ON FUNCTION outbox_internal.table_changed() IS 'makes sessions read a cached table again';

CREATE TRIGGER producer_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.producer
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.producer ENABLE ALWAYS TRIGGER producer_changed;
COMMENT ON TRIGGER producer_changed ON outbox.producer IS 'makes sessions read the table again';
