-- The arguments of the trigger are the layout, the content type of payloads that are bytes, and the
-- template for topics.
CREATE FUNCTION outbox.insert_event()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_insert_event';
COMMENT ON FUNCTION outbox.insert_event() IS 'enqueues an event for a row inserted into a view of the log';
