-- Who may enqueue events of which topics. A role is limited to the topics of its row and of the rows
-- of roles whose rights it has; with no such row EXECUTE on outbox.enqueue() is all it needs.
-- extension/producer.cpp names the columns in this order. The roles are kept as regrole: a rename
-- changes nothing, and a dump has their names.

CREATE FUNCTION outbox.check_topics(topics text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_topics';
COMMENT ON FUNCTION outbox.check_topics(text) IS 'internal: refuses what is no list of patterns';

CREATE TABLE outbox.producer (
    role       regrole     PRIMARY KEY,
    topics     text        NOT NULL CHECK (outbox.check_topics(topics)),
    granted_by name        NOT NULL DEFAULT session_user,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.producer IS 'who may enqueue events of which topics; see outbox.grant_produce()';
COMMENT ON COLUMN outbox.producer.role IS 'the role, for itself and for its members';
COMMENT ON COLUMN outbox.producer.topics IS 'patterns, separated by commas; * stands for any run of characters';
COMMENT ON COLUMN outbox.producer.granted_by IS 'who was logged in then';
COMMENT ON COLUMN outbox.producer.granted_at IS 'when';

-- Rows of roles that are gone would name nobody, or somebody else, in another cluster.
SELECT pg_extension_config_dump('outbox.producer', 'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');

-- Sessions keep what they have read of some tables; however one is changed, they hear of it at commit.
CREATE FUNCTION outbox.table_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_table_changed';
COMMENT ON FUNCTION outbox.table_changed() IS 'internal: has sessions read a table again that they keep';

CREATE TRIGGER producer_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.producer
    FOR EACH STATEMENT EXECUTE FUNCTION outbox.table_changed();
ALTER TABLE outbox.producer ENABLE ALWAYS TRIGGER producer_changed;
COMMENT ON TRIGGER producer_changed ON outbox.producer IS 'has sessions read the table again';
