-- Gaps: events that a broker has deleted before they were received, and topics, streams and queues
-- that were made again, so that their offsets count from the beginning. Consumers report them, because
-- only they see both sides. Nothing can bring the events back from there, so a gap stays in
-- inbox.health() until an operator accepts it.

-- Reports a gap in a subscription of a consumer: a number of events that can no longer be received,
-- or that the source was made again, as a new incarnation. Several processes may see the same new
-- incarnation; with its name it counts once.
CREATE FUNCTION inbox.report_gap(
    consumer     text,
    subscription text,
    why          text,
    skipped      bigint  DEFAULT 0,
    recreated    boolean DEFAULT false,
    incarnation  text    DEFAULT NULL,
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id CONSTANT integer     := inbox_internal.own_consumer(consumer, caller);
    now    CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF coalesce(btrim(why), '') = '' THEN
        RAISE EXCEPTION 'why must not be null'
            USING ERRCODE = 'null_value_not_allowed', HINT = 'It is shown by inbox.health().';
    ELSIF skipped IS NULL OR skipped < 0 THEN
        RAISE EXCEPTION 'skipped must be a number of events' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO inbox.gap AS g (consumer_id, subscription, skipped, recreated, incarnation, why, since, noted_at)
        VALUES (own_id, report_gap.subscription, report_gap.skipped, (report_gap.recreated IS TRUE)::integer,
                report_gap.incarnation, left(report_gap.why, 1000), now, now)
        ON CONFLICT ON CONSTRAINT gap_pkey DO UPDATE
           SET skipped = inbox_internal.as_count(g.skipped::numeric + excluded.skipped),
               recreated = inbox_internal.as_count(g.recreated::numeric + excluded.recreated),
               incarnation = coalesce(excluded.incarnation, g.incarnation),
               why = excluded.why,
               since = CASE WHEN g.accepted_at IS NULL THEN g.since ELSE excluded.since END,
               noted_at = excluded.noted_at,
               accepted_at = NULL
         WHERE excluded.skipped > 0 OR excluded.incarnation IS NULL OR excluded.incarnation IS DISTINCT FROM g.incarnation;
END $$;

-- Accepts the gaps of a subscription that were reported until now, so that inbox.health() no longer
-- shows them. Their counts stay. Returns false if there is none to accept.
CREATE FUNCTION inbox.accept_gap(
    consumer     text,
    subscription text,
    why          text,
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id CONSTANT integer := inbox_internal.take_control(consumer);
    gap    inbox.gap;
BEGIN
    UPDATE inbox.gap AS g SET accepted_at = clock_timestamp()
     WHERE g.consumer_id = own_id AND g.subscription = accept_gap.subscription AND g.accepted_at IS NULL
     RETURNING g.* INTO gap;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    PERFORM inbox_internal.note_operation(caller, consumer, 'accept gap', accept_gap.why, jsonb_build_object(
        'subscription', subscription, 'skipped', gap.skipped, 'recreated', gap.recreated, 'gap', gap.why));
    RETURN true;
END $$;

CREATE VIEW inbox.gaps AS
SELECT c.name AS consumer,
       inbox_internal.for_client(g.subscription) AS subscription,
       g.skipped,
       g.recreated,
       inbox_internal.for_client(g.incarnation) AS incarnation,
       inbox_internal.for_client(g.why) AS why,
       g.since,
       g.noted_at,
       g.accepted_at
  FROM inbox.gap AS g
  JOIN inbox.consumer AS c ON c.id = g.consumer_id;
COMMENT ON VIEW inbox.gaps IS 'subscriptions of which events can no longer be received, or that were made again';
COMMENT ON COLUMN inbox.gaps.skipped IS 'events that can no longer be received, at most';
COMMENT ON COLUMN inbox.gaps.recreated IS 'times that the topic, stream, queue or group was made again, or cut back';
COMMENT ON COLUMN inbox.gaps.incarnation IS 'name of the last incarnation, if the source has one';
COMMENT ON COLUMN inbox.gaps.why IS 'the last report';
COMMENT ON COLUMN inbox.gaps.since IS 'the first report that was not accepted before the next one';
COMMENT ON COLUMN inbox.gaps.accepted_at IS 'null if inbox.accept_gap() was not called since the last report';
