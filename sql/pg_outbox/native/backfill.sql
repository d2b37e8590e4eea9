-- Parts of backfills that are C++ (extension/capture/backfill.cpp).

-- Raises an error unless a table is captured and can be walked.
CREATE FUNCTION outbox_internal.check_can_backfill(part regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_can_backfill';

-- Estimates the number of rows as the planner does, from the present size of the table. Nothing is
-- planned, because planning runs functions of the table's owner.
CREATE FUNCTION outbox_internal.estimate_rows(part regclass)
RETURNS bigint
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_estimate_rows';

-- Writes the events of a batch of a backfill: of the rows of a part after a key, except those that
-- are locked. Returns NULL if the part is gone.
CREATE FUNCTION outbox_internal.write_snapshots(
    part regclass, columns name[], after text[], "limit" integer, only_to integer,
    OUT key_columns name[], OUT rows integer, OUT last_key text[], OUT locked text[])
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_write_snapshots';

-- Writes the event of one row of a backfill, if it is still there. Waits for its lock.
CREATE FUNCTION outbox_internal.write_snapshot(part regclass, columns name[], key text[], only_to integer)
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_write_snapshot';
