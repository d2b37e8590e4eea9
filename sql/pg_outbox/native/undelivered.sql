-- The library calls this before a statement drops pg_outbox (extension/base/drop_guard.cpp). It
-- takes the locks that the drop needs first, so that events of transactions in progress are
-- counted. What a relay has delivered since it last saved its cursor counts as not delivered.

-- Returns the events that are lost if pg_outbox is dropped, or two NULLs if there are none.
-- `events` is 'unknown' if the log cannot be read: an extension that is damaged can still be
-- dropped.
CREATE FUNCTION outbox_internal.undelivered(OUT events text, OUT by_destination text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF to_regclass('outbox.cursor') IS NULL THEN -- outboxctl migrate-edition has moved the log away
        RETURN;
    END IF;
    LOCK TABLE outbox.event IN ACCESS EXCLUSIVE MODE;
    SELECT sum(w.waiting + w.dead),
           string_agg(format('%s: %s waiting, %s dead letters', w.name, w.waiting, w.dead), '; ' ORDER BY w.name)
      INTO events, by_destination
      FROM (SELECT d.name, outbox.backlog(d.name) AS waiting,
                   (SELECT count(*) FROM outbox.delivery AS t WHERE t.destination = d.name AND t.state = 'DEAD') AS dead
              FROM outbox.destination AS d) AS w
     WHERE w.waiting + w.dead > 0;
    IF NOT EXISTS (SELECT FROM outbox.destination) THEN
        SELECT nullif(count(*), 0) INTO events FROM outbox.event;
        by_destination := 'no destination: events of the log that a dropped destination has received count too';
    END IF;
EXCEPTION WHEN OTHERS THEN
    events := 'unknown';
    by_destination := SQLERRM;
END $$;
