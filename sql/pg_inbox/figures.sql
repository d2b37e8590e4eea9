-- Figures of consumers outside the server. No message costs a write of its own for them: what was
-- completed follows from what was claimed, and a process that handles events at once reports what it
-- has counted now and then.

-- Counts failures, and claimed messages that are given back.
CREATE FUNCTION inbox_internal.note_change(consumer_id integer, claimed bigint, failures bigint)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO inbox.progress_change (consumer_id, claimed, failures) VALUES ($1, $2, $3);
END;

-- Returns a sum of counts as a bigint. A consumer may report any counts, and views and the keeper add
-- up those of all.
CREATE FUNCTION inbox_internal.as_count(total numeric)
RETURNS bigint
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT least(total, 9223372036854775807)::bigint;
END;

-- Adds two histograms of latencies. Returns null if both are null. Numbers that are missing count
-- as 0.
CREATE FUNCTION inbox_internal.sum_of_buckets(a bigint[], b bigint[])
RETURNS bigint[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(inbox_internal.as_count(coalesce(a[place.line], 0)::numeric + coalesce(b[place.line], 0)) ORDER BY place.line)
      FROM unnest(inbox_internal.latency_bounds()) WITH ORDINALITY AS place(bound, line)
     WHERE a IS NOT NULL OR b IS NOT NULL;
END;

-- Returns the histogram of a number of messages that took the same time.
CREATE FUNCTION inbox_internal.buckets_of(latency double precision, messages bigint)
RETURNS bigint[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(CASE WHEN latency <= b.bound::double precision THEN messages ELSE 0 END ORDER BY b.line)
      FROM unnest(inbox_internal.latency_bounds()) WITH ORDINALITY AS b(bound, line);
END;

-- Adds the changes of a consumer to its row of inbox.progress, which must exist.
CREATE FUNCTION inbox_internal.add_changes(consumer_id integer)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH gone AS (
        DELETE FROM inbox.progress_change AS c
         WHERE c.ctid = ANY (ARRAY(SELECT own.ctid FROM inbox.progress_change AS own
                                    WHERE own.consumer_id = $1 FOR UPDATE SKIP LOCKED))
         RETURNING c.claimed, c.failures
    ), change AS (
        SELECT sum(g.claimed) AS claimed, sum(g.failures) AS failures FROM gone AS g
    )
    UPDATE inbox.progress AS p
       SET claimed = p.claimed + c.claimed, failures = p.failures + c.failures,
           unsampled = greatest(p.unsampled + c.claimed, 0)
      FROM change AS c
     WHERE p.consumer_id = $1 AND c.claimed IS NOT NULL;
END $$;

-- Adds a value to recent samples, and returns the last 64 values and this one.
CREATE FUNCTION inbox_internal.with_sample(samples real[], value interval)
RETURNS real[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT (samples || extract(epoch FROM value)::real)[greatest(1, cardinality(samples) - 62):];
END;

-- Returns a percentile of recent samples.
CREATE FUNCTION inbox_internal.percentile_of(samples real[], fraction double precision)
RETURNS interval
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT make_interval(secs => percentile_disc(fraction) WITHIN GROUP (ORDER BY s)) FROM unnest(samples) AS s;
END;

-- Counts the messages that claim() has given out under a token. One of them, chosen at random, is
-- remembered as a sample: when it has been completed, inbox.processed has the time. In the
-- histogram it stands for all messages claimed since the previous sample. The caller has locked the
-- consumer. While there is nothing to claim, this is not called.
CREATE FUNCTION inbox_internal.note_claim(consumer_id integer, token uuid, messages bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
DECLARE
    now     CONSTANT timestamptz := clock_timestamp();
    figures inbox.progress;
    applied timestamptz;
    latency double precision;
BEGIN
    SELECT p.* INTO figures FROM inbox.progress AS p WHERE p.consumer_id = $1;
    IF NOT FOUND THEN
        INSERT INTO inbox.progress (consumer_id, processed, failures, saved_at) VALUES ($1, 0, 0, now)
            ON CONFLICT DO NOTHING;
        figures.latencies := '{}';
        figures.waits := '{}';
        figures.unsampled := 0;
    ELSIF messages = 0 AND figures.seen_at BETWEEN now - interval '10 seconds' AND now THEN
        RETURN;
    END IF;
    IF figures.sample IS NOT NULL THEN
        applied := inbox_internal.applied_at($1, figures.sample);
        IF applied IS NOT NULL THEN
            figures.latencies := inbox_internal.with_sample(figures.latencies, applied - figures.sample_occurred_at);
            figures.waits := inbox_internal.with_sample(figures.waits, applied - figures.sample_received_at);
            latency := greatest(extract(epoch FROM applied - figures.sample_occurred_at), 0);
            figures.latency_buckets := inbox_internal.sum_of_buckets(
                figures.latency_buckets, inbox_internal.buckets_of(latency, figures.unsampled));
            figures.latency_sum := coalesce(figures.latency_sum, 0) + latency * figures.unsampled;
            figures.unsampled := 0;
        END IF;
    END IF;
    IF messages > 0 AND (figures.sample IS NULL OR applied IS NOT NULL OR figures.sampled_at NOT BETWEEN now - interval '1 minute' AND now) THEN
        SELECT m.event_id, m.occurred_at, m.received_at
          INTO figures.sample, figures.sample_occurred_at, figures.sample_received_at
          FROM (SELECT own.consumer_id, own.event_id FROM inbox.claimed AS own
                 WHERE own.token = $2 OFFSET floor(random() * messages)::bigint LIMIT 1) AS c
          JOIN inbox.message AS m ON m.consumer_id = c.consumer_id AND m.event_id = c.event_id;
        figures.sampled_at := now;
    ELSIF applied IS NOT NULL THEN
        figures.sample := NULL;
    END IF;
    UPDATE inbox.progress AS p
       SET claimed = p.claimed + messages,
           seen_at = now,
           sample = figures.sample,
           sampled_at = figures.sampled_at,
           sample_occurred_at = figures.sample_occurred_at,
           sample_received_at = figures.sample_received_at,
           latencies = figures.latencies,
           waits = figures.waits,
           latency_buckets = figures.latency_buckets,
           latency_sum = figures.latency_sum,
           unsampled = figures.unsampled + messages,
           latency_p50 = CASE WHEN applied IS NULL THEN p.latency_p50 ELSE inbox_internal.percentile_of(figures.latencies, 0.5) END,
           latency_p99 = CASE WHEN applied IS NULL THEN p.latency_p99 ELSE inbox_internal.percentile_of(figures.latencies, 0.99) END,
           wait_p50 = CASE WHEN applied IS NULL THEN p.wait_p50 ELSE inbox_internal.percentile_of(figures.waits, 0.5) END,
           wait_p99 = CASE WHEN applied IS NULL THEN p.wait_p99 ELSE inbox_internal.percentile_of(figures.waits, 0.99) END
     WHERE p.consumer_id = $1;
    PERFORM inbox_internal.add_changes($1);
END $$;

-- Refuses what is not a histogram of latencies. The sum is limited so that sums of sums do not overflow.
-- Errors: 22023 it is not a histogram.
CREATE FUNCTION inbox_internal.check_histogram(latency_buckets bigint[], latency_sum double precision)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT inbox_internal.are_buckets(latency_buckets) OR latency_sum < 0 OR latency_sum > 1e30 THEN
        RAISE EXCEPTION 'latency_buckets and latency_sum are not those of a histogram'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('The buckets are numbers of events up to each of these bounds in seconds: %s. None is lower than the one before.',
                                  array_to_string(inbox_internal.latency_bounds(), ', '));
    END IF;
END $$;

-- Reports the figures of a process that handles events at once: what it has applied since its last
-- report, and how many events it has received and not applied yet. `latency_buckets` are the numbers of
-- events since then whose time from occurred_at to applied was up to each bound of the histogram, see
-- inbox.status, and latency_sum is the sum of these times in seconds. Call it every few seconds, and
-- once more at the end, with 0 outstanding. A process with outstanding events that misses three
-- reports counts as dead (inbox.health()). Failures are counted by fail_event().
CREATE FUNCTION inbox.report_progress(
    consumer     text,
    instance     text,
    processed    bigint,
    outstanding  bigint   DEFAULT 0,
    latency_p50  interval DEFAULT NULL,
    latency_p99  interval DEFAULT NULL,
    report_every interval DEFAULT '10 seconds',
    latency_buckets bigint[] DEFAULT NULL,
    latency_sum     double precision DEFAULT NULL,
    caller       inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id CONSTANT integer     := inbox_internal.own_consumer(consumer, caller);
    now    CONSTANT timestamptz := clock_timestamp();
BEGIN
    IF coalesce(instance, '') = '' OR octet_length(instance) > @{max_name_length} THEN
        RAISE EXCEPTION 'instance must have 1 to @{max_name_length} bytes' USING ERRCODE = 'invalid_parameter_value';
    ELSIF processed IS NULL OR processed < 0 OR outstanding IS NULL OR outstanding < 0 THEN
        RAISE EXCEPTION 'processed and outstanding must not be negative' USING ERRCODE = 'invalid_parameter_value';
    ELSIF report_every IS NULL OR report_every <= interval '0' OR report_every > interval '1 day' THEN
        RAISE EXCEPTION 'report_every must be between zero and a day' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM inbox_internal.check_histogram(latency_buckets, latency_sum);
    INSERT INTO inbox.instance AS i (consumer_id, name, processed, outstanding, latency_p50, latency_p99, seen_at, expected_by,
                                   latency_buckets, latency_sum)
        VALUES (own_id, instance, $3, $4, $5, $6, now, now + 3 * $7, $8, $9)
        ON CONFLICT ON CONSTRAINT instance_pkey DO UPDATE
           SET processed = inbox_internal.as_count(i.processed::numeric + excluded.processed),
               outstanding = excluded.outstanding,
               latency_p50 = coalesce(excluded.latency_p50, i.latency_p50),
               latency_p99 = coalesce(excluded.latency_p99, i.latency_p99),
               seen_at = excluded.seen_at,
               expected_by = excluded.expected_by,
               latency_buckets = inbox_internal.sum_of_buckets(i.latency_buckets, excluded.latency_buckets),
               latency_sum = coalesce(i.latency_sum, 0) + coalesce(excluded.latency_sum, 0);
END $$;

-- Adds collected figures to inbox.progress, for inbox.prune(): changes, and figures of processes
-- that ended an hour ago. The last process of a consumer is kept if it had events outstanding.
CREATE FUNCTION inbox_internal.collect_figures()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    known_id integer;
    ended    record;
    now      CONSTANT timestamptz := clock_timestamp();
BEGIN
    -- After the clock was set back, a process that seems to have reported later has reported now.
    UPDATE inbox.instance AS i
       SET seen_at = now, expected_by = now + (i.expected_by - i.seen_at)
     WHERE (i.consumer_id, i.name) IN (SELECT a.consumer_id, a.name FROM inbox.instance AS a WHERE a.seen_at > now FOR UPDATE SKIP LOCKED);
    FOR known_id IN
        SELECT c.consumer_id FROM inbox.progress_change AS c
        UNION
        SELECT i.consumer_id FROM inbox.instance AS i WHERE i.seen_at < clock_timestamp() - interval '1 hour'
    LOOP
        CONTINUE WHEN NOT EXISTS (SELECT FROM inbox.consumer AS c WHERE c.id = known_id);
        INSERT INTO inbox.progress (consumer_id, processed, failures, saved_at, seen_at)
            VALUES (known_id, 0, 0, clock_timestamp(),
                    coalesce((SELECT max(i.seen_at) FROM inbox.instance AS i WHERE i.consumer_id = known_id), clock_timestamp()))
            ON CONFLICT DO NOTHING;
        WITH gone AS (
            DELETE FROM inbox.instance AS i
             WHERE i.consumer_id = known_id AND i.expected_by < clock_timestamp() - interval '1 hour'
               AND (i.outstanding = 0
                    OR EXISTS (SELECT FROM inbox.instance AS newer
                                WHERE newer.consumer_id = known_id AND newer.seen_at > i.seen_at))
             RETURNING i.processed, i.seen_at, i.latency_buckets, i.latency_sum
        )
        SELECT sum(g.processed) AS processed, max(g.seen_at) AS seen_at, sum(g.latency_sum) AS latency_sum,
               (SELECT array_agg(t.number ORDER BY t.line)
                  FROM (SELECT n.line, inbox_internal.as_count(sum(n.number)) AS number
                          FROM gone AS h CROSS JOIN unnest(h.latency_buckets) WITH ORDINALITY AS n(number, line)
                         GROUP BY n.line) AS t) AS latency_buckets
          INTO ended FROM gone AS g;
        -- Only processes outside the server make changes, and changes have no time. So from now on,
        -- seen_at tells that there was such a process, also in a row that a processor in the server
        -- has made.
        UPDATE inbox.progress AS p
           SET processed = inbox_internal.as_count(p.processed + coalesce(ended.processed, 0)),
               seen_at = coalesce(greatest(p.seen_at, ended.seen_at), clock_timestamp()),
               latency_buckets = inbox_internal.sum_of_buckets(p.latency_buckets, ended.latency_buckets),
               latency_sum = CASE WHEN coalesce(p.latency_sum, ended.latency_sum) IS NOT NULL
                                  THEN coalesce(p.latency_sum, 0) + coalesce(ended.latency_sum, 0) END
         WHERE p.consumer_id = known_id AND (p.seen_at IS NULL OR ended.seen_at IS NOT NULL);
        PERFORM inbox_internal.add_changes(known_id);
    END LOOP;
END $$;
