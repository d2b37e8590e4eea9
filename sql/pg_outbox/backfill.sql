-- Backfill: events of the existing rows of a captured table, for consumers that have never seen
-- them.
--
-- A background worker walks the table by its primary key, one batch per transaction, and writes a
-- snapshot event of each row while it holds the row's lock (extension/capture/backfill.cpp). The
-- same transaction saves the progress. So when a worker ends, the next one continues after the last
-- event. Rows that are locked by others are recorded, and done one by one after the walk. While the
-- worker holds locks, it waits for another lock only until lock_timeout, so that no session waits
-- long for it (backfill_main.cpp).
--
-- A table with partitions or children is walked one part after the other. Rows added meanwhile have
-- events of their own.

CREATE TABLE outbox.backfill_task (
    id              bigint      PRIMARY KEY,
    relation        regclass    NOT NULL,
    role            regrole     NOT NULL,
    destination     integer,
    batch           integer     NOT NULL CHECK (batch BETWEEN 1 AND 100000),
    rate            integer     CHECK (rate > 0),
    max_pending     integer     NOT NULL CHECK (max_pending > 0),
    state           text        NOT NULL CHECK (state IN ('running', 'paused', 'finished', 'failed', 'cancelled')),
    parts           regclass[]  NOT NULL,
    key_columns     name[],
    last_key        text[],
    rows_done       bigint      NOT NULL DEFAULT 0,
    rows_estimated  bigint      NOT NULL,
    rows_per_second real        NOT NULL DEFAULT 0,
    last_xid        xid8        NOT NULL DEFAULT '0',
    last_position   bigint      NOT NULL DEFAULT 0,
    started_at      timestamptz NOT NULL DEFAULT now(),
    updated_at      timestamptz NOT NULL DEFAULT now(),
    finished_at     timestamptz,
    last_error      text
) WITH (fillfactor = 50);
COMMENT ON TABLE outbox.backfill_task IS 'backfills, including recently ended ones';
COMMENT ON COLUMN outbox.backfill_task.id IS 'id of the operation that started it';
COMMENT ON COLUMN outbox.backfill_task.relation IS 'the captured table';
COMMENT ON COLUMN outbox.backfill_task.role IS 'role that started it, and that must own the table until it ends';
COMMENT ON COLUMN outbox.backfill_task.destination IS 'number of the one destination it is for; null for all';
COMMENT ON COLUMN outbox.backfill_task.batch IS 'rows per transaction';
COMMENT ON COLUMN outbox.backfill_task.rate IS 'highest number of rows per second; null for no limit';
COMMENT ON COLUMN outbox.backfill_task.max_pending IS 'the backfill waits while a destination has more events than this to deliver first';
COMMENT ON COLUMN outbox.backfill_task.state IS 'running, paused, finished, failed or cancelled';
COMMENT ON COLUMN outbox.backfill_task.parts IS 'tables still to be walked, starting with the current one';
COMMENT ON COLUMN outbox.backfill_task.key_columns IS 'key by which the first of them is walked; null if it is not begun';
COMMENT ON COLUMN outbox.backfill_task.last_key IS 'key of the last row passed; null if none';
COMMENT ON COLUMN outbox.backfill_task.rows_done IS 'rows that are done';
COMMENT ON COLUMN outbox.backfill_task.rows_estimated IS 'estimated number of rows of the table at the beginning';
COMMENT ON COLUMN outbox.backfill_task.rows_per_second IS 'rows per second, over about the last ten seconds';
COMMENT ON COLUMN outbox.backfill_task.last_xid IS 'transaction of the last batch';
COMMENT ON COLUMN outbox.backfill_task.last_position IS 'upper bound of the positions of its events';
COMMENT ON COLUMN outbox.backfill_task.started_at IS 'when it was requested';
COMMENT ON COLUMN outbox.backfill_task.updated_at IS 'when the row was written';
COMMENT ON COLUMN outbox.backfill_task.finished_at IS 'when it finished, failed or was cancelled';
COMMENT ON COLUMN outbox.backfill_task.last_error IS 'error that made it fail';

