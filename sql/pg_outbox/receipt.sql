-- Receipts: which events a destination has confirmed, when, and its own id of the message. They are
-- kept where the option `receipts` is on, in two tables of which one is filled. After
-- outbox.receipt_retention the keeper empties the other and turns to it.
CREATE TABLE outbox.receipt (
    event_id     uuid        NOT NULL,
    destination  name        NOT NULL,
    position     bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    message_id   text
);
COMMENT ON TABLE outbox.receipt IS 'events that destinations have confirmed';
COMMENT ON COLUMN outbox.receipt.event_id IS 'the event';
COMMENT ON COLUMN outbox.receipt.destination IS 'the destination that confirmed it';
COMMENT ON COLUMN outbox.receipt.position IS 'its position in the log';
COMMENT ON COLUMN outbox.receipt.published_at IS 'when the confirmation arrived';
COMMENT ON COLUMN outbox.receipt.message_id IS 'id of the message at the destination; null if unknown';

CREATE TABLE outbox.receipt_0 () INHERITS (outbox.receipt);
COMMENT ON TABLE outbox.receipt_0 IS 'one half of outbox.receipt';
CREATE INDEX receipt_0_event_id ON outbox.receipt_0 (event_id);
COMMENT ON INDEX outbox.receipt_0_event_id IS 'finds the receipts of an event';
CREATE TABLE outbox.receipt_1 () INHERITS (outbox.receipt);
COMMENT ON TABLE outbox.receipt_1 IS 'the other half of outbox.receipt';
CREATE INDEX receipt_1_event_id ON outbox.receipt_1 (event_id);
COMMENT ON INDEX outbox.receipt_1_event_id IS 'finds the receipts of an event';

CREATE TABLE outbox.receipt_turn (
    current integer     NOT NULL,
    since   timestamptz NOT NULL
);
INSERT INTO outbox.receipt_turn VALUES (0, clock_timestamp());
COMMENT ON TABLE outbox.receipt_turn IS 'which half of outbox.receipt is filled';
COMMENT ON COLUMN outbox.receipt_turn.current IS 'the filled half is receipt_<current>';
COMMENT ON COLUMN outbox.receipt_turn.since IS 'when it became the filled half';

-- Times are in seconds since 1970. A relay outside the server may pass any number, and views compute with them.
CREATE FUNCTION outbox_internal.add_receipts(destination name, event_ids uuid[], positions bigint[], times double precision[], message_ids text[])
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('INSERT INTO outbox.receipt_%s
                    SELECT r.event_id, $1, r.position, to_timestamp(greatest(least(r.time, 253402300799), 0)), nullif(r.message_id, '''')
                      FROM unnest($2, $3, $4, $5) AS r(event_id, position, time, message_id)',
                   (SELECT t.current FROM outbox.receipt_turn AS t))
      USING destination, event_ids, positions, times, message_ids;
END $$;
COMMENT ON FUNCTION outbox_internal.add_receipts(name, uuid[], bigint[], double precision[], text[]) IS
    'stores receipts of confirmed events';

-- Removes old receipts; the keeper calls this. If another session adds or reads receipts at that
-- moment, the keeper comes back later.
CREATE FUNCTION outbox_internal.turn_receipts()
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    retention CONSTANT interval := outbox_internal.setting('receipt_retention');
    turn      outbox.receipt_turn;
BEGIN
    UPDATE outbox.receipt_turn AS t SET since = clock_timestamp() WHERE t.since > clock_timestamp(); -- the clock was set back
    SELECT * INTO turn FROM outbox.receipt_turn;
    IF turn.since > clock_timestamp() - retention THEN
        RETURN true;
    END IF;
    EXECUTE format('LOCK TABLE outbox.receipt_%s IN ACCESS EXCLUSIVE MODE NOWAIT', 1 - turn.current);
    EXECUTE format('TRUNCATE ONLY outbox.receipt_%s', 1 - turn.current);
    UPDATE outbox.receipt_turn SET current = 1 - turn.current, since = clock_timestamp();
    RETURN true;
EXCEPTION WHEN lock_not_available THEN
    RETURN false;
END $$;
