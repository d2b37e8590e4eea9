-- Parts of captures that are C++ (extension/capture/).

-- Records that a table is captured, on behalf of its owner.
CREATE FUNCTION outbox_internal.save_captured(captured outbox.captured)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_save_captured';

-- Records that a table is not captured, on behalf of its owner.
CREATE FUNCTION outbox_internal.forget_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_forget_captured';

-- Refuses a capture that does not fit the table.
CREATE FUNCTION outbox_internal.check_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_check_captured';

-- Writes an event of a changed row.
CREATE FUNCTION outbox.capture_row()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_row';

-- Writes an event of TRUNCATE, or refuses it.
CREATE FUNCTION outbox.capture_truncate()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_truncate';

-- This does not use LOCK TABLE, which Citus repeats on other nodes as the calling role. There the
-- triggers are created as the owner of the table, and would wait for it.
CREATE FUNCTION outbox_internal.lock_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_lock_captured';
COMMENT ON FUNCTION outbox_internal.lock_captured(regclass) IS 'keeps others from changing or capturing a table until the transaction ends';

-- Triggers fire in the order of their names. These come first, because changes by other triggers
-- must come later in the log.
CREATE FUNCTION outbox_internal.add_capture_triggers(member regclass, condition text, on_truncate text)
RETURNS void
LANGUAGE c VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_add_capture_triggers';
COMMENT ON FUNCTION outbox_internal.add_capture_triggers(regclass, text, text) IS 'gives a table the triggers that capture it';

-- Gives a partition or child the triggers that it lacks, with the condition of the captured table.
CREATE FUNCTION outbox_internal.copy_capture_triggers(captured regclass, member regclass, on_truncate text)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_copy_capture_triggers';

-- Sets when the triggers that capture a table fire.
CREATE FUNCTION outbox_internal.set_capture_fire(member regclass, fire text)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_set_capture_fire';

-- Drops the triggers that capture a table.
CREATE FUNCTION outbox_internal.drop_capture_triggers(member regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_drop_capture_triggers';