CREATE TABLE outbox.backfill_row (
    task        bigint      NOT NULL REFERENCES outbox.backfill_task ON DELETE CASCADE,
    part        regclass    NOT NULL,
    key_columns name[]      NOT NULL,
    key         text[]      NOT NULL,
    tried_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.backfill_row IS 'rows that were locked when a backfill reached them';
COMMENT ON COLUMN outbox.backfill_row.task IS 'the backfill';
COMMENT ON COLUMN outbox.backfill_row.part IS 'the table of the row';
COMMENT ON COLUMN outbox.backfill_row.key_columns IS 'columns of the key';
COMMENT ON COLUMN outbox.backfill_row.key IS 'values of the key';
COMMENT ON COLUMN outbox.backfill_row.tried_at IS 'when the row was last found locked';
CREATE INDEX backfill_row_tried ON outbox.backfill_row (task, tried_at);
COMMENT ON INDEX outbox.backfill_row_tried IS 'finds the row to try next';

-- A backfill restored from a dump waits for outbox.resume_backfill(), because the rows of its table
-- may be restored later.
CREATE FUNCTION outbox_internal.adopt_backfill()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.started_at <> now() AND NEW.state = 'running' THEN
        NEW.state := 'paused';
    END IF;
    NEW.last_xid := '0';
    RETURN NEW;
END $$;
COMMENT ON FUNCTION outbox_internal.adopt_backfill() IS 'pauses a backfill that is restored from a dump';

CREATE TRIGGER adopt_backfill BEFORE INSERT ON outbox.backfill_task
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.adopt_backfill();
ALTER TABLE outbox.backfill_task ENABLE ALWAYS TRIGGER adopt_backfill;
COMMENT ON TRIGGER adopt_backfill ON outbox.backfill_task IS 'pauses a backfill that is restored from a dump';

-- ---------------------------------------------------------------------------------------------
-- Start
-- ---------------------------------------------------------------------------------------------

-- Lists the tables that contain the rows of a table: itself, its partitions or children.
CREATE FUNCTION outbox_internal.parts_of_table("table" regclass)
RETURNS regclass[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(part ORDER BY part)
      FROM outbox_internal.captured_tree("table") AS part
      JOIN pg_class AS c ON c.oid = part
     WHERE c.relkind = 'r';
END;

-- Raises an error unless a role owns a table.
CREATE FUNCTION outbox_internal.check_owner("table" regclass, role regrole)
RETURNS void
LANGUAGE plpgsql STABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT pg_has_role(role, (SELECT c.relowner FROM pg_class AS c WHERE c.oid = "table"), 'USAGE') THEN
        RAISE EXCEPTION 'role % is not owner of table %', role, "table"
            USING ERRCODE = 'insufficient_privilege', HINT = 'Only the owner of a table may backfill it.';
    END IF;
END $$;

-- Refuses a backfill whose events no destination selects. With a topic column the topics are not
-- known beforehand.
CREATE FUNCTION outbox_internal.check_selected("table" regclass, destination name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    captured CONSTANT record := c FROM outbox.captured AS c
                                  WHERE $1 IN (SELECT outbox_internal.captured_tree(c.relation));
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.destination AS d
                    WHERE d.name = coalesce($2, d.name)
                      AND (captured.topic_column IS NOT NULL
                           OR captured.topic LIKE ANY (outbox_internal.topic_patterns(outbox_internal.destination_option(d.name, 'topics'))))) THEN
        RAISE EXCEPTION '%', CASE WHEN destination IS NULL THEN format('no destination selects topic "%s"', captured.topic)
                                  ELSE format('destination "%s" does not select topic "%s"', destination, captured.topic) END
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = 'CREATE SERVER creates a destination; ALTER SERVER ... OPTIONS (SET topics ...) changes which topics it selects.';
    END IF;
END $$;

-- Starts a backfill, for outbox.backfill().
CREATE FUNCTION outbox_internal.add_backfill(
    "table" regclass, destination name, batch integer, rate integer, max_pending integer,
    caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    id     CONSTANT bigint := nextval('outbox.operation_id');
    parts  CONSTANT regclass[] := outbox_internal.parts_of_table("table");
    number integer;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF coalesce(batch NOT BETWEEN 1 AND 100000, true) OR rate < 1 OR coalesce(max_pending < 1, true) THEN
        RAISE EXCEPTION 'a backfill cannot have batch %, rate %, max_pending %', batch, rate, max_pending
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'batch is 1 to 100000, rate at least 1 or NULL, max_pending at least 1.';
    END IF;
    PERFORM outbox_internal.check_owner("table", quote_ident(caller)::regrole);
    IF destination IS NOT NULL THEN
        number := (outbox_internal.take_control(destination)).number;
    END IF;
    PERFORM outbox_internal.check_can_backfill(part) FROM unnest(parts) AS part;
    PERFORM outbox_internal.check_selected("table", destination);
    DELETE FROM outbox.backfill_task AS t WHERE t.finished_at < now() - interval '30 days';
    INSERT INTO outbox.backfill_task
        (id, relation, role, destination, batch, rate, max_pending, state, parts, rows_estimated)
    SELECT id, $1, quote_ident(caller)::regrole, number, $3, $4, $5, 'running', parts, sum(outbox_internal.estimate_rows(part))
      FROM unnest(parts) AS part;
    INSERT INTO outbox.operation (id, requested_by, destination, action, selection)
    VALUES (id, caller, coalesce($2, '*'), 'backfill', jsonb_build_object('table', $1));
    PERFORM outbox_internal.wake_for_backfill();
    RETURN id;
END $$;

-- Delivers a snapshot event of each row of a captured table: to one destination, or to all that
-- select its topic. Returns the id of the backfill; the view outbox.backfill_progress shows its
-- progress.
-- Errors: 42501 the caller does not own the table; 42704 there is no such destination; 55000 the
-- table is not captured or has no unique key, or no destination (or not the given one) selects its
-- topic.
CREATE FUNCTION outbox.backfill(
    "table"     regclass,
    destination name    DEFAULT NULL,
    batch       integer DEFAULT 1000,
    rate        integer DEFAULT NULL,
    max_pending integer DEFAULT 100000)
RETURNS bigint
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.add_backfill("table", destination, batch, rate, max_pending);
END;

-- ---------------------------------------------------------------------------------------------
-- Pause, resume, cancel
-- ---------------------------------------------------------------------------------------------

-- Allowed for roles that own the backfill or may operate destinations. The worker notices it at its
-- next batch.
CREATE FUNCTION outbox_internal.set_backfill_state(id bigint, from_states text[], to_state text, action text, caller name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    task outbox.backfill_task;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT t.* INTO task FROM outbox.backfill_task AS t WHERE t.id = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'backfill % does not exist', id
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.backfill_progress lists all backfills.';
    END IF;
    IF (pg_has_role(caller, task.role, 'MEMBER')
        OR has_function_privilege(caller, 'outbox.pause(name, text, outbox_internal.caller)', 'EXECUTE')) IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for backfill %', id
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('It belongs to role %s; outbox.grant_operate() lets a role control all of them.', task.role);
    END IF;
    IF task.state <> ALL (from_states) THEN
        RAISE EXCEPTION 'backfill % is %', id, task.state
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  HINT = format('To %s it must be %s.', action, array_to_string(from_states, ' or '));
    END IF;
    UPDATE outbox.backfill_task AS t
       SET state = to_state, updated_at = clock_timestamp(), rows_per_second = 0,
           finished_at = CASE WHEN to_state = 'cancelled' THEN clock_timestamp() END,
           last_error = CASE WHEN to_state = 'running' THEN NULL ELSE t.last_error END
     WHERE t.id = $1;
    INSERT INTO outbox.operation (requested_by, destination, action, selection)
    VALUES (caller, coalesce((SELECT c.destination FROM outbox.cursor AS c WHERE c.number = task.destination), '*'),
            action || ' backfill', jsonb_build_object('backfill', id));
    PERFORM outbox_internal.wake_for_backfill();
END $$;
COMMENT ON FUNCTION outbox_internal.set_backfill_state(bigint, text[], text, text, name) IS 'changes the state of a backfill, for outbox.pause_backfill() and others';

-- Stops a backfill until outbox.resume_backfill().
-- Errors of all three: 42704 there is no such backfill; 42501 it belongs to another role; 55000 it
-- has ended.
CREATE FUNCTION outbox.pause_backfill(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.set_backfill_state(id, '{running}', 'paused', 'pause', caller);
END;

-- Resumes a paused or failed backfill where it stopped.
CREATE FUNCTION outbox.resume_backfill(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.set_backfill_state(id, '{paused, failed}', 'running', 'resume', caller);
END;

-- Ends a backfill; events already written are delivered.
CREATE FUNCTION outbox.cancel_backfill(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.set_backfill_state(id, '{running, paused, failed}', 'cancelled', 'cancel', caller);
END;

-- ---------------------------------------------------------------------------------------------
-- Work
-- ---------------------------------------------------------------------------------------------

-- Returns the destination that a backfill may have to wait for: that with the most events to
-- deliver before the backfill's last event, as an upper bound. If a relay finds nothing for its
-- destination, its position does not advance; then it is enough that it has read that far.
CREATE FUNCTION outbox_internal.most_behind(task outbox.backfill_task, OUT destination name, OUT pending bigint)
LANGUAGE plpgsql VOLATILE -- plpgsql keeps the plan: this runs before every batch
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    SELECT d.name,
           CASE
             WHEN NOT d.pull AND w.unsettled = 0 AND w.read_to > task.last_xid THEN 0
             WHEN d.pull AND c.upto IS NULL AND task.last_xid <> '0' AND pg_visible_in_snapshot(task.last_xid, c.done) THEN 0
             ELSE greatest(task.last_position - greatest(w.settled_position, c.position), 0)
           END + (SELECT coalesce(sum(cardinality(b.positions)), 0)
                    FROM outbox.batch AS b
                   WHERE d.pull AND b.destination = d.name) AS unsettled
      INTO destination, pending
      FROM outbox.destination AS d
      JOIN outbox.cursor AS c ON c.destination = d.name
      LEFT JOIN outbox_internal.destination_relay AS w ON w.destination = d.name
     WHERE (task.destination IS NULL OR c.number = task.destination) AND c.detached_at IS NULL
     ORDER BY unsettled DESC
     LIMIT 1;
END $$;

-- Checks that the table, the role and the destination are still as the backfill requires.
CREATE FUNCTION outbox_internal.check_backfill(task outbox.backfill_task)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = task.relation) THEN
        RAISE EXCEPTION 'the table does not exist any more' USING ERRCODE = 'undefined_table';
    ELSIF NOT EXISTS (SELECT FROM pg_roles AS r WHERE r.oid = task.role) THEN
        RAISE EXCEPTION 'the role that started it does not exist any more'
            USING ERRCODE = 'undefined_object', HINT = 'Cancel it. The owner of the table can start another one.';
    END IF;
    PERFORM outbox_internal.check_owner(task.relation, task.role);
    IF NOT has_function_privilege(task.role, 'outbox_internal.add_backfill(regclass, name, integer, integer, integer, outbox_internal.caller)', 'EXECUTE') THEN
        RAISE EXCEPTION 'role % may not backfill tables any more', task.role
            USING ERRCODE = 'insufficient_privilege', HINT = 'outbox.grant_capture() gives it the right.';
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE task.destination IS NULL OR c.number = task.destination) THEN
        RAISE EXCEPTION '%', CASE WHEN task.destination IS NULL THEN 'there is no destination any more'
                                  ELSE 'the destination does not exist any more' END USING ERRCODE = 'undefined_object';
    END IF;
END $$;

-- Writes one batch of a backfill. After the last batch of a part it continues with the next part.
CREATE FUNCTION outbox_internal.backfill_batch(task outbox.backfill_task)
RETURNS outbox.backfill_task
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    size  CONSTANT integer := least(task.batch, task.rate);
    batch record;
BEGIN
    SELECT * INTO batch
      FROM outbox_internal.write_snapshots(task.parts[1], task.key_columns, task.last_key, size, task.destination);
    INSERT INTO outbox.backfill_row (task, part, key_columns, key)
    SELECT task.id, task.parts[1], batch.key_columns, key::text[] FROM unnest(batch.locked) AS key;
    IF batch.rows = size THEN
        task.key_columns := batch.key_columns;
        task.last_key := batch.last_key;
    ELSE
        task.parts := task.parts[2:];
        task.key_columns := NULL;
        task.last_key := NULL;
    END IF;
    task.rows_done := task.rows_done + coalesce(batch.rows - cardinality(batch.locked), 0);
    RETURN task;
END $$;

-- Writes the event of the next row that was locked. If none is left, the backfill has finished.
CREATE FUNCTION outbox_internal.backfill_locked_row(task outbox.backfill_task)
RETURNS outbox.backfill_task
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    row outbox.backfill_row;
BEGIN
    DELETE FROM outbox.backfill_row AS r
     WHERE r.ctid = (SELECT n.ctid FROM outbox.backfill_row AS n WHERE n.task = $1.id ORDER BY n.tried_at LIMIT 1)
    RETURNING r.* INTO row;
    IF FOUND THEN
        PERFORM outbox_internal.write_snapshot(row.part, row.key_columns, row.key, task.destination);
        task.rows_done := task.rows_done + 1;
    ELSE
        task.state := 'finished';
        task.finished_at := clock_timestamp();
    END IF;
    RETURN task;
END $$;

-- Saves the progress of a backfill, and its speed as a moving average.
CREATE FUNCTION outbox_internal.save_backfill(task outbox.backfill_task, rows bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    seconds CONSTANT double precision := greatest(extract(epoch FROM clock_timestamp() - task.updated_at), 0.000001);
BEGIN
    UPDATE outbox.backfill_task AS t
       SET state = task.state, parts = task.parts, key_columns = task.key_columns, last_key = task.last_key,
           rows_done = task.rows_done, finished_at = task.finished_at,
           rows_per_second = CASE t.rows_per_second
                                WHEN 0 THEN rows / seconds
                                ELSE t.rows_per_second + (1 - exp(-seconds / 5)) * (rows / seconds - t.rows_per_second)
                              END,
           last_xid = pg_current_xact_id(), last_position = (SELECT p.last_value FROM outbox.event_position AS p),
           updated_at = clock_timestamp()
     WHERE t.id = task.id;
    IF task.state <> 'running' THEN
        PERFORM outbox_internal.wake_for_backfill();
    END IF;
END $$;

-- Records why a backfill cannot continue.
CREATE FUNCTION outbox_internal.fail_backfill(id bigint, error text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.backfill_task AS t
       SET state = 'failed', last_error = error, rows_per_second = 0, finished_at = clock_timestamp(), updated_at = clock_timestamp()
     WHERE t.id = $1;
    SELECT outbox_internal.wake_for_backfill();
END;

-- Runs one transaction of the worker of a backfill. Results:
--   more     the backfill continues
--   behind   a destination must settle events first
--   later    another session holds a lock
--   over     the backfill does not continue
-- Key values are written and read under fixed settings, whatever the defaults of the database are.
CREATE FUNCTION outbox_internal.backfill_step(id bigint, OUT outcome text, OUT rows integer, OUT rate integer)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET datestyle = 'ISO, YMD'
SET intervalstyle = 'postgres'
SET extra_float_digits = 1
AS $$
DECLARE
    task   outbox.backfill_task;
    before bigint;
    detail text;
    place  text;
BEGIN
    SELECT t.* INTO task FROM outbox.backfill_task AS t WHERE t.id = $1 FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        outcome := CASE WHEN EXISTS (SELECT FROM outbox.backfill_task AS t WHERE t.id = $1) THEN 'later' ELSE 'over' END;
        RETURN;
    ELSIF task.state <> 'running' THEN
        outcome := 'over';
        RETURN;
    ELSIF (SELECT b.pending > task.max_pending FROM outbox_internal.most_behind(task) AS b) THEN
        outcome := 'behind';
        RETURN;
    END IF;
    before := task.rows_done;
    BEGIN
        PERFORM outbox_internal.check_backfill(task);
        task := CASE WHEN task.parts <> '{}' THEN outbox_internal.backfill_batch(task) ELSE outbox_internal.backfill_locked_row(task) END;
        rows := task.rows_done - before;
        rate := task.rate;
        PERFORM outbox_internal.save_backfill(task, rows);
        outcome := CASE task.state WHEN 'running' THEN 'more' ELSE 'over' END;
    EXCEPTION
        WHEN lock_not_available OR deadlock_detected OR serialization_failure THEN
            UPDATE outbox.backfill_row AS r
               SET tried_at = clock_timestamp()
             WHERE task.parts = '{}'
               AND r.ctid = (SELECT n.ctid FROM outbox.backfill_row AS n WHERE n.task = $1 ORDER BY n.tried_at LIMIT 1);
            outcome := 'later';
        WHEN OTHERS THEN
            GET STACKED DIAGNOSTICS detail = PG_EXCEPTION_DETAIL, place = PG_EXCEPTION_CONTEXT;
            PERFORM outbox_internal.fail_backfill(id, concat_ws('; ', SQLERRM, nullif(detail, ''),
                                                       substring(place FROM '(?n)^row .*$')));
            outcome := 'over';
    END;
END $$;

-- ---------------------------------------------------------------------------------------------
-- Progress
-- ---------------------------------------------------------------------------------------------

-- Returns what a backfill waits for.
CREATE FUNCTION outbox_internal.backfill_waits_for(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE
             WHEN NOT EXISTS (SELECT FROM outbox.workers() AS w WHERE w.kind = 'backfill' AND w.object::bigint = t.id)
             THEN CASE outbox_internal.edition() WHEN 'sql' THEN 'outbox-relay' ELSE 'a background worker' END
             WHEN behind.pending > t.max_pending
             THEN format('destination "%s": %s events before it', behind.destination, behind.pending)
             WHEN t.parts = '{}' THEN 'locked rows'
             WHEN t.rate IS NOT NULL THEN 'its rate'
           END
      FROM outbox.backfill_task AS t
     CROSS JOIN LATERAL (SELECT max(b.destination) AS destination, max(b.pending) AS pending
                           FROM outbox_internal.most_behind(t) AS b) AS behind
     WHERE t.id = $1 AND t.state = 'running'
       -- as in outbox.backfill_progress
       AND (pg_has_role(caller, t.role, 'MEMBER')
            OR has_table_privilege(caller, 'outbox.status', 'SELECT')
            OR has_table_privilege(caller, 'outbox.operation', 'SELECT'));
END;

-- A role sees its own backfills. Roles that may monitor or operate destinations see all.
CREATE VIEW outbox.backfill_progress WITH (security_barrier) AS
SELECT t.id, t.relation AS "table", c.destination, t.state, t.rows_done, t.rows_estimated,
       CASE
         WHEN t.state = 'finished' THEN 100
         ELSE pg_catalog.round(least(99.9, 100.0 * t.rows_done / greatest(t.rows_estimated, t.rows_done, 1)), 1)
       END AS percent,
       CASE WHEN t.state = 'running' THEN t.rows_per_second ELSE 0 END::bigint AS rate,
       t.started_at, t.finished_at,
       CASE
         WHEN t.state = 'running' AND t.rows_per_second >= 1
         THEN pg_catalog.clock_timestamp() + pg_catalog.make_interval(secs => greatest(t.rows_estimated - t.rows_done, 0) / t.rows_per_second)
       END AS expected_end,
       outbox_internal.backfill_waits_for(t.id) AS waiting_for,
       (SELECT count(*) FROM outbox.backfill_row AS r WHERE r.task = t.id) AS locked_rows,
       outbox_internal.for_client(t.last_error) AS last_error
  FROM outbox.backfill_task AS t
  LEFT JOIN outbox.cursor AS c ON c.number = t.destination
 WHERE pg_catalog.pg_has_role(t.role, 'MEMBER')
    OR pg_catalog.has_table_privilege('outbox.status', 'SELECT')
    OR pg_catalog.has_table_privilege('outbox.operation', 'SELECT');
COMMENT ON VIEW outbox.backfill_progress IS 'progress of backfills';
COMMENT ON COLUMN outbox.backfill_progress.id IS 'as outbox.backfill() returned it';
COMMENT ON COLUMN outbox.backfill_progress."table" IS 'the captured table';
COMMENT ON COLUMN outbox.backfill_progress.destination IS 'the one destination it is for; null for all';
COMMENT ON COLUMN outbox.backfill_progress.state IS 'running, paused, finished, failed or cancelled';
COMMENT ON COLUMN outbox.backfill_progress.rows_done IS 'rows whose events are in the log, or that need no event';
COMMENT ON COLUMN outbox.backfill_progress.rows_estimated IS 'estimated number of rows of the table at the beginning';
COMMENT ON COLUMN outbox.backfill_progress.percent IS 'rows_done in percent of rows_estimated';
COMMENT ON COLUMN outbox.backfill_progress.rate IS 'recent rows per second';
COMMENT ON COLUMN outbox.backfill_progress.started_at IS 'when it was requested';
COMMENT ON COLUMN outbox.backfill_progress.finished_at IS 'when it finished, failed or was cancelled';
COMMENT ON COLUMN outbox.backfill_progress.expected_end IS 'estimated end at this rate';
COMMENT ON COLUMN outbox.backfill_progress.waiting_for IS 'what it waits for; null if nothing';
COMMENT ON COLUMN outbox.backfill_progress.locked_rows IS 'rows that were locked, to be done at the end';
COMMENT ON COLUMN outbox.backfill_progress.last_error IS 'error that made it fail';
