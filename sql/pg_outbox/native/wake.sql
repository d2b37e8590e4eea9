-- These functions wake up workers when the transaction commits.

-- Makes relays apply decisions of operators at commit.
CREATE FUNCTION outbox_internal.wake_relays()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_wake_relays';

-- Tells the keeper at commit that events were read or settled.
CREATE FUNCTION outbox_internal.wake_keeper()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_wake_keeper';

-- Makes the keeper look for backfills at commit.
CREATE FUNCTION outbox_internal.wake_for_backfill()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_wake_for_backfill';
