-- Transactions of destinations that take events exactly once: which events each one has. The relay
-- writes a row, and waits for the disk, before the destination commits the transaction. The
-- destination keeps the number, so that after a crash the relay knows which transactions took
-- effect (lib/core/transactions.hpp has the protocol).
--
-- The row with the highest number of each line stays, without events once the cursor has passed
-- them: if a destination knows of a later transaction, this database has lost commits. Rows are not
-- dumped, because a restored database is another one to the destination.
CREATE TABLE outbox.transaction (
    destination name           NOT NULL,
    line        integer        NOT NULL,
    number      bigint         NOT NULL,
    positions   int8multirange NOT NULL,
    retries     int8multirange NOT NULL,
    PRIMARY KEY (destination, line, number)
);
COMMENT ON TABLE outbox.transaction IS 'events of transactions whose outcome the destination knows, for destinations that take events exactly once';
COMMENT ON COLUMN outbox.transaction.destination IS 'the destination';
COMMENT ON COLUMN outbox.transaction.line IS 'series of transactions that it belongs to';
COMMENT ON COLUMN outbox.transaction.number IS 'number that the destination keeps with its events';
COMMENT ON COLUMN outbox.transaction.positions IS 'positions of its events that were read from the log';
COMMENT ON COLUMN outbox.transaction.retries IS 'positions of its events that came from outbox.delivery, where they still are';

-- Records which events a transaction has. A row with the same number belongs to a transaction that
-- was rolled back.
CREATE FUNCTION outbox_internal.note_transaction(
    destination name, line integer, number bigint, positions int8multirange, retries int8multirange)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.transaction VALUES ($1, $2, $3, $4, $5)
        ON CONFLICT (destination, line, number) DO UPDATE
       SET positions = excluded.positions, retries = excluded.retries;
END;

-- Records that confirmed retries have left outbox.delivery: of rows above `passed` and up to
-- `committed`, by line.
CREATE FUNCTION outbox_internal.settle_retries(destination name, passed bigint[], committed bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.transaction AS t
       SET positions = t.positions + t.retries, retries = '{}'
     WHERE t.destination = $1 AND t.retries <> '{}'
       AND t.number > passed[t.line + 1] AND t.number <= committed[t.line + 1];
END;

-- Removes transactions that the cursor has passed, from `first` on. The number of `last` stays. The
-- lower bound skips rows that are dead and kept by an old snapshot.
CREATE FUNCTION outbox_internal.forget_transactions(destination name, line integer, first bigint, last bigint)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.transaction AS t
     WHERE t.destination = $1 AND t.line = $2 AND t.number >= first AND t.number < last;
    UPDATE outbox.transaction AS t SET positions = '{}', retries = '{}'
     WHERE t.destination = $1 AND t.line = $2 AND t.number = last;
END;

-- Applies what a destination knows of its transactions when a relay starts. `committed` has the
-- number of the last transaction of each line, null if it knows of none. Events of the others are
-- not delivered, as far as is known. Returns the number of events that the destination may have
-- although it does not know of their transactions any more, and the number of transactions that it
-- has and the database does not know of: in both cases events may be delivered twice.
CREATE FUNCTION outbox_internal.recover_transactions(
    destination name,
    committed   bigint[],
    OUT doubtful bigint,
    OUT unknown  bigint)
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    delivered bigint[];
    retried   bigint[];
BEGIN
    SELECT coalesce(sum(upper(range) - lower(range)), 0) INTO doubtful
      FROM outbox.transaction AS t, unnest(t.positions + t.retries) AS range
     WHERE t.destination = $1
       AND (committed[t.line + 1] IS NULL OR t.number > committed[t.line + 1] + 1);
    SELECT coalesce(sum(greatest(0, last.committed - coalesce(
               (SELECT max(t.number) FROM outbox.transaction AS t WHERE t.destination = $1 AND t.line = last.line - 1), 0))), 0)
      INTO unknown
      FROM unnest(committed) WITH ORDINALITY AS last(committed, line);

    DELETE FROM outbox.transaction AS t
     WHERE t.destination = $1 AND t.number > coalesce(committed[t.line + 1], 0);
    SELECT array_agg(p) INTO delivered
      FROM outbox.transaction AS t, unnest(t.positions) AS range, generate_series(lower(range), upper(range) - 1) AS p
     WHERE t.destination = $1;
    SELECT array_agg(p) INTO retried
      FROM outbox.transaction AS t, unnest(t.retries) AS range, generate_series(lower(range), upper(range) - 1) AS p
     WHERE t.destination = $1;
    -- Events of the log that were moved to outbox.delivery while they were in flight. A replay of an
    -- event that was delivered before stays.
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (delivered) AND d.operation IS NULL;
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (retried);
    UPDATE outbox.transaction AS t SET positions = t.positions + t.retries, retries = '{}'
     WHERE t.destination = $1 AND t.retries <> '{}';
END $$;

-- Returns the positions of events that the destination has and the cursor may not have passed.
CREATE FUNCTION outbox_internal.delivered_positions(destination name)
RETURNS SETOF bigint
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT p
      FROM outbox.transaction AS t, unnest(t.positions) AS range, generate_series(lower(range), upper(range) - 1) AS p
     WHERE t.destination = $1;
END;
