-- Handling an event at once: begin_event(), the effects of the event and the commit are one
-- transaction; the acknowledgement follows. If begin_event() returns false, only the
-- acknowledgement is left to do.

-- Returns the consumer as which the caller acts, and creates it if it is new. A consumer belongs to
-- the role that used it first. Error 42501: the caller is not a member of that role.
CREATE FUNCTION inbox_internal.own_consumer(consumer text, caller inbox_internal.caller)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id  integer;
    owner   name;
BEGIN
    -- Usually this is the only statement. It runs with the caller's rights, for functions that have
    -- those of the owner.
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, to_regrole(quote_ident(c.role)), 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.consumer_id(consumer);
        UPDATE inbox.consumer AS c SET role = caller WHERE c.id = own_id AND c.role IS NULL;
        SELECT c.role INTO owner FROM inbox.consumer AS c WHERE c.id = own_id;
        IF pg_has_role(caller, to_regrole(quote_ident(owner)), 'MEMBER') IS NOT TRUE THEN
            PERFORM inbox_internal.refuse_owner(consumer, owner);
        END IF;
    END IF;
    RETURN own_id;
END $$;

-- Reports that a consumer belongs to another role.
CREATE FUNCTION inbox_internal.refuse_owner(consumer text, owner name)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF to_regrole(quote_ident(owner)) IS NULL THEN
        RAISE EXCEPTION 'consumer "%" belongs to role "%", which does not exist any more', consumer, owner
            USING ERRCODE = 'insufficient_privilege',
                  HINT = 'An operator can give it to another role with inbox.give_consumer().';
    END IF;
    RAISE EXCEPTION 'consumer "%" belongs to role "%"', consumer, owner
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Use another name, or become that role (SET ROLE). An operator can change its owner with inbox.give_consumer().';
END $$;

-- Returns true if the event is new to the consumer, and marks it as applied at commit. If the
-- transaction does not commit, the event counts as new again. Returns false if it was applied
-- before. If another transaction has begun the same event, this waits for its end. `source` is
-- stored for information only.
--
-- This is called for every event, and a search_path of its own would cost a tenth of its time. So
-- it has none, and every name and operator is schema-qualified.
CREATE FUNCTION inbox.begin_event(
    consumer text,
    event_id uuid,
    source   text         DEFAULT NULL,
    caller   inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
    own_id pg_catalog.int4;
BEGIN
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name OPERATOR(pg_catalog.=) consumer
       AND (c.role OPERATOR(pg_catalog.=) caller OR pg_catalog.pg_has_role(caller, pg_catalog.to_regrole(pg_catalog.quote_ident(c.role)), 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
        VALUES (own_id, begin_event.event_id, inbox_internal.bucket(begin_event.event_id), begin_event.source)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- Returns which events of a batch are new to a consumer, and marks them as applied at commit.
-- Element n of the result says whether event_ids[n] is new. If an id occurs several times, only its
-- first element is new.
--
-- As a rule all ids are new. Then ON CONFLICT would be half of the cost, because it looks each id
-- up first and writes one more record for it. So the ids are first inserted without it, in a
-- subtransaction.
CREATE FUNCTION inbox.begin_events(
    consumer  text,
    event_ids uuid[],
    source    text         DEFAULT NULL,
    caller    inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean[]
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id  integer;
    new_ids uuid[];
BEGIN
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, to_regrole(quote_ident(c.role)), 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    -- Here and below, ids are inserted in order, so that two batches with common ids wait for each
    -- other and do not deadlock.
    BEGIN
        INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
            SELECT own_id, id, inbox_internal.bucket(id), begin_events.source
              FROM unnest(event_ids) AS id
             ORDER BY id;
        RETURN array_fill(true, ARRAY[coalesce(cardinality(event_ids), 0)]);
    EXCEPTION WHEN unique_violation THEN
        NULL; -- not all are new
    END;
    WITH new AS (
        INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
            SELECT own_id, id, inbox_internal.bucket(id), begin_events.source
              FROM unnest(event_ids) AS id
             ORDER BY id
            ON CONFLICT DO NOTHING
            RETURNING processed.event_id)
    SELECT coalesce(array_agg(new.event_id), '{}') INTO new_ids FROM new;
    RETURN ARRAY(
        SELECT given.id = ANY (new_ids) AND given.n = min(given.n) OVER (PARTITION BY given.id)
          FROM unnest(event_ids) WITH ORDINALITY AS given (id, n)
         ORDER BY given.n);
END $$;

-- Returns whether an event has been applied. A transaction that has begun it may still commit;
-- begin_event() would wait for that.
CREATE FUNCTION inbox.was_applied(consumer text, event_id uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN inbox_internal.applied_at(inbox_internal.own_consumer(consumer, caller), event_id) IS NOT NULL;
END $$;

-- Returns when the event was applied; NULL if its id is not remembered. Reads only its bucket. A kept
-- plan would lock all buckets, and so wait for one that is being emptied.
CREATE FUNCTION inbox_internal.applied_at(consumer_id integer, event_id uuid)
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    applied_at timestamptz;
BEGIN
    EXECUTE format('SELECT p.processed_at FROM inbox.processed_%s AS p WHERE p.consumer_id = $1 AND p.event_id = $2',
                   inbox_internal.bucket(event_id))
        INTO applied_at USING consumer_id, event_id;
    RETURN applied_at;
END $$;
