-- Handling an event at once: in one transaction begin_event(), what the event causes, commit; then the
-- acknowledgement. Whoever is told false has nothing to do but to acknowledge.

-- The consumer as which the caller acts. It is made when it is new, and belongs to the role that used it
-- first, in whichever way. Error 42501: it belongs to a role that the caller is no member of.
CREATE FUNCTION inbox_internal.own_consumer(consumer text, caller inbox_internal.caller)
RETURNS integer
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    own_id  integer;
    owner   name;
BEGIN
    -- The only statement for all events but the first. With the caller's rights, for functions that
    -- have those of the owner.
    SELECT c.id INTO own_id FROM inbox.consumer AS c
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.consumer_id(consumer);
        UPDATE inbox.consumer AS c SET role = caller WHERE c.id = own_id AND c.role IS NULL;
        SELECT c.role INTO owner FROM inbox.consumer AS c WHERE c.id = own_id;
        IF pg_has_role(caller, owner, 'MEMBER') IS NOT TRUE THEN
            PERFORM inbox_internal.refuse_owner(consumer, owner);
        END IF;
    END IF;
    RETURN own_id;
END $$;
COMMENT ON FUNCTION inbox_internal.own_consumer(text, inbox_internal.caller) IS 'the consumer as which the caller acts';

CREATE FUNCTION inbox_internal.refuse_owner(consumer text, owner name)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'consumer "%" belongs to role "%"', consumer, owner
        USING ERRCODE = 'insufficient_privilege',
              HINT = 'Use another name, or become that role (SET ROLE). An operator can change its owner with inbox.give_consumer().';
END $$;
COMMENT ON FUNCTION inbox_internal.refuse_owner(text, name) IS 'refuses those who do not own a consumer';

-- Whether the event is new to the consumer. True: go on; the event counts as applied when the caller's
-- transaction commits, and as new again when it does not. False: it was applied before. While another
-- transaction has begun the same event, this waits for its end. source is kept for those who look.
--
-- Called for every event, and a search_path of its own would cost it a tenth of its time. So it has none, and
-- every name and operator says where it is from.
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
       AND (c.role OPERATOR(pg_catalog.=) caller OR pg_catalog.pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
        VALUES (own_id, begin_event.event_id, inbox_internal.bucket(begin_event.event_id), begin_event.source)
        ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION inbox.begin_event(text, uuid, text, inbox_internal.caller) IS
    'whether an event is new to a consumer; from the commit on it is not';

-- The same for a batch: element n of the result says whether event_ids[n] is new. Of an id that occurs
-- several times only the first is.
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
     WHERE c.name = consumer AND (c.role = caller OR pg_has_role(caller, c.role, 'MEMBER'));
    IF own_id IS NULL THEN
        own_id := inbox_internal.own_consumer(consumer, caller);
    END IF;
    -- In the order of the ids, so that two batches which share some wait for each other and do not lock
    -- each other out.
    WITH new AS (
        INSERT INTO inbox.processed (consumer_id, event_id, bucket, source)
            SELECT own_id, id, inbox_internal.bucket(id), begin_events.source
              FROM unnest(event_ids) AS id
             ORDER BY id
            ON CONFLICT DO NOTHING
            RETURNING processed.event_id)
    SELECT array_agg(new.event_id) INTO new_ids FROM new;
    IF cardinality(new_ids) = cardinality(event_ids) THEN
        RETURN array_fill(true, ARRAY[cardinality(event_ids)]);
    END IF;
    RETURN ARRAY(
        SELECT given.id = ANY (new_ids) AND given.n = min(given.n) OVER (PARTITION BY given.id)
          FROM unnest(event_ids) WITH ORDINALITY AS given (id, n)
         ORDER BY given.n);
END $$;
COMMENT ON FUNCTION inbox.begin_events(text, uuid[], text, inbox_internal.caller) IS
    'which events of a batch are new to a consumer; from the commit on they are not';

-- Whether the event counts as applied. It may become so while a transaction that has begun it goes on;
-- begin_event() waits for that.
CREATE FUNCTION inbox.was_applied(consumer text, event_id uuid, caller inbox_internal.caller DEFAULT CURRENT_USER)
RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN inbox_internal.is_processed(inbox_internal.own_consumer(consumer, caller), event_id);
END $$;
COMMENT ON FUNCTION inbox.was_applied(text, uuid, inbox_internal.caller) IS 'whether an event has been applied';

-- Asks the one bucket: a plan that is kept would lock all of them, and so wait for one that is emptied.
CREATE FUNCTION inbox_internal.is_processed(consumer_id integer, event_id uuid)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    found boolean;
BEGIN
    EXECUTE format('SELECT EXISTS (SELECT FROM inbox.processed_%s AS p WHERE p.consumer_id = $1 AND p.event_id = $2)',
                   inbox_internal.bucket(event_id))
        INTO found USING consumer_id, event_id;
    RETURN found;
END $$;
COMMENT ON FUNCTION inbox_internal.is_processed(integer, uuid) IS 'whether the id of an event is remembered';
