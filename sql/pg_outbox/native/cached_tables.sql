-- Sessions cache some tables. When one changes, sessions are notified at commit.
CREATE FUNCTION outbox_internal.table_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_table_changed';
COMMENT ON FUNCTION outbox_internal.table_changed() IS 'makes sessions read a cached table again';

CREATE TRIGGER producer_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.producer
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.producer ENABLE ALWAYS TRIGGER producer_changed;
COMMENT ON TRIGGER producer_changed ON outbox.producer IS 'makes sessions read the table again';

CREATE TRIGGER captured_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.captured
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER captured_changed;
COMMENT ON TRIGGER captured_changed ON outbox.captured IS 'makes sessions read the table again';
