-- Who may produce events of which topics. A role may use the topics of its rows and of the rows of roles whose
-- rights it has; without any it may use none. Those of 'capture' are for its captured tables only.
-- extension/produce/producer.cpp names the columns in this order. The roles are kept as regrole: a rename
-- changes nothing, and a dump has their names.

CREATE FUNCTION outbox_internal.check_topics(topics text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_topics';
COMMENT ON FUNCTION outbox_internal.check_topics(text) IS 'refuses what is no list of patterns';

CREATE TABLE outbox.producer (
    role       regrole     NOT NULL,
    topics     text        NOT NULL CHECK (outbox_internal.check_topics(topics)),
    granted_by name        NOT NULL DEFAULT CURRENT_USER,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    right_to   text        NOT NULL DEFAULT 'produce' CHECK (right_to IN ('produce', 'capture')),
    follows    boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (role, right_to)
);
COMMENT ON TABLE outbox.producer IS 'who may produce events of which topics; see outbox.grant_produce(), outbox.grant_capture()';
COMMENT ON COLUMN outbox.producer.role IS 'the role, for itself and for its members';
COMMENT ON COLUMN outbox.producer.topics IS 'patterns, separated by commas; * stands for any run of characters';
COMMENT ON COLUMN outbox.producer.granted_by IS 'the role that granted it';
COMMENT ON COLUMN outbox.producer.granted_at IS 'when';
COMMENT ON COLUMN outbox.producer.right_to IS 'produce: by outbox.enqueue(), views of the log and captured tables; capture: by captured tables only';
COMMENT ON COLUMN outbox.producer.follows IS 'capture: no topics were given, so a later outbox.grant_produce() sets them, too';

-- Rows of roles that are gone would name nobody, or somebody else, in another cluster.
SELECT pg_extension_config_dump('outbox.producer', 'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');

-- Sessions keep what they have read of some tables; however one is changed, they hear of it at commit.
CREATE FUNCTION outbox_internal.table_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_table_changed';
COMMENT ON FUNCTION outbox_internal.table_changed() IS 'has sessions read a table again that they keep';

CREATE TRIGGER producer_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.producer
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.producer ENABLE ALWAYS TRIGGER producer_changed;
COMMENT ON TRIGGER producer_changed ON outbox.producer IS 'has sessions read the table again';
