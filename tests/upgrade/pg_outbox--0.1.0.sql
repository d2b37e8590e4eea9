\echo Use "CREATE EXTENSION pg_outbox" to load this file. \quit

-- Before anything else: a superuser executes the statements of this script, and what they call is decided by
-- the owners of the schemas, by roles that may create objects in them, and by the objects that are there already.
SET LOCAL search_path = pg_catalog, pg_temp;

DO $$
DECLARE
    schema  record;
    other   name;
    objects text;
BEGIN
    FOR schema IN
        SELECT * FROM pg_namespace AS n WHERE n.nspname IN ('outbox', 'outbox_internal')
    LOOP
        SELECT r.rolname INTO other
          FROM pg_roles AS r
         WHERE r.oid = schema.nspowner AND r.rolname <> current_user AND NOT r.rolsuper;
        IF FOUND THEN
            RAISE EXCEPTION 'schema % belongs to role "%"', schema.nspname, other
                USING ERRCODE = 'insufficient_privilege',
                      DETAIL = 'Functions of that role could run with the rights of the role that installs pg_outbox.',
                      HINT = 'Find out who made the schema, and drop it.';
        END IF;
        SELECT CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE pg_get_userbyid(acl.grantee) END INTO other
          FROM aclexplode(schema.nspacl) AS acl
         WHERE acl.privilege_type = 'CREATE' AND acl.grantee <> schema.nspowner;
        IF FOUND THEN
            RAISE EXCEPTION 'role "%" may create objects in schema %', other, schema.nspname
                USING ERRCODE = 'insufficient_privilege',
                      HINT = format('REVOKE CREATE ON SCHEMA %I.', schema.nspname);
        END IF;
        SELECT string_agg(object.description, ', ') INTO objects
          FROM (SELECT pg_describe_object(d.classid, d.objid, d.objsubid)
                  FROM pg_depend AS d
                 WHERE d.refclassid = 'pg_namespace'::regclass AND d.refobjid = schema.oid
                   AND d.classid <> 'pg_extension'::regclass
                   AND NOT EXISTS (SELECT FROM pg_depend AS m
                                     JOIN pg_extension AS e ON e.oid = m.refobjid AND e.extname = 'pg_outbox'
                                    WHERE m.refclassid = 'pg_extension'::regclass AND m.deptype = 'e'
                                      AND m.classid = d.classid AND m.objid = d.objid)
                 LIMIT 10) AS object(description);
        IF objects IS NOT NULL THEN
            RAISE EXCEPTION 'schema % has objects that do not belong to pg_outbox', schema.nspname
                USING ERRCODE = 'object_not_in_prerequisite_state',
                      DETAIL = format('Among them: %s.', objects),
                      HINT = 'Find out who made them, and drop them or move them to another schema.';
        END IF;
    END LOOP;
END $$;

-- Nothing here is for PUBLIC: a schema grants nothing by default, and grants.sql takes EXECUTE away.
COMMENT ON SCHEMA outbox IS 'pg_outbox: events committed with the data, delivered from inside the database';

-- What people and programs do not call. Only this script makes it: if there is such a schema already, the
-- script fails, for what is in it would run with the rights of the extension.
CREATE SCHEMA outbox_internal;
COMMENT ON SCHEMA outbox_internal IS 'pg_outbox: functions that its own functions, views and workers call';

-- Who asks. A function that has more rights than its caller, and needs to know who that is, takes it as
-- its last parameter:
--
--     caller outbox_internal.caller DEFAULT CURRENT_USER
--
-- The default and the check are evaluated where the call is made, before the function takes the rights of
-- its owner. So the value is the role whose rights the calling code has, and cannot be another: after SET
-- ROLE that role, in a SECURITY DEFINER function or a function of an index its owner. The role that logged
-- in says nothing about whose code is at work, and is not asked for anywhere. Inside, the parameter is passed
-- on: a default would be the owner.
--
-- A NULL gets past the check in an outer join or an empty subquery, so what is decided by a caller is
-- refused if it is NULL.
CREATE DOMAIN outbox_internal.caller AS name NOT NULL CHECK (VALUE = CURRENT_USER);
COMMENT ON DOMAIN outbox_internal.caller IS 'the role that calls a function; no other can be passed';

-- Nobody can keep one for later, in a table or a function of its own.
REVOKE ALL ON TYPE outbox_internal.caller FROM PUBLIC;

-- VACUUM, ANALYZE, REINDEX and REFRESH MATERIALIZED VIEW run code of tables with the rights of their owners,
-- and so do the workers of pg_outbox. Nobody has asked for anything there.
CREATE FUNCTION outbox_internal.refuse_restricted()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_refuse_restricted';
COMMENT ON FUNCTION outbox_internal.refuse_restricted() IS 'raises an error in code that maintenance of a table runs';

-- The log. Append-only: rows are inserted by outbox.enqueue() and never updated or deleted.
-- extension/log.hpp names the columns in this order.
CREATE TABLE outbox.event (
    position        bigint      NOT NULL,
    xid             xid8        NOT NULL,
    occurred_at     timestamptz NOT NULL,
    event_id        uuid        NOT NULL,
    version         bigint,
    schema_version  integer     NOT NULL,
    source_event_id uuid,
    topic           text        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    ordering_key    text        NOT NULL,
    content_type    text        NOT NULL,
    headers         jsonb,
    payload         bytea,
    only_to         integer
);
COMMENT ON TABLE outbox.event IS 'the log of events, over all its segments';
COMMENT ON COLUMN outbox.event.position IS 'grows; taken after the transaction got its xid';
COMMENT ON COLUMN outbox.event.xid IS 'top-level transaction that enqueued the event';
COMMENT ON COLUMN outbox.event.occurred_at IS 'given by the caller, or the time of the enqueue';
COMMENT ON COLUMN outbox.event.event_id IS 'identity of the event; the deduplication id at every destination';
COMMENT ON COLUMN outbox.event.version IS 'version of the aggregate after the event; NULL: it has none';
COMMENT ON COLUMN outbox.event.schema_version IS 'version of the form of the payload';
COMMENT ON COLUMN outbox.event.source_event_id IS 'the event whose handling enqueued this one';
COMMENT ON COLUMN outbox.event.topic IS 'where subscribers find the event';
COMMENT ON COLUMN outbox.event.aggregate_type IS 'kind of thing the event is about';
COMMENT ON COLUMN outbox.event.aggregate_id IS 'which thing of that kind';
COMMENT ON COLUMN outbox.event.event_type IS 'what happened';
COMMENT ON COLUMN outbox.event.ordering_key IS 'events with one key reach a destination in order; empty: no order';
COMMENT ON COLUMN outbox.event.content_type IS 'media type of the payload';
COMMENT ON COLUMN outbox.event.headers IS 'JSON object of scalars that travels with the event';
COMMENT ON COLUMN outbox.event.payload IS 'JSON as UTF-8 text, or any other bytes';
COMMENT ON COLUMN outbox.event.only_to IS 'number of the one destination it is for; NULL: all that select its topic';

-- The ring of segments: enqueues go to the current one, which the keeper moves on. Those that every
-- destination is done with are emptied. The one index is for readers, who look for the events of
-- transactions, in order of position.

DO $$
BEGIN
    FOR number IN 0..3 LOOP
        EXECUTE format(
            'CREATE TABLE outbox.event_%1$s () INHERITS (outbox.event);
             COMMENT ON TABLE outbox.event_%1$s IS ''segment of the log'';
             CREATE INDEX event_%1$s_xid_position ON outbox.event_%1$s (xid, position);
             COMMENT ON INDEX outbox.event_%1$s_xid_position IS ''finds the events of a window''',
            number);
        PERFORM pg_extension_config_dump(format('outbox.event_%s', number)::regclass, '');
    END LOOP;
END
$$;

-- extension/log.hpp names the columns in this order.
CREATE TABLE outbox.ring (
    number  integer     PRIMARY KEY,
    current boolean     NOT NULL,
    since   timestamptz NOT NULL DEFAULT clock_timestamp()
);
INSERT INTO outbox.ring (number, current) VALUES (0, true), (1, false), (2, false), (3, false);
COMMENT ON TABLE outbox.ring IS 'which segment of the log enqueues go to';
COMMENT ON COLUMN outbox.ring.number IS 'segment event_<number>';
COMMENT ON COLUMN outbox.ring.current IS 'enqueues go to this one';
COMMENT ON COLUMN outbox.ring.since IS 'since when they do, or do not any more';

-- CACHE 1, because sessions that hand out positions ahead would break the order within a key.
CREATE SEQUENCE outbox.event_position AS bigint CACHE 1;
COMMENT ON SEQUENCE outbox.event_position IS 'positions of events';

-- What an enqueue with a source event has done, so that it is done once: kept for
-- outbox.source_event_retention.
CREATE TABLE outbox.source_event (
    source_event_id uuid        NOT NULL,
    aggregate_type  text        NOT NULL,
    aggregate_id    text        NOT NULL,
    event_type      text        NOT NULL,
    event_id        uuid        NOT NULL,
    enqueued_at     timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (source_event_id, event_type, aggregate_type, aggregate_id)
);
CREATE INDEX source_event_enqueued_at ON outbox.source_event (enqueued_at);
COMMENT ON INDEX outbox.source_event_enqueued_at IS 'finds those that are old';
COMMENT ON TABLE outbox.source_event IS 'events that were enqueued while handling another event';
COMMENT ON COLUMN outbox.source_event.source_event_id IS 'the event that was handled';
COMMENT ON COLUMN outbox.source_event.aggregate_type IS 'of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.aggregate_id IS 'of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.event_type IS 'of the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.event_id IS 'the event that was enqueued';
COMMENT ON COLUMN outbox.source_event.enqueued_at IS 'when';

SELECT pg_extension_config_dump('outbox.event_position', '');
SELECT pg_extension_config_dump('outbox.source_event', '');

-- What outbox.enqueue() knows of events that it was called for before, by their source events.

-- NULL: this is the first event of its kind for the source event, and it is remembered; else the id of the
-- one that was enqueued before.
CREATE FUNCTION outbox_internal.claim_source_event(
    source_event_id uuid,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    event_id        uuid)
RETURNS uuid
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    earlier uuid;
BEGIN
    LOOP
        INSERT INTO outbox.source_event
            VALUES ($1, $2, $3, $4, $5)
            ON CONFLICT DO NOTHING;
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT s.event_id INTO earlier
          FROM outbox.source_event AS s
         WHERE s.source_event_id = $1 AND s.aggregate_type = $2
           AND s.aggregate_id = $3 AND s.event_type = $4;
        IF FOUND THEN
            RETURN earlier;
        END IF;
        -- It was forgotten in between.
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.claim_source_event(uuid, text, text, text, uuid) IS
    'remembers that an event was enqueued for a source event, once';

-- Called by the keeper. Returns whether there are more of those that are old.
CREATE FUNCTION outbox_internal.forget_source_events()
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    at_once   CONSTANT integer  := 10000;
    retention CONSTANT interval := current_setting('outbox.source_event_retention');
    forgotten bigint;
BEGIN
    DELETE FROM outbox.source_event
     WHERE ctid = ANY (ARRAY(
               SELECT s.ctid
                 FROM outbox.source_event AS s
                WHERE s.enqueued_at < clock_timestamp() - retention
                ORDER BY s.enqueued_at
                LIMIT at_once));
    GET DIAGNOSTICS forgotten = ROW_COUNT;
    RETURN forgotten = at_once;
END $$;
COMMENT ON FUNCTION outbox_internal.forget_source_events() IS 'forgets events that were enqueued for a source event long ago';

-- Who may produce events of which topics. A role may use the topics of its rows and of the rows of roles whose
-- rights it has; without any it may use none. Those of 'capture' are for its captured tables only.
-- extension/producer.cpp names the columns in this order. The roles are kept as regrole: a rename
-- changes nothing, and a dump has their names.

CREATE FUNCTION outbox_internal.check_topics(topics text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_topics';
COMMENT ON FUNCTION outbox_internal.check_topics(text) IS 'refuses what is no list of patterns';

CREATE TABLE outbox.producer (
    role       regrole     NOT NULL,
    topics     text        NOT NULL CHECK (outbox_internal.check_topics(topics)),
    granted_by name        NOT NULL DEFAULT CURRENT_USER,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    right_to   text        NOT NULL DEFAULT 'produce' CHECK (right_to IN ('produce', 'capture')),
    follows    boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (role, right_to)
);
COMMENT ON TABLE outbox.producer IS 'who may produce events of which topics; see outbox.grant_produce(), outbox.grant_capture()';
COMMENT ON COLUMN outbox.producer.role IS 'the role, for itself and for its members';
COMMENT ON COLUMN outbox.producer.topics IS 'patterns, separated by commas; * stands for any run of characters';
COMMENT ON COLUMN outbox.producer.granted_by IS 'the role that granted it';
COMMENT ON COLUMN outbox.producer.granted_at IS 'when';
COMMENT ON COLUMN outbox.producer.right_to IS 'produce: by outbox.enqueue(), views of the log and captured tables; capture: by captured tables only';
COMMENT ON COLUMN outbox.producer.follows IS 'capture: no topics were given, so a later outbox.grant_produce() sets them, too';

-- Rows of roles that are gone would name nobody, or somebody else, in another cluster.
SELECT pg_extension_config_dump('outbox.producer', 'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');

-- Sessions keep what they have read of some tables; however one is changed, they hear of it at commit.
CREATE FUNCTION outbox_internal.table_changed()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_table_changed';
COMMENT ON FUNCTION outbox_internal.table_changed() IS 'has sessions read a table again that they keep';

CREATE TRIGGER producer_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.producer
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.producer ENABLE ALWAYS TRIGGER producer_changed;
COMMENT ON TRIGGER producer_changed ON outbox.producer IS 'has sessions read the table again';

-- Puts an event into the log, in the caller's transaction, and returns its id.
--
-- Defaults: topic '<aggregate_type>.events', ordering_key the aggregate id ('' for no order),
-- schema_version 1, event_id a new UUID of version 7, occurred_at the time of the call.
-- With a source_event_id the event is enqueued once per (source event, aggregate, event type);
-- calls after the first return the id of that first one.
--
-- Errors: 22004 aggregate_type, aggregate_id, event_type or content_type is null; 22023 one of them is
-- empty, or a name, header or media type is malformed or reserved; 22001 one is too long (249 bytes
-- for topic and types, 1,024 for aggregate_id and ordering_key); 54000 the payload is larger than
-- outbox.max_payload_size, or the headers than 8,192 bytes or 64 members; 22021 a JSON payload is not
-- valid UTF-8; 22P02 it is not JSON; 25006 on a standby or in a read-only transaction; 42501 the role may
-- not enqueue events of this topic (outbox.grant_produce).
CREATE FUNCTION outbox.enqueue(
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_json';
COMMENT ON FUNCTION outbox.enqueue(text, text, text, jsonb, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz) IS
    'commits an event with a JSON payload together with the current transaction';

-- The same for any bytes. content_type is required; bytes that are called JSON must be JSON.
CREATE FUNCTION outbox.enqueue(
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         bytea,
    content_type    text,
    version         bigint      DEFAULT NULL,
    topic           text        DEFAULT NULL,
    ordering_key    text        DEFAULT NULL,
    headers         jsonb       DEFAULT NULL,
    schema_version  integer     DEFAULT 1,
    event_id        uuid        DEFAULT NULL,
    source_event_id uuid        DEFAULT NULL,
    occurred_at     timestamptz DEFAULT NULL)
RETURNS uuid
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_bytes';
COMMENT ON FUNCTION outbox.enqueue(text, text, text, bytea, text, bigint, text, text, jsonb, integer, uuid, uuid, timestamptz) IS
    'commits an event with a payload of any media type together with the current transaction';

-- One event of a batch: the arguments above. Either a payload, or data with its content_type.
-- extension/enqueue.cpp names the attributes in this order.
CREATE TYPE outbox.new_event AS (
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    payload         jsonb,
    version         bigint,
    topic           text,
    ordering_key    text,
    headers         jsonb,
    schema_version  integer,
    event_id        uuid,
    source_event_id uuid,
    occurred_at     timestamptz,
    content_type    text,
    data            bytea
);
COMMENT ON TYPE outbox.new_event IS 'an event to enqueue; jsonb_populate_record() makes one from JSON';

-- Many events at once, cheaper per event; they get positions in the order of the array. Returns their
-- ids in the same order. From a set: outbox.enqueue(ARRAY(SELECT ROW(...)::outbox.new_event ...)).
CREATE FUNCTION outbox.enqueue(events outbox.new_event[])
RETURNS uuid[]
LANGUAGE c VOLATILE PARALLEL UNSAFE
AS 'MODULE_PATHNAME', 'outbox_enqueue_batch';
COMMENT ON FUNCTION outbox.enqueue(outbox.new_event[]) IS
    'commits many events together with the current transaction';

-- Captured tables: those whose changes become events by triggers. outbox.capture() (capture.sql) makes
-- the rows; extension/capture_config.cpp names the columns in this order.
--
-- Columns are known by their names. The tables they belong to may be altered, and have them in another
-- order after a dump is restored; the event triggers below follow them.
CREATE TABLE outbox.captured (
    relation       regclass    PRIMARY KEY,
    aggregate_type text        NOT NULL,
    aggregate_id   name[]      NOT NULL,
    row_key        name[]      NOT NULL,
    version        name,
    topic          text        NOT NULL,
    topic_column   name,
    ordering_key   name[],
    headers        jsonb       CHECK (jsonb_typeof(headers) = 'object'),
    columns        name[],
    excluded       name[]      NOT NULL,
    on_update      text        NOT NULL CHECK (on_update IN ('full', 'changed', 'diff')),
    old_values     boolean     NOT NULL,
    on_delete      text        NOT NULL CHECK (on_delete IN ('key', 'old')),
    conditional    boolean     NOT NULL,
    insert_type    text        NOT NULL,
    update_type    text        NOT NULL,
    delete_type    text        NOT NULL,
    truncate_type  text        NOT NULL,
    snapshot_type  text        NOT NULL,
    on_truncate    text        NOT NULL CHECK (on_truncate IN ('refuse', 'ignore', 'announce')),
    fire           text        NOT NULL CHECK (fire IN ('origin', 'replica', 'always')),
    known_columns  name[]      NOT NULL,
    known_members  oid[]       NOT NULL,
    captured_by    name        NOT NULL DEFAULT CURRENT_USER,
    captured_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.captured IS 'tables whose changes become events; see outbox.capture()';
COMMENT ON COLUMN outbox.captured.relation IS 'the table, with its partitions and children';
COMMENT ON COLUMN outbox.captured.aggregate_type IS 'of its events';
COMMENT ON COLUMN outbox.captured.aggregate_id IS 'columns that make the aggregate id';
COMMENT ON COLUMN outbox.captured.row_key IS 'columns of the primary key';
COMMENT ON COLUMN outbox.captured.version IS 'column with the version; NULL: the position of an event is its version';
COMMENT ON COLUMN outbox.captured.topic IS 'of its events, where topic_column does not say another';
COMMENT ON COLUMN outbox.captured.topic_column IS 'column with the topic';
COMMENT ON COLUMN outbox.captured.ordering_key IS 'columns that make the ordering key; none: no order; NULL: the aggregate id';
COMMENT ON COLUMN outbox.captured.headers IS 'column of each header';
COMMENT ON COLUMN outbox.captured.columns IS 'what is captured; NULL: all that is not excluded';
COMMENT ON COLUMN outbox.captured.excluded IS 'what is not captured';
COMMENT ON COLUMN outbox.captured.on_update IS 'payload of events of updates';
COMMENT ON COLUMN outbox.captured.old_values IS 'whether changed columns come with what they were';
COMMENT ON COLUMN outbox.captured.on_delete IS 'payload of events of deletes';
COMMENT ON COLUMN outbox.captured.conditional IS 'whether there is a condition, which the triggers have';
COMMENT ON COLUMN outbox.captured.insert_type IS 'event type';
COMMENT ON COLUMN outbox.captured.update_type IS 'event type';
COMMENT ON COLUMN outbox.captured.delete_type IS 'event type';
COMMENT ON COLUMN outbox.captured.truncate_type IS 'event type';
COMMENT ON COLUMN outbox.captured.snapshot_type IS 'event type';
COMMENT ON COLUMN outbox.captured.on_truncate IS 'what TRUNCATE does';
COMMENT ON COLUMN outbox.captured.fire IS 'when the triggers fire: session_replication_role';
COMMENT ON COLUMN outbox.captured.known_columns IS 'names of the columns of the table by number, as they were last; so a rename is seen';
COMMENT ON COLUMN outbox.captured.known_members IS 'the table, its partitions and children, as they were last';
COMMENT ON COLUMN outbox.captured.captured_by IS 'the role that called outbox.capture()';
COMMENT ON COLUMN outbox.captured.captured_at IS 'when';

SELECT pg_extension_config_dump('outbox.captured', 'WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class)');

-- Dropped ones are NULL.
CREATE FUNCTION outbox_internal.columns_of("table" regclass)
RETURNS name[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(CASE WHEN NOT a.attisdropped THEN a.attname END ORDER BY a.attnum), '{}')
      FROM pg_attribute AS a
     WHERE a.attrelid = "table" AND a.attnum > 0;
END;
COMMENT ON FUNCTION outbox_internal.columns_of(regclass) IS 'names of the columns of a table by number';

CREATE TRIGGER captured_changed AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE ON outbox.captured
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.table_changed();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER captured_changed;
COMMENT ON TRIGGER captured_changed ON outbox.captured IS 'has sessions read the table again';

CREATE FUNCTION outbox_internal.save_captured(captured outbox.captured)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_save_captured';
COMMENT ON FUNCTION outbox_internal.save_captured(outbox.captured) IS 'notes that a table is captured, for its owner';

CREATE FUNCTION outbox_internal.forget_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_forget_captured';
COMMENT ON FUNCTION outbox_internal.forget_captured(regclass) IS 'notes that a table is not captured, for its owner';

CREATE FUNCTION outbox_internal.check_captured("table" regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_check_captured';
COMMENT ON FUNCTION outbox_internal.check_captured(regclass) IS 'refuses a capture that does not fit the table';

CREATE FUNCTION outbox.capture_row()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_row';
COMMENT ON FUNCTION outbox.capture_row() IS 'makes an event of a changed row';

CREATE FUNCTION outbox.capture_truncate()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_capture_truncate';
COMMENT ON FUNCTION outbox.capture_truncate() IS 'makes an event of TRUNCATE, or refuses it';

-- ---------------------------------------------------------------------------------------------
-- Triggers
-- ---------------------------------------------------------------------------------------------

-- The table, its partitions and children, and theirs, but not temporary ones: those are another session's.
CREATE FUNCTION outbox_internal.captured_tree("table" regclass)
RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE member(relation) AS (
        SELECT "table"::oid
        UNION
        SELECT i.inhrelid
          FROM member AS m
          JOIN pg_inherits AS i ON i.inhparent = m.relation
          JOIN pg_class AS c ON c.oid = i.inhrelid AND c.relpersistence <> 't'
    )
    SELECT m.relation::regclass FROM member AS m;
END;
COMMENT ON FUNCTION outbox_internal.captured_tree(regclass) IS 'a table with its partitions and children';

-- Also when a dump is restored, where columns may have other numbers.
CREATE FUNCTION outbox_internal.know_table()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    NEW.known_columns := outbox_internal.columns_of(NEW.relation);
    NEW.known_members := ARRAY(SELECT outbox_internal.captured_tree(NEW.relation));
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox_internal.know_table() IS 'notes what a captured table consists of';

CREATE TRIGGER know_table BEFORE INSERT ON outbox.captured
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.know_table();
ALTER TABLE outbox.captured ENABLE ALWAYS TRIGGER know_table;
COMMENT ON TRIGGER know_table ON outbox.captured IS 'notes what the table consists of';

-- The condition as SQL over the columns of the table; NULL: all rows are captured.
CREATE FUNCTION outbox.capture_condition("table" regclass)
RETURNS text
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- That of the delete trigger is about OLD, which pg_get_expr() takes for the table. The owner may have put
    -- another trigger in its place, about rows that pg_get_expr() does not know.
    SELECT pg_get_expr(t.tgqual, t.tgrelid)
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgname = '00_outbox_capture_delete'
       AND t.tgfoid = 'outbox.capture_row'::regproc AND t.tgtype = 9; -- AFTER DELETE, FOR EACH ROW
END;
COMMENT ON FUNCTION outbox.capture_condition(regclass) IS 'which rows of a captured table are captured; NULL: all';

-- Triggers fire in the order of their names. These come first, for what another trigger changes has to
-- come later in the log.
CREATE FUNCTION outbox_internal.add_capture_triggers(member regclass, condition text, on_truncate text)
RETURNS void
LANGUAGE c VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_add_capture_triggers';
COMMENT ON FUNCTION outbox_internal.add_capture_triggers(regclass, text, text) IS 'gives a table the triggers that capture it';

CREATE FUNCTION outbox_internal.set_capture_fire(member regclass, fire text)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_set_capture_fire';
COMMENT ON FUNCTION outbox_internal.set_capture_fire(regclass, text) IS 'says when the triggers that capture a table fire';

CREATE FUNCTION outbox_internal.trigger_state(fire text)
RETURNS "char"
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE fire WHEN 'replica' THEN 'R' WHEN 'always' THEN 'A' ELSE 'O' END::"char";
END;
COMMENT ON FUNCTION outbox_internal.trigger_state(text) IS 'pg_trigger.tgenabled of triggers that fire so';

CREATE FUNCTION outbox_internal.drop_capture_triggers(member regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_drop_capture_triggers';
COMMENT ON FUNCTION outbox_internal.drop_capture_triggers(regclass) IS 'takes the triggers that capture it from a table';

-- ---------------------------------------------------------------------------------------------
-- Tables that are altered or dropped
-- ---------------------------------------------------------------------------------------------

-- What columns are called now; those that are gone keep their names, for nobody to take them for others.
CREATE FUNCTION outbox_internal.follow_names(names name[], before name[], now name[])
RETURNS name[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(coalesce(now[array_position(before, n.name)], n.name) ORDER BY n.place), '{}')
      FROM unnest(names) WITH ORDINALITY AS n(name, place);
END;
COMMENT ON FUNCTION outbox_internal.follow_names(name[], name[], name[]) IS 'names of columns after a rename';

CREATE FUNCTION outbox_internal.follow_columns(captured regclass)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.captured AS c
       SET aggregate_id = outbox_internal.follow_names(c.aggregate_id, c.known_columns, t.now),
           row_key = outbox_internal.follow_names(c.row_key, c.known_columns, t.now),
           version = (outbox_internal.follow_names(ARRAY[c.version], c.known_columns, t.now))[1],
           topic_column = (outbox_internal.follow_names(ARRAY[c.topic_column], c.known_columns, t.now))[1],
           ordering_key = outbox_internal.follow_names(c.ordering_key, c.known_columns, t.now),
           headers = (SELECT jsonb_object_agg(h.key, (outbox_internal.follow_names(ARRAY[h.value::name], c.known_columns, t.now))[1])
                        FROM jsonb_each_text(c.headers) AS h),
           -- A dropped one is forgotten here. What was excluded once stays so, should it come again.
           columns = outbox_internal.follow_names(CASE WHEN c.columns IS NOT NULL THEN
                                             array(SELECT n.name FROM unnest(c.columns) WITH ORDINALITY AS n(name, place)
                                                    WHERE n.name <> ALL (t.gone) ORDER BY n.place) END, c.known_columns, t.now),
           excluded = outbox_internal.follow_names(c.excluded, c.known_columns, t.now),
           known_columns = t.now
      FROM (SELECT o.relation, n.now,
                   array(SELECT b.name FROM unnest(o.known_columns) WITH ORDINALITY AS b(name, number)
                          WHERE b.name IS NOT NULL AND n.now[b.number] IS NULL) AS gone
              FROM outbox.captured AS o
             CROSS JOIN LATERAL outbox_internal.columns_of(o.relation) AS n(now)
             WHERE o.relation = captured) AS t
     WHERE t.relation = c.relation AND t.now <> c.known_columns;
END;
COMMENT ON FUNCTION outbox_internal.follow_columns(regclass) IS 'follows renamed and dropped columns of a captured table';

-- Three row triggers, as outbox_internal.add_capture_triggers() makes them: AFTER INSERT, UPDATE, DELETE.
CREATE FUNCTION outbox_internal.has_capture_triggers("table" regclass)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT count(*) = 3
      FROM pg_trigger AS t
     WHERE t.tgrelid = "table" AND t.tgfoid = 'outbox.capture_row'::regproc
       AND (t.tgname, t.tgtype) IN (('00_outbox_capture_insert', 5), ('00_outbox_capture_update', 17), ('00_outbox_capture_delete', 9));
END;
COMMENT ON FUNCTION outbox_internal.has_capture_triggers(regclass) IS 'whether a table has its triggers; not yet, while a dump is restored';

CREATE FUNCTION outbox_internal.add_capture_triggers_to_all(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    condition CONSTANT text := outbox.capture_condition(captured);
    capture   CONSTANT outbox.captured := c FROM outbox.captured AS c WHERE c.relation = captured;
    member    regclass;
BEGIN
    IF NOT outbox_internal.has_capture_triggers(captured) OR capture.conditional <> (condition IS NOT NULL) THEN
        RAISE EXCEPTION 'the triggers that capture it are not complete' USING ERRCODE = 'object_not_in_prerequisite_state';
    END IF;
    FOR member IN SELECT outbox_internal.captured_tree(captured) LOOP
        PERFORM outbox_internal.add_capture_triggers(member, condition, capture.on_truncate);
        PERFORM outbox_internal.set_capture_fire(member, capture.fire);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.add_capture_triggers_to_all(regclass) IS 'gives partitions and children the triggers of a captured table';

-- New partitions and children get the triggers, those that are none any more lose them. Whatever the owner has done
-- to the triggers: that a capture cannot follow is no error in the statement.
CREATE FUNCTION outbox_internal.follow_members(captured regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    now    CONSTANT oid[] := array(SELECT outbox_internal.captured_tree(captured));
    before CONSTANT oid[] := c.known_members FROM outbox.captured AS c WHERE c.relation = captured;
BEGIN
    IF now @> before AND now <@ before THEN
        RETURN;
    END IF;
    UPDATE outbox.captured AS c SET known_members = now WHERE c.relation = captured;
    PERFORM outbox_internal.drop_capture_triggers(r.oid) FROM pg_class AS r WHERE r.oid = ANY (before) AND r.oid <> ALL (now);
    BEGIN
        PERFORM outbox_internal.add_capture_triggers_to_all(captured);
    EXCEPTION
        WHEN transaction_rollback OR insufficient_resources OR operator_intervention OR lock_not_available THEN
            RAISE;
        WHEN OTHERS THEN
            UPDATE outbox.captured AS c -- to be tried again next time
               SET known_members = array(SELECT m FROM unnest(now) AS m WHERE m = ANY (before))
             WHERE c.relation = captured;
            RAISE WARNING 'new partitions and children of table % are not captured: %', captured, SQLERRM
                USING HINT = format('Call outbox.capture(%L) again, with replace => true, or outbox.uncapture(%1$L).', captured::text);
    END;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_members(regclass) IS 'follows new and former partitions and children of a captured table';

-- Tables that were altered, with those that were altered with them: partitions and children, tables of a type.
CREATE FUNCTION outbox_internal.altered_with(tables oid[])
RETURNS oid[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE altered(relation) AS (
        SELECT unnest(tables)
        UNION
        SELECT t.oid
          FROM pg_class AS y
          JOIN pg_depend AS d ON d.refclassid = 'pg_type'::regclass AND d.refobjid = y.reltype AND d.classid = 'pg_class'::regclass
          JOIN pg_class AS t ON t.oid = d.objid AND t.reloftype = y.reltype
         WHERE y.oid = ANY (tables) AND y.relkind = 'c'
    ), below(relation) AS (
        SELECT a.relation FROM altered AS a
        UNION
        SELECT i.inhrelid FROM below AS b JOIN pg_inherits AS i ON i.inhparent = b.relation
    )
    SELECT array(SELECT b.relation FROM below AS b);
END;
COMMENT ON FUNCTION outbox_internal.altered_with(oid[]) IS 'tables that are altered together with some';

-- The captured tables that are concerned when something happens to these: they are among them, or above them. Of all
-- others nothing is looked at: a capture is a matter of those who own its tables.
CREATE FUNCTION outbox_internal.captures_of(tables oid[])
RETURNS SETOF regclass
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE above(relation) AS (
        SELECT unnest(tables)
        UNION
        SELECT i.inhparent FROM above AS a JOIN pg_inherits AS i ON i.inhrelid = a.relation
    ), all_above(relations) AS (
        SELECT array(SELECT a.relation FROM above AS a)
    )
    SELECT c.relation
      FROM outbox.captured AS c, all_above AS a
     WHERE c.relation::oid = ANY (a.relations) OR c.known_members && a.relations
     ORDER BY c.relation::oid;
END;
COMMENT ON FUNCTION outbox_internal.captures_of(oid[]) IS 'the captured tables that some tables belong to';

-- The capture does not fit the table any more, or does not work. Who has altered it is told; nobody else is kept from
-- altering its own: with an owner of its own, a partition or child has only a warning.
CREATE FUNCTION outbox_internal.check_member(captured regclass, member regclass)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.check_captured(member);
EXCEPTION WHEN OTHERS THEN
    IF SQLSTATE <> '55000' -- triggers that somebody has dropped or made otherwise
       AND (SELECT m.relowner = c.relowner FROM pg_class AS m, pg_class AS c WHERE m.oid = member AND c.oid = captured) THEN
        RAISE;
    END IF;
    RAISE WARNING 'changes of table % cannot be captured: %', member, SQLERRM
        USING HINT = format('Call outbox.capture(%L) again, with replace => true, or outbox.uncapture(%1$L).', captured::text);
END
$$;
COMMENT ON FUNCTION outbox_internal.check_member(regclass, regclass) IS 'refuses or reports that a capture does not fit a table any more';

-- The owner of the extension can rename the table. Statements of others go on, for most have nothing to do with captures.
-- No event is lost meanwhile: changes of captured tables are refused. A view in its place is not read: it has code.
CREATE FUNCTION outbox_internal.has_captured_table()
RETURNS boolean
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_class WHERE oid = to_regclass('outbox.captured') AND relkind = 'r') THEN
        RETURN true;
    END IF;
    RAISE WARNING 'captures do not follow this statement: table outbox.captured does not exist'
        USING HINT = 'If it was renamed, rename it back, and call outbox.capture() with replace => true for the captured tables that were altered meanwhile.';
    RETURN false;
END
$$;
COMMENT ON FUNCTION outbox_internal.has_captured_table() IS 'whether captures can be looked up; warns if not';

-- What the captures cannot do without is not altered.
CREATE FUNCTION outbox_internal.follow_altered_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    altered  oid[];
    captured regclass;
    member   regclass;
BEGIN
    IF NOT outbox_internal.has_captured_table() THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.captured) THEN
        RETURN;
    END IF;
    altered := outbox_internal.altered_with(array(SELECT command.objid FROM pg_event_trigger_ddl_commands() AS command
                                          WHERE command.classid = 'pg_class'::regclass));
    FOR captured IN SELECT outbox_internal.captures_of(altered) LOOP
        PERFORM outbox_internal.follow_columns(captured);
        PERFORM outbox_internal.follow_members(captured);
        UPDATE outbox.captured AS c SET relation = c.relation WHERE c.relation = captured; -- sessions look again
        IF outbox_internal.has_capture_triggers(captured) THEN
            FOR member IN SELECT m FROM outbox_internal.captured_tree(captured) AS m WHERE m::oid = ANY (altered) LOOP
                PERFORM outbox_internal.check_member(captured, member);
            END LOOP;
        END IF;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_altered_tables() IS 'keeps captures right when their tables are altered';

CREATE EVENT TRIGGER outbox_follow_altered_tables ON ddl_command_end
    WHEN tag IN ('ALTER TABLE', 'CREATE TABLE', 'ALTER FOREIGN TABLE', 'CREATE FOREIGN TABLE', 'CREATE SCHEMA', 'ALTER TYPE')
    EXECUTE FUNCTION outbox_internal.follow_altered_tables();
ALTER EVENT TRIGGER outbox_follow_altered_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_altered_tables IS 'keeps captures right when their tables are altered';

CREATE FUNCTION outbox_internal.follow_dropped_tables()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    changed oid[]; -- dropped, or without a column it had
    dropped oid[];
BEGIN
    IF NOT outbox_internal.has_captured_table() THEN
        RETURN;
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.captured) THEN
        RETURN;
    END IF;
    SELECT coalesce(array_agg(o.objid), '{}'), coalesce(array_agg(o.objid) FILTER (WHERE o.objsubid = 0), '{}')
      INTO changed, dropped
      FROM pg_event_trigger_dropped_objects() AS o
     WHERE o.classid = 'pg_class'::regclass;
    DELETE FROM outbox.captured AS c WHERE c.relation::oid = ANY (dropped);
    UPDATE outbox.captured AS c
       SET known_members = array(SELECT m FROM unnest(c.known_members) AS m WHERE m <> ALL (dropped))
     WHERE c.known_members && dropped;
    PERFORM outbox_internal.follow_columns(captured) FROM outbox_internal.captures_of(changed) AS captured;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_dropped_tables() IS 'forgets dropped tables, and columns';

CREATE EVENT TRIGGER outbox_follow_dropped_tables ON sql_drop EXECUTE FUNCTION outbox_internal.follow_dropped_tables();
ALTER EVENT TRIGGER outbox_follow_dropped_tables ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_tables IS 'forgets dropped tables, and columns';

-- outbox.capture(): the changes of a table become events. docs/capture.md says how.

-- Which events a table gets by default: those of order_line are called OrderLine...
CREATE FUNCTION outbox_internal.event_type_of(aggregate_type text, suffix text)
RETURNS text
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT string_agg(upper(left(part, 1)) || substr(part, 2), '' ORDER BY number) || suffix
      FROM regexp_split_to_table(aggregate_type, '[-_ .:/]+') WITH ORDINALITY AS p(part, number);
END;
COMMENT ON FUNCTION outbox_internal.event_type_of(text, text) IS 'the event type that an aggregate type gives';

CREATE FUNCTION outbox_internal.row_key_of("table" regclass)
RETURNS name[]
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT coalesce(array_agg(a.attname ORDER BY k.place), '{}')
      FROM pg_index AS i
     CROSS JOIN LATERAL unnest(i.indkey[0:i.indnkeyatts - 1]) WITH ORDINALITY AS k(number, place)
      JOIN pg_attribute AS a ON a.attrelid = i.indrelid AND a.attnum = k.number
     WHERE i.indrelid = "table" AND i.indisprimary;
END;
COMMENT ON FUNCTION outbox_internal.row_key_of(regclass) IS 'the columns of the primary key';

CREATE FUNCTION outbox_internal.check_capturable("table" regclass)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    relation record;
    other regclass;
BEGIN
    SELECT c.relkind, c.relpersistence, c.relowner, n.nspname INTO relation
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = "table";
    IF relation IS NULL THEN
        RAISE EXCEPTION 'table must not be null' USING ERRCODE = '22004';
    END IF;
    IF NOT pg_has_role(current_user, relation.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table %', "table" USING ERRCODE = '42501';
    END IF;
    IF relation.relkind NOT IN ('r', 'p') THEN
        RAISE EXCEPTION '% is not a table', "table" USING ERRCODE = '42809',
            HINT = 'Capture the tables that it is made of.';
    END IF;
    IF relation.relpersistence = 't' THEN
        RAISE EXCEPTION 'temporary tables cannot be captured' USING ERRCODE = '0A000';
    END IF;
    IF relation.nspname IN ('pg_catalog', 'information_schema', 'outbox', 'inbox') THEN
        RAISE EXCEPTION 'tables of schema % cannot be captured', relation.nspname USING ERRCODE = '0A000';
    END IF;
    SELECT c.captured INTO other
      FROM outbox.captures AS c
     WHERE c.captured <> "table"
       AND ("table" IN (SELECT outbox_internal.captured_tree(c.captured)) OR c.captured IN (SELECT outbox_internal.captured_tree("table")))
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'table % cannot be captured together with %', "table", other USING ERRCODE = '55000',
            DETAIL = 'One is a partition or child of the other, and its rows would be captured twice.',
            HINT = format('Call outbox.uncapture(%L) first.', other);
    END IF;
END
$$;
COMMENT ON FUNCTION outbox_internal.check_capturable(regclass) IS 'refuses what cannot be captured';

CREATE FUNCTION outbox_internal.check_choice(argument text, value text, choices text[])
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF (value = ANY (choices)) IS NOT TRUE THEN
        RAISE EXCEPTION '% must be one of %', argument, array_to_string(choices, ', ') USING ERRCODE = '22023';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox_internal.check_choice(text, text, text[]) IS 'refuses what is not one of the choices';

-- A row that moves to another partition is deleted and inserted. For the same aggregate these would be
-- two events of one version.
CREATE FUNCTION outbox_internal.check_moves("table" regclass, aggregate_id name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF EXISTS (SELECT FROM pg_partitioned_table AS p
                CROSS JOIN LATERAL unnest(p.partattrs) AS k(number)
                 LEFT JOIN pg_attribute AS a ON a.attrelid = p.partrelid AND a.attnum = k.number
                WHERE p.partrelid IN (SELECT outbox_internal.captured_tree("table"))
                  AND (a.attname = ANY (aggregate_id)) IS NOT TRUE) THEN
        RAISE EXCEPTION 'table % cannot be captured with a version column', "table" USING ERRCODE = '55000',
            DETAIL = 'A row that moves to another partition is deleted and inserted, and both events would have the same version.',
            HINT = 'Put the columns of the partition key into aggregate_id, or leave version out.';
    END IF;
END
$$;
COMMENT ON FUNCTION outbox_internal.check_moves(regclass, name[]) IS 'refuses a version where rows may move';

CREATE VIEW outbox.captures AS
SELECT c.relation AS captured,
       c.aggregate_type, c.aggregate_id, c.version, c.topic, c.topic_column,
       coalesce(c.ordering_key, c.aggregate_id) AS ordering_key,
       c.headers, p.columns, p.not_captured,
       CASE WHEN c.columns IS NULL THEN 'include' ELSE 'exclude' END AS new_columns,
       c.on_update, c.old_values, c.on_delete, c.on_truncate,
       outbox.capture_condition(c.relation) AS condition,
       c.insert_type, c.update_type, c.delete_type, c.truncate_type, c.snapshot_type,
       c.fire,
       outbox_internal.has_capture_triggers(c.relation)
           AND NOT EXISTS (SELECT FROM pg_trigger AS t
                            WHERE t.tgrelid = ANY (c.known_members) AND t.tgfoid = 'outbox.capture_row'::regproc
                              AND t.tgenabled <> outbox_internal.trigger_state(c.fire)) AS enabled,
       c.captured_by, c.captured_at
  FROM outbox.captured AS c
  JOIN pg_class AS r ON r.oid = c.relation
 CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(a.attname ORDER BY a.attnum) FILTER (WHERE in_payload), '{}') AS columns,
               coalesce(array_agg(a.attname ORDER BY a.attnum) FILTER (WHERE NOT in_payload), '{}') AS not_captured
          FROM pg_attribute AS a
         CROSS JOIN LATERAL (SELECT a.attname = ANY (c.aggregate_id || c.row_key || c.version)
                                    OR CASE WHEN c.columns IS NULL THEN a.attname <> ALL (c.excluded) AND a.attgenerated <> 'v'
                                            ELSE a.attname = ANY (c.columns) END AS in_payload) AS i
         WHERE a.attrelid = c.relation AND a.attnum > 0 AND NOT a.attisdropped) AS p;
COMMENT ON VIEW outbox.captures IS 'which tables are captured, and how';
COMMENT ON COLUMN outbox.captures.captured IS 'the table, with its partitions and children';
COMMENT ON COLUMN outbox.captures.columns IS 'what payloads have';
COMMENT ON COLUMN outbox.captures.not_captured IS 'the other columns; among them those that were added since';
COMMENT ON COLUMN outbox.captures.enabled IS 'false: somebody has dropped or switched off its triggers';

CREATE FUNCTION outbox.capture(
    "table"        regclass,
    aggregate_type text    DEFAULT NULL,
    aggregate_id   name[]  DEFAULT NULL,
    version        name    DEFAULT NULL,
    topic          text    DEFAULT NULL,
    topic_column   name    DEFAULT NULL,
    ordering_key   name[]  DEFAULT NULL,
    headers        jsonb   DEFAULT NULL,
    columns        name[]  DEFAULT NULL,
    exclude        name[]  DEFAULT NULL,
    new_columns    text    DEFAULT 'exclude',
    on_update      text    DEFAULT 'full',
    old_values     boolean DEFAULT false,
    on_delete      text    DEFAULT 'key',
    on_truncate    text    DEFAULT 'refuse',
    condition      text    DEFAULT NULL,
    insert_type    text    DEFAULT NULL,
    update_type    text    DEFAULT NULL,
    delete_type    text    DEFAULT NULL,
    truncate_type  text    DEFAULT NULL,
    snapshot_type  text    DEFAULT NULL,
    fire           text    DEFAULT 'origin',
    replace        boolean DEFAULT false)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    captured outbox.captured;
    member regclass;
    is_captured boolean;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.check_capturable("table");
    PERFORM outbox_internal.check_choice('new_columns', new_columns, '{exclude,include}');
    PERFORM outbox_internal.check_choice('on_update', on_update, '{full,changed,diff}');
    PERFORM outbox_internal.check_choice('on_delete', on_delete, '{key,old}');
    PERFORM outbox_internal.check_choice('on_truncate', on_truncate, '{refuse,ignore,announce}');
    PERFORM outbox_internal.check_choice('fire', fire, '{origin,replica,always}');
    EXECUTE format('LOCK TABLE %s IN SHARE ROW EXCLUSIVE MODE', "table");
    is_captured := EXISTS (SELECT FROM outbox.captures AS c WHERE c.captured = "table");
    IF is_captured AND NOT replace THEN
        RAISE EXCEPTION 'table % is captured already', "table" USING ERRCODE = '42710',
            HINT = 'With replace => true it is captured anew, with all the arguments given here.';
    END IF;

    captured.relation := "table";
    captured.row_key := outbox_internal.row_key_of("table");
    captured.aggregate_type := coalesce(aggregate_type, (SELECT c.relname FROM pg_class AS c WHERE c.oid = "table"));
    captured.aggregate_id := coalesce(aggregate_id, captured.row_key);
    IF captured.aggregate_id = '{}' THEN
        RAISE EXCEPTION 'table % has no primary key', "table" USING ERRCODE = '42P16',
            HINT = 'Say by aggregate_id which columns identify what its rows are about.';
    END IF;
    captured.version := version;
    IF version IS NOT NULL THEN
        PERFORM outbox_internal.check_moves("table", captured.aggregate_id);
    END IF;
    captured.topic := coalesce(topic, captured.aggregate_type || '.events');
    captured.topic_column := topic_column;
    captured.ordering_key := ordering_key;
    IF jsonb_typeof(headers) <> 'object' THEN
        RAISE EXCEPTION 'headers must be a JSON object' USING ERRCODE = '22023',
            HINT = 'Write for example ''{"tenant": "tenant_id"}''.';
    END IF;
    captured.headers := headers;

    IF new_columns = 'include' THEN
        IF columns IS NOT NULL THEN
            RAISE EXCEPTION 'columns cannot be given with new_columns => ''include''' USING ERRCODE = '22023',
                HINT = 'Say by exclude which columns are not captured.';
        END IF;
    ELSE
        captured.columns := coalesce(columns, (
            SELECT array_agg(a.attname ORDER BY a.attnum)
              FROM pg_attribute AS a
             WHERE a.attrelid = "table" AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated <> 'v'
               AND a.attname <> ALL (coalesce(exclude, '{}'))));
    END IF;
    IF columns IS NOT NULL AND exclude IS NOT NULL THEN
        RAISE EXCEPTION 'either columns or exclude can be given, not both' USING ERRCODE = '22023';
    END IF;
    captured.excluded := coalesce(exclude, '{}');
    IF NOT outbox_internal.columns_of("table") @> exclude THEN
        RAISE EXCEPTION 'exclude names a column that table % does not have', "table" USING ERRCODE = '42703',
            HINT = format('Its columns are: %s.', array_to_string(outbox_internal.columns_of("table"), ', '));
    END IF;
    IF exclude && (captured.aggregate_id || captured.row_key || version) THEN
        RAISE EXCEPTION 'columns of the key and the version cannot be excluded' USING ERRCODE = '22023',
            HINT = 'Consumers need them to tell which row an event is about.';
    END IF;

    captured.on_update := on_update;
    captured.old_values := coalesce(old_values, false);
    IF old_values AND on_update <> 'changed' THEN
        RAISE EXCEPTION 'old_values needs on_update => ''changed''' USING ERRCODE = '22023',
            HINT = 'With on_update => ''diff'' old values are always there.';
    END IF;
    captured.on_delete := on_delete;
    captured.conditional := condition IS NOT NULL;
    captured.insert_type := coalesce(insert_type, outbox_internal.event_type_of(captured.aggregate_type, 'Created'));
    captured.update_type := coalesce(update_type, outbox_internal.event_type_of(captured.aggregate_type, 'Updated'));
    captured.delete_type := coalesce(delete_type, outbox_internal.event_type_of(captured.aggregate_type, 'Deleted'));
    captured.truncate_type := coalesce(truncate_type, outbox_internal.event_type_of(captured.aggregate_type, 'Truncated'));
    captured.snapshot_type := coalesce(snapshot_type, outbox_internal.event_type_of(captured.aggregate_type, 'Snapshot'));
    captured.on_truncate := on_truncate;
    captured.fire := fire;
    captured.known_columns := '{}'; -- a trigger fills these
    captured.known_members := '{}';
    captured.captured_by := current_user; -- as outbox_internal.save_captured() says, too, and when
    captured.captured_at := clock_timestamp();

    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.drop_capture_triggers(member);
    END LOOP;
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.add_capture_triggers(member, condition, on_truncate);
    END LOOP;
    PERFORM outbox_internal.save_captured(captured);
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.set_capture_fire(member, fire);
        PERFORM outbox_internal.check_captured(member);
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox.capture(regclass, text, name[], name, text, name, name[], jsonb, name[], name[], text, text, boolean, text, text, text, text, text, text, text, text, text, boolean) IS
    'has the changes of a table become events';

-- False: it was not captured.
CREATE FUNCTION outbox.uncapture("table" regclass)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    member regclass;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF NOT EXISTS (SELECT FROM outbox.captures AS c WHERE c.captured = "table") THEN
        RETURN false;
    END IF;
    PERFORM outbox_internal.forget_captured("table");
    FOR member IN SELECT outbox_internal.captured_tree("table") LOOP
        PERFORM outbox_internal.drop_capture_triggers(member);
    END LOOP;
    RETURN true;
END
$$;
COMMENT ON FUNCTION outbox.uncapture(regclass) IS 'has the changes of a table not become events any more';

-- Destinations are foreign servers of this wrapper.
CREATE FUNCTION outbox_internal.validate_options(options text[], catalog oid)
RETURNS void
LANGUAGE c STRICT
AS 'MODULE_PATHNAME', 'outbox_validate_options';
COMMENT ON FUNCTION outbox_internal.validate_options(text[], oid) IS
    'checks the options of destinations and their credentials';

CREATE FOREIGN DATA WRAPPER pg_outbox VALIDATOR outbox_internal.validate_options;
COMMENT ON FOREIGN DATA WRAPPER pg_outbox IS
    'its servers are destinations of events; who has USAGE on it decides where this server connects to';

-- How far each destination has come. One row per destination, updated by its relay alone, at most
-- every outbox.cursor_flush_interval. No index on purpose: the relay finds its row by ctid, which
-- costs the same however many dead versions a held snapshot keeps alive.
--
-- A destination is known by its name here and in outbox.delivery. Names last through dumps, copies and
-- pg_upgrade, which oids do not; and they are followed when servers are renamed or dropped, below.
CREATE SEQUENCE outbox.destination_number AS integer;
COMMENT ON SEQUENCE outbox.destination_number IS 'numbers of destinations';
SELECT pg_extension_config_dump('outbox.destination_number', '');

CREATE TABLE outbox.cursor (
    destination       name        NOT NULL,
    number            integer     NOT NULL DEFAULT nextval('outbox.destination_number'),
    server            oid         NOT NULL,
    done              pg_snapshot NOT NULL,
    upto              pg_snapshot,
    position          bigint      NOT NULL,
    system_identifier bigint      NOT NULL,
    lease             bigint      NOT NULL,
    saved_at          timestamptz NOT NULL,
    paused            boolean     NOT NULL DEFAULT false,
    detached_at       timestamptz,
    inserted_by       xid8        NOT NULL DEFAULT pg_current_xact_id(),
    dumped_done       pg_snapshot,
    dumped_upto       pg_snapshot,
    lanes             integer,
    first_batch       bigint,
    next_batch        bigint
);
COMMENT ON TABLE outbox.cursor IS 'how far each destination has come';
COMMENT ON COLUMN outbox.cursor.destination IS 'name of the foreign server; default: outbox.default_destination';
COMMENT ON COLUMN outbox.cursor.number IS 'of the destination, for as long as it lives; see outbox.event.only_to';
COMMENT ON COLUMN outbox.cursor.server IS 'the foreign server when the relay started; 0: outbox.default_destination';
COMMENT ON COLUMN outbox.cursor.done IS 'the events of all transactions that had finished in this snapshot are settled';
COMMENT ON COLUMN outbox.cursor.upto IS 'of the window that ends here, the events up to position are settled as well; NULL: none';
COMMENT ON COLUMN outbox.cursor.position IS 'highest settled position';
COMMENT ON COLUMN outbox.cursor.system_identifier IS 'the cluster whose transactions the snapshots speak of';
COMMENT ON COLUMN outbox.cursor.lease IS 'token of the relay that may settle; a new relay takes a new one';
COMMENT ON COLUMN outbox.cursor.saved_at IS 'when the row was written';
COMMENT ON COLUMN outbox.cursor.paused IS 'nothing is delivered until outbox.resume()';
COMMENT ON COLUMN outbox.cursor.detached_at IS 'since then it does not hold the log: see outbox.on_full_log; NULL: it does';
COMMENT ON COLUMN outbox.cursor.inserted_by IS 'the transaction that made the row; so one that comes with a dump is known';
COMMENT ON COLUMN outbox.cursor.dumped_done IS 'done as it came with a dump; NULL: it did not; see restore.sql';
COMMENT ON COLUMN outbox.cursor.dumped_upto IS 'upto as it came with a dump';
COMMENT ON COLUMN outbox.cursor.lanes IS 'pull: batches were dealt out to so many lanes';
-- A search for the first batch of a lane starts here, and so meets no dead rows that an old snapshot keeps.
COMMENT ON COLUMN outbox.cursor.first_batch IS 'pull: there are no batches with a lower number';
COMMENT ON COLUMN outbox.cursor.next_batch IS 'pull: number of the next batch';

SELECT pg_extension_config_dump('outbox.cursor', '');

-- The servers of a DDL command that are destinations. A server of another wrapper may have any name, also one
-- that a cursor has.
CREATE FUNCTION outbox_internal.is_destination(server oid)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT
                     FROM pg_foreign_server AS s
                     JOIN pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
                    WHERE s.oid = server AND w.fdwname = 'pg_outbox');
END;
COMMENT ON FUNCTION outbox_internal.is_destination(oid) IS 'whether a foreign server is a destination';

-- 'default' is the name of outbox.default_destination, whose cursor no server may take over.
CREATE FUNCTION outbox_internal.check_server_name(server oid)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF outbox_internal.is_destination(server)
       AND EXISTS (SELECT FROM pg_foreign_server AS s WHERE s.oid = server AND s.srvname = 'default') THEN
        RAISE EXCEPTION 'a destination cannot be called "default"'
            USING ERRCODE = 'reserved_name',
                  DETAIL = 'It is the name of outbox.default_destination.',
                  HINT = 'Give the foreign server another name.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_server_name(oid) IS 'refuses the name of outbox.default_destination';

-- A destination has its cursor from its creation on: one that starts at the end of the log gets what
-- commits after that, however long its relay takes to start.
CREATE FUNCTION outbox_internal.start_cursor()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.check_server_name(command.objid)
       FROM pg_event_trigger_ddl_commands() AS command
      WHERE command.classid = 'pg_foreign_server'::regclass;
    INSERT INTO outbox.cursor
        (destination, server, done, position, system_identifier, lease, saved_at)
    SELECT s.srvname, s.oid,
           CASE WHEN 'start=end' = ANY (s.srvoptions) THEN pg_current_snapshot() ELSE '1:1:' END, 0, c.system_identifier, 0, clock_timestamp()
      FROM pg_event_trigger_ddl_commands() AS command
      JOIN pg_foreign_server AS s ON s.oid = command.objid
     CROSS JOIN pg_control_system() AS c
     WHERE command.classid = 'pg_foreign_server'::regclass
       AND outbox_internal.is_destination(s.oid)
       AND NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = s.srvname); -- restored
END
$$;
COMMENT ON FUNCTION outbox_internal.start_cursor() IS 'makes the cursor of a destination';

CREATE EVENT TRIGGER outbox_start_cursor ON ddl_command_end WHEN tag IN ('CREATE SERVER')
    EXECUTE FUNCTION outbox_internal.start_cursor();
ALTER EVENT TRIGGER outbox_start_cursor ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_start_cursor IS 'makes the cursor of a destination';

-- A renamed destination keeps its cursor and its events in trouble. Which one is renamed or dropped can be told
-- by its oid alone, so the oids are brought up to date before. The relay that goes by the old name loses
-- its lease, so that it can write nothing under that name any more.
CREATE FUNCTION outbox_internal.note_servers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    UPDATE outbox.cursor AS c
       SET server = s.oid
      FROM pg_foreign_server AS s
     WHERE s.srvname = c.destination AND s.oid <> c.server AND outbox_internal.is_destination(s.oid);
END
$$;
COMMENT ON FUNCTION outbox_internal.note_servers() IS 'notes which server each cursor belongs to';

CREATE EVENT TRIGGER outbox_note_servers ON ddl_command_start
    WHEN tag IN ('ALTER SERVER', 'DROP SERVER', 'DROP FOREIGN DATA WRAPPER', 'DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox_internal.note_servers();
ALTER EVENT TRIGGER outbox_note_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_note_servers IS 'notes which server each cursor belongs to';

CREATE FUNCTION outbox_internal.follow_renamed_servers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    renamed record;
BEGIN
    PERFORM outbox_internal.check_server_name(command.objid)
       FROM pg_event_trigger_ddl_commands() AS command
      WHERE command.classid = 'pg_foreign_server'::regclass;
    FOR renamed IN
        SELECT c.destination AS old, s.srvname AS new
          FROM pg_event_trigger_ddl_commands() AS command
          JOIN pg_foreign_server AS s ON s.oid = command.objid
          JOIN outbox.cursor AS c ON c.server = s.oid AND c.destination <> s.srvname
         WHERE command.classid = 'pg_foreign_server'::regclass AND outbox_internal.is_destination(s.oid)
    LOOP
        UPDATE outbox.cursor SET destination = renamed.new, lease = lease + 1 WHERE destination = renamed.old;
        UPDATE outbox.delivery SET destination = renamed.new WHERE destination = renamed.old;
        UPDATE outbox.batch SET destination = renamed.new WHERE destination = renamed.old;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_renamed_servers() IS 'renames what belongs to a destination';

CREATE EVENT TRIGGER outbox_follow_renamed_servers ON ddl_command_end WHEN tag IN ('ALTER SERVER')
    EXECUTE FUNCTION outbox_internal.follow_renamed_servers();
ALTER EVENT TRIGGER outbox_follow_renamed_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_renamed_servers IS 'renames what belongs to a destination';

-- A dropped destination takes along what belongs to it: it is known by its oid, for a dropped server does not
-- say which wrapper it had.
CREATE FUNCTION outbox_internal.follow_dropped_servers()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    dropped name;
BEGIN
    FOR dropped IN
        SELECT c.destination
          FROM pg_event_trigger_dropped_objects() AS o
          JOIN outbox.cursor AS c ON c.server = o.objid AND c.destination = o.object_name
         WHERE o.classid = 'pg_foreign_server'::regclass
    LOOP
        DELETE FROM outbox.cursor WHERE destination = dropped;
        DELETE FROM outbox.delivery WHERE destination = dropped;
        DELETE FROM outbox.batch WHERE destination = dropped;
    END LOOP;
END
$$;
COMMENT ON FUNCTION outbox_internal.follow_dropped_servers() IS 'removes what belongs to a destination';

CREATE EVENT TRIGGER outbox_follow_dropped_servers ON sql_drop
    WHEN tag IN ('DROP SERVER', 'DROP FOREIGN DATA WRAPPER', 'DROP EXTENSION', 'DROP OWNED')
    EXECUTE FUNCTION outbox_internal.follow_dropped_servers();
ALTER EVENT TRIGGER outbox_follow_dropped_servers ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_follow_dropped_servers IS 'removes what belongs to a destination';

-- Events in trouble at a destination. A healthy event never gets here.
--
--   PENDING     waits behind an earlier event of its ordering key, or for its turn in a replay
--   RELEASED    has failed and waits for its next attempt
--   DEAD        has used up its attempts or was refused for good: a dead letter, waits for a person
--   DISCARDED   a person decided against it; kept until the cursor has passed it
--
-- A row is a full copy of its event, so that the log can move on. Rows hold their key: while a key
-- has a PENDING or RELEASED row (or, with on_dead_letter 'block', a DEAD one), its later events are put
-- behind it. Of each key only the first such row has a next_retry_at; whoever takes a row away gives
-- the next one its turn (outbox_internal.promote). All of this happens under the lock of the destination's
-- row of outbox.cursor, so that nobody puts an event behind a row that is just being taken away.
--
-- The columns of the event come first, as in outbox.event: extension/log.hpp counts on it.
CREATE TABLE outbox.delivery (
    LIKE outbox.event INCLUDING COMMENTS,
    destination     name        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('PENDING', 'RELEASED', 'DEAD', 'DISCARDED')),
    attempts        integer     NOT NULL DEFAULT 0,
    next_retry_at   timestamptz,
    lock_token      uuid,
    locked_at       timestamptz,
    locked_until    timestamptz,
    last_error      text,
    first_failed_at timestamptz,
    last_failed_at  timestamptz,
    operation       bigint,
    PRIMARY KEY (destination, position)
);
COMMENT ON TABLE outbox.delivery IS 'events in trouble: retries, dead letters, and what waits behind them';
COMMENT ON COLUMN outbox.delivery.destination IS 'where the event is to be delivered';
COMMENT ON COLUMN outbox.delivery.state IS 'PENDING, RELEASED, DEAD or DISCARDED';
COMMENT ON COLUMN outbox.delivery.attempts IS 'how often the destination refused it';
COMMENT ON COLUMN outbox.delivery.next_retry_at IS 'not sent before; NULL: not before something else is settled';
COMMENT ON COLUMN outbox.delivery.lock_token IS 'it is being delivered under this token; NULL: it is not';
COMMENT ON COLUMN outbox.delivery.locked_at IS 'since when';
COMMENT ON COLUMN outbox.delivery.locked_until IS 'then the lease of a fetcher ends; NULL: a relay has it';
COMMENT ON COLUMN outbox.delivery.last_error IS 'why the last attempt failed';
COMMENT ON COLUMN outbox.delivery.first_failed_at IS 'when the first attempt failed';
COMMENT ON COLUMN outbox.delivery.last_failed_at IS 'when the last attempt failed';
COMMENT ON COLUMN outbox.delivery.operation IS 'the replay that put it here; see outbox.operation';

CREATE INDEX delivery_key ON outbox.delivery (destination, ordering_key, position)
    WHERE state <> 'DISCARDED' AND ordering_key <> '';
COMMENT ON INDEX outbox.delivery_key IS 'finds what holds a key';
CREATE INDEX delivery_due ON outbox.delivery (destination, next_retry_at)
    WHERE next_retry_at IS NOT NULL;
COMMENT ON INDEX outbox.delivery_due IS 'finds what is due';

CREATE INDEX delivery_failed ON outbox.delivery (state, destination) WHERE state IN ('DEAD', 'RELEASED');
COMMENT ON INDEX outbox.delivery_failed IS 'counts retries and dead letters';
CREATE INDEX delivery_operation ON outbox.delivery (operation) WHERE operation IS NOT NULL;
COMMENT ON INDEX outbox.delivery_operation IS 'finds the events of a replay';

SELECT pg_extension_config_dump('outbox.delivery', '');

-- This table grows and shrinks faster than its statistics follow, and a plan made while it was empty lives
-- on in a relay. So statements name the rows they mean by destination and `position = ANY (...)`, although
-- a join says as much: else they may be found by looking at all rows of the destination.

-- An option of a destination, or else the setting of the same name.
CREATE FUNCTION outbox_internal.destination_option(destination name, option text)
RETURNS text
LANGUAGE c STABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_destination_option';
COMMENT ON FUNCTION outbox_internal.destination_option(name, text) IS 'an option of a destination, or its default';

CREATE FUNCTION outbox_internal.option_as_interval(destination name, option text)
RETURNS interval
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- As in all options, a bare number is milliseconds.
    SELECT (CASE WHEN value ~ '^\s*\d+\s*$' THEN value || 'ms' ELSE value END)::interval
      FROM outbox_internal.destination_option(destination, option) AS value;
END;
COMMENT ON FUNCTION outbox_internal.option_as_interval(name, text) IS 'an option that is a duration';

-- How long a failed event waits for its next attempt: exponential back-off with full jitter.
CREATE FUNCTION outbox_internal.retry_delay(destination name, attempts integer)
RETURNS interval
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- In seconds: an interval would overflow before least() looks at it.
    SELECT make_interval(secs => random() * least(
               extract(epoch FROM outbox_internal.option_as_interval(destination, 'retry_max'))::double precision,
               extract(epoch FROM outbox_internal.option_as_interval(destination, 'retry_base'))::double precision
                   * 2::double precision ^ least(greatest(attempts, 1) - 1, 60)));
END;
COMMENT ON FUNCTION outbox_internal.retry_delay(name, integer) IS 'how long a failed event waits for its next attempt';

-- The first row that holds the key: the one whose turn it is. No row: the key is free.
CREATE FUNCTION outbox_internal.first_of_key(destination name, ordering_key text)
RETURNS SETOF outbox.delivery
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT d.*
      FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.ordering_key = $2 AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
       -- In a subquery it is looked up once, not for each dead letter of the key.
       AND (d.state <> 'DEAD' OR (SELECT outbox_internal.destination_option($1, 'on_dead_letter')) = 'block')
     ORDER BY d.position
     LIMIT 1;
END;
COMMENT ON FUNCTION outbox_internal.first_of_key(name, text) IS 'the row of outbox.delivery that holds a key';

-- Gives the first row of each key its turn, and returns the keys that nothing holds any more.
CREATE FUNCTION outbox_internal.promote(destination name, keys text[])
RETURNS SETOF text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET next_retry_at = clock_timestamp()
      FROM (SELECT DISTINCT key FROM unnest(keys) AS key WHERE key <> '') AS k,
           LATERAL outbox_internal.first_of_key($1, k.key) AS first
     WHERE d.destination = $1 AND d.position = first.position
       AND first.state = 'PENDING' AND first.next_retry_at IS NULL;
    SELECT DISTINCT key
      FROM unnest(keys) AS key
     WHERE key <> '' AND NOT EXISTS (SELECT FROM outbox_internal.first_of_key($1, key));
END;
COMMENT ON FUNCTION outbox_internal.promote(name, text[]) IS 'gives what waits behind settled events its turn';

-- Keys that something holds.
CREATE FUNCTION outbox_internal.held_keys(destination name, at_most integer)
RETURNS SETOF text
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH RECURSIVE key AS (  -- from key to key by the index, however many rows each has
        (SELECT d.ordering_key
           FROM outbox.delivery AS d
          WHERE d.destination = $1 AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
          ORDER BY d.ordering_key LIMIT 1)
        UNION ALL
        SELECT (SELECT d.ordering_key
                  FROM outbox.delivery AS d
                 WHERE d.destination = $1 AND d.ordering_key > key.ordering_key
                   AND d.ordering_key <> '' AND d.state <> 'DISCARDED'
                 ORDER BY d.ordering_key LIMIT 1)
          FROM key
         WHERE key.ordering_key IS NOT NULL
    )
    SELECT key.ordering_key
      FROM key
     WHERE key.ordering_key IS NOT NULL
       AND EXISTS (SELECT FROM outbox_internal.first_of_key($1, key.ordering_key))
     LIMIT at_most;
END;
COMMENT ON FUNCTION outbox_internal.held_keys(name, integer) IS 'the keys that events in trouble hold';

-- The destination refused these events. Those that are not here yet are copied from the log.
CREATE FUNCTION outbox_internal.fail_events(
    destination name,
    xids        xid8[],
    positions   bigint[],
    errors      text[],
    permanent   boolean[],
    OUT "position" bigint,
    OUT state    text,
    OUT attempts integer)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    max_attempts CONSTANT integer NOT NULL := outbox_internal.destination_option(destination, 'max_attempts');
    now          CONSTANT timestamptz := clock_timestamp();
BEGIN
    INSERT INTO outbox.delivery
    SELECT e.*, $1, 'PENDING'
      FROM unnest(xids, positions) AS failed(xid, place)
     CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                          WHERE e.xid = failed.xid AND e.position = failed.place LIMIT 1) AS e
        ON CONFLICT DO NOTHING;

    RETURN QUERY
    UPDATE outbox.delivery AS d
       SET attempts = d.attempts + 1,
           state = CASE WHEN dies THEN 'DEAD' ELSE 'RELEASED' END,
           next_retry_at = CASE WHEN NOT dies THEN now + outbox_internal.retry_delay($1, d.attempts + 1) END,
           lock_token = NULL,
           locked_at = NULL,
           locked_until = NULL,
           last_error = failed.error,
           first_failed_at = coalesce(d.first_failed_at, now),
           last_failed_at = now
      FROM (SELECT f.place, f.error, f.permanent OR b.attempts + 1 >= max_attempts AS dies
              FROM unnest(positions, errors, permanent) AS f(place, error, permanent)
              JOIN outbox.delivery AS b ON b.destination = $1 AND b.position = f.place
             WHERE b.state IN ('PENDING', 'RELEASED') AND b.position = ANY (positions)) AS failed
     WHERE d.destination = $1 AND d.position = failed.place AND d.position = ANY (positions)
    RETURNING d.position, d.state, d.attempts;
END $$;
COMMENT ON FUNCTION outbox_internal.fail_events(name, xid8[], bigint[], text[], boolean[]) IS
    'makes refused events retries or dead letters';

-- These events wait behind others of their keys.
CREATE FUNCTION outbox_internal.park_events(destination name, xids xid8[], positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.delivery
    SELECT e.*, $1, 'PENDING'
      FROM unnest(xids, positions) AS parked(xid, place)
     CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                          WHERE e.xid = parked.xid AND e.position = parked.place LIMIT 1) AS e
        ON CONFLICT DO NOTHING;
END;
COMMENT ON FUNCTION outbox_internal.park_events(name, xid8[], bigint[]) IS
    'puts events behind others of their keys';

-- These events have to wait, through no fault of their own: what they are for is down, or they are in the
-- way of others. No attempt is charged. `steps`: they wait as an event does that was refused so often.
CREATE FUNCTION outbox_internal.release_events(
    destination name,
    xids        xid8[],
    positions   bigint[],
    errors      text[],
    steps       integer[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.park_events($1, xids, positions);
    UPDATE outbox.delivery AS d
       SET state = 'RELEASED',
           next_retry_at = clock_timestamp() + outbox_internal.retry_delay($1, released.step),
           lock_token = NULL,
           locked_at = NULL,
           locked_until = NULL,
           last_error = released.error,
           first_failed_at = coalesce(d.first_failed_at, clock_timestamp()),
           last_failed_at = clock_timestamp()
      FROM unnest(positions, errors, steps) AS released(place, error, step)
     WHERE d.destination = $1 AND d.position = released.place AND d.position = ANY (positions)
       AND d.state IN ('PENDING', 'RELEASED');
END;
COMMENT ON FUNCTION outbox_internal.release_events(name, xid8[], bigint[], text[], integer[]) IS
    'makes events wait that are not at fault';

-- These events are on their way, and stand here from now on, claimed under the token.
CREATE FUNCTION outbox_internal.move_events(destination name, token uuid, xids xid8[], positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.park_events($1, xids, positions);
    UPDATE outbox.delivery AS d
       SET lock_token = token, locked_at = clock_timestamp(), locked_until = NULL
     WHERE d.destination = $1 AND d.position = ANY (positions);
END;
COMMENT ON FUNCTION outbox_internal.move_events(name, uuid, xid8[], bigint[]) IS
    'takes events over that are on their way';

-- What was down works again: events that waited for it are due. Returns how many, at most so many.
CREATE FUNCTION outbox_internal.hurry_events(destination name, at_most integer)
RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH hurried AS (
        UPDATE outbox.delivery AS d
           SET next_retry_at = clock_timestamp()
          FROM (SELECT w.position
                  FROM outbox.delivery AS w
                 WHERE w.destination = $1 AND w.next_retry_at > clock_timestamp() AND w.state = 'RELEASED'
                   AND w.attempts = 0
                 LIMIT at_most) AS waiting
         WHERE d.destination = $1 AND d.position = waiting.position
        RETURNING 1
    )
    SELECT count(*) FROM hurried;
END;
COMMENT ON FUNCTION outbox_internal.hurry_events(name, integer) IS
    'makes events due that waited for what was down';

-- Takes what is due under a token: rows whose turn has come, each with what waits right behind it, up to
-- a row that is on its way: one before it may have come back, by a replay or after a crash. A relay takes what
-- has failed alone, and only a few of a key whose event before is a dead letter: what waits behind would be
-- taken and given back again and again. No more than max_bytes of payload altogether, but at least one row.
CREATE FUNCTION outbox_internal.claim_due(
    destination  name,
    token        uuid,
    locked_until timestamptz,
    max_events   integer,
    max_bytes    bigint)
RETURNS SETOF outbox.delivery
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now   CONSTANT timestamptz := clock_timestamp();
    taken bigint[];
BEGIN
    WITH due AS (
        SELECT d.position, d.ordering_key, d.next_retry_at, coalesce(octet_length(d.payload), 0) AS bytes,
               CASE WHEN d.ordering_key = '' OR $3 IS NULL AND d.attempts > 0 THEN 0
                    WHEN $3 IS NULL AND (SELECT b.attempts > 0
                              FROM outbox.delivery AS b
                             WHERE b.destination = $1 AND b.ordering_key = d.ordering_key AND b.position < d.position
                               AND b.state <> 'DISCARDED' AND b.ordering_key <> ''
                             ORDER BY b.position DESC
                             LIMIT 1) THEN 10
                    ELSE 100 END AS followers
          FROM outbox.delivery AS d
         WHERE d.destination = $1 AND d.next_retry_at <= now
           AND (d.lock_token IS NULL OR d.locked_until < now)
           AND (d.ordering_key = ''
                OR d.position = (SELECT f.position FROM outbox_internal.first_of_key($1, d.ordering_key) AS f))
         ORDER BY d.next_retry_at, d.position
         LIMIT max_events
           FOR UPDATE OF d SKIP LOCKED
    ), wanted AS (
        SELECT due.position, due.bytes, due.next_retry_at, due.position AS head FROM due
        UNION ALL
        SELECT follower.position, follower.bytes, due.next_retry_at, due.position
          FROM due
         CROSS JOIN LATERAL (
            SELECT f.position, coalesce(octet_length(f.payload), 0) AS bytes,
                   bool_or(f.state <> 'PENDING' OR f.lock_token IS NOT NULL AND coalesce(f.locked_until >= now, true))
                       OVER (ORDER BY f.position) AS stopped
              FROM (SELECT b.*
                      FROM outbox.delivery AS b
                     WHERE b.destination = $1 AND b.ordering_key = due.ordering_key AND b.position > due.position
                       AND b.state <> 'DISCARDED' AND b.ordering_key <> ''
                     ORDER BY b.position
                     LIMIT due.followers) AS f) AS follower
         WHERE NOT follower.stopped
    ), numbered AS (
        SELECT w.position, row_number() OVER w AS number, sum(w.bytes) OVER w AS bytes
          FROM wanted AS w
        WINDOW w AS (ORDER BY w.next_retry_at, w.head, w.position)
    )
    SELECT array_agg(n.position) INTO taken
      FROM numbered AS n
     WHERE n.number = 1 OR n.number <= max_events AND n.bytes <= max_bytes;

    RETURN QUERY
    UPDATE outbox.delivery AS d
       SET lock_token = token, locked_at = now, locked_until = $3
     WHERE d.destination = $1 AND d.position = ANY (taken) AND d.state IN ('PENDING', 'RELEASED')
       AND (d.lock_token IS NULL OR d.locked_until < now)
    RETURNING d.*;
END $$;
COMMENT ON FUNCTION outbox_internal.claim_due(name, uuid, timestamptz, integer, bigint) IS
    'takes events in trouble that are due under a token';

-- The destination has confirmed these events, which were claimed under the token. Returns their keys,
-- which are to be promoted.
CREATE FUNCTION outbox_internal.settle_events(destination name, token uuid, positions bigint[])
RETURNS SETOF text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (positions) AND d.lock_token = token
    RETURNING d.ordering_key;
END;
COMMENT ON FUNCTION outbox_internal.settle_events(name, uuid, bigint[]) IS
    'takes confirmed events out of outbox.delivery';

-- Gives back what an earlier relay had claimed, and sees to it that no key waits for nothing: an option
-- may have changed what holds one.
CREATE FUNCTION outbox_internal.unlock_all(destination name)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET lock_token = NULL, locked_at = NULL, locked_until = NULL
     WHERE d.destination = $1 AND d.lock_token IS NOT NULL;
    SELECT outbox_internal.promote($1, ARRAY(SELECT outbox_internal.held_keys($1, 100000)));
END;
COMMENT ON FUNCTION outbox_internal.unlock_all(name) IS 'what is in trouble, as a relay finds it when it starts';

-- Gives back what was claimed and not sent.
CREATE FUNCTION outbox_internal.unlock_events(destination name, token uuid, positions bigint[])
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.delivery AS d
       SET lock_token = NULL, locked_at = NULL, locked_until = NULL
     WHERE d.destination = $1 AND d.position = ANY (positions) AND d.lock_token = token;
END;
COMMENT ON FUNCTION outbox_internal.unlock_events(name, uuid, bigint[]) IS 'gives back what was claimed and not sent';

-- A dump that is restored: what comes by COPY or INSERT, and not from outbox.enqueue() or a relay, speaks
-- of transactions of another database, and most often of another cluster. Nothing that is written to
-- the log by enqueues passes here.
--
-- Of those transactions only one thing is of interest: which of the restored cursors had seen them
-- finish. Snapshots of one cluster are nested: whatever had finished in one has finished in every
-- later one. So the snapshots of the restored cursors are numbered in their order, from 4 on, and a
-- transaction gets the number of the last one in which it had not finished, or 3. These numbers are
-- xids from before any that this cluster has given to a transaction that enqueues (initdb alone uses
-- more), and stand to each other as the old ones did; from here on nothing is special about them.
--
-- The order in which things arrive matters for duplicates only. pg_dump writes the cursors first.
-- Events that come before them, or when a relay has gone on already, are delivered to everybody; and
-- a cursor that comes after events has settled nothing.

-- No worker in this database until the session ends: half of a log is not for reading, for its events
-- are not in order. And one table at a time, also in a parallel restore: events are numbered by the
-- cursors that are there.
CREATE FUNCTION outbox_internal.begin_restore()
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_begin_restore';
COMMENT ON FUNCTION outbox_internal.begin_restore() IS 'has the workers of the database leave until this session ends';

-- The highest of these numbers.
CREATE FUNCTION outbox_internal.last_restored_xid()
RETURNS xid8
LANGUAGE sql IMMUTABLE PARALLEL SAFE
BEGIN ATOMIC
    SELECT '600'::xid8;
END;
COMMENT ON FUNCTION outbox_internal.last_restored_xid() IS 'xids up to this one are those of events of a restored dump';

-- ---------------------------------------------------------------------------------------------
-- Events
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.adopt_event()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.xid = pg_current_xact_id() THEN
        RETURN NEW; -- made here
    END IF;
    PERFORM outbox_internal.begin_restore();
    SELECT CASE
             WHEN bool_and(pg_snapshot_xmax(c.done) <= outbox_internal.last_restored_xid())
             THEN greatest('3'::xid8, -- maximum over the snapshots it had not finished in
                           (array_agg(pg_snapshot_xmax(c.done) ORDER BY pg_snapshot_xmax(c.done) DESC)
                               FILTER (WHERE NOT pg_visible_in_snapshot(NEW.xid, c.dumped_done)))[1],
                           (array_agg(pg_snapshot_xmax(c.upto) ORDER BY pg_snapshot_xmax(c.upto) DESC)
                               FILTER (WHERE NOT pg_visible_in_snapshot(NEW.xid, c.dumped_upto)))[1])
             ELSE pg_current_xact_id()
           END
      INTO NEW.xid
      FROM outbox.cursor AS c;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox_internal.adopt_event() IS 'makes a restored event one of this database';

DO $$
BEGIN
    FOR number IN 0..3 LOOP
        EXECUTE format(
            'CREATE TRIGGER adopt_event BEFORE INSERT ON outbox.event_%1$s
                 FOR EACH ROW EXECUTE FUNCTION outbox_internal.adopt_event();
             ALTER TABLE outbox.event_%1$s ENABLE ALWAYS TRIGGER adopt_event;
             COMMENT ON TRIGGER adopt_event ON outbox.event_%1$s IS ''makes a restored event one of this database''',
            number);
    END LOOP;
END
$$;

-- ---------------------------------------------------------------------------------------------
-- Cursors
-- ---------------------------------------------------------------------------------------------

-- A restored cursor takes the place of one that a relay has made since CREATE SERVER.
CREATE FUNCTION outbox_internal.adopt_cursor()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    this_system CONSTANT bigint := system_identifier FROM pg_control_system();
BEGIN
    IF NEW.inserted_by = pg_current_xact_id() AND NEW.system_identifier = this_system THEN
        RETURN NEW; -- made here
    END IF;

    PERFORM outbox_internal.begin_restore();
    WITH replaced AS (
        DELETE FROM outbox.cursor AS c WHERE c.destination = NEW.destination RETURNING c.lease
    )
    SELECT greatest(NEW.lease, max(r.lease)) + 1 INTO NEW.lease FROM replaced AS r;
    NEW.server := coalesce((SELECT s.oid FROM pg_foreign_server AS s
                             WHERE s.srvname = NEW.destination AND outbox_internal.is_destination(s.oid)), 0);
    NEW.system_identifier := this_system;
    NEW.inserted_by := pg_current_xact_id();

    -- Events that were numbered without this cursor do not say what it had settled, and numbers that
    -- are in use must not change any more.
    IF NOT EXISTS (SELECT FROM outbox.event AS e WHERE e.xid <= outbox_internal.last_restored_xid()) THEN
        NEW.dumped_done := NEW.done;
        NEW.dumped_upto := NEW.upto;
    ELSE
        NEW.dumped_done := NULL;
        NEW.dumped_upto := NULL;
    END IF;
    NEW.done := '1:1:'; -- nothing is settled, unless number_cursors() knows better
    NEW.upto := NULL;
    RETURN NEW;
END
$$;
COMMENT ON FUNCTION outbox_internal.adopt_cursor() IS 'makes a restored cursor one of this database';

CREATE TRIGGER adopt_cursor BEFORE INSERT ON outbox.cursor
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.adopt_cursor();
ALTER TABLE outbox.cursor ENABLE ALWAYS TRIGGER adopt_cursor;
COMMENT ON TRIGGER adopt_cursor ON outbox.cursor IS 'makes a restored cursor one of this database';

-- Of two snapshots with the same end the later one has fewer transactions in progress.
CREATE FUNCTION outbox_internal.number_cursors()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    WITH restored AS (
        SELECT c.destination, c.dumped_done, c.dumped_upto
          FROM outbox.cursor AS c
         WHERE c.dumped_done IS NOT NULL AND pg_snapshot_xmax(c.done) <= outbox_internal.last_restored_xid()
    ), numbered AS (
        SELECT s.destination, s.is_upto,
               least(3 + row_number() OVER (ORDER BY pg_snapshot_xmax(s.snapshot), s.in_progress DESC),
                     outbox_internal.last_restored_xid()::text::bigint) AS number
          FROM (SELECT r.destination, v.is_upto, v.snapshot,
                       (SELECT count(*) FROM pg_snapshot_xip(v.snapshot)) AS in_progress
                  FROM restored AS r
                 CROSS JOIN LATERAL (VALUES (false, r.dumped_done), (true, r.dumped_upto)) AS v(is_upto, snapshot)
                 WHERE v.snapshot IS NOT NULL) AS s
    )
    UPDATE outbox.cursor AS c
       SET done = (SELECT format('%1$s:%1$s:', n.number)::pg_snapshot
                     FROM numbered AS n WHERE n.destination = c.destination AND NOT n.is_upto),
           upto = (SELECT format('%1$s:%1$s:', n.number)::pg_snapshot
                     FROM numbered AS n WHERE n.destination = c.destination AND n.is_upto)
      FROM restored AS r
     WHERE c.destination = r.destination;
    RETURN NULL;
END
$$;
COMMENT ON FUNCTION outbox_internal.number_cursors() IS 'numbers the snapshots of restored cursors';

CREATE TRIGGER number_cursors AFTER INSERT ON outbox.cursor
    FOR EACH ROW WHEN (NEW.dumped_done IS NOT NULL) EXECUTE FUNCTION outbox_internal.number_cursors();
ALTER TABLE outbox.cursor ENABLE ALWAYS TRIGGER number_cursors;
COMMENT ON TRIGGER number_cursors ON outbox.cursor IS 'numbers the snapshots of restored cursors';

-- Where events go: the servers of the wrapper; without any, outbox.default_destination.
CREATE VIEW outbox.destination AS
SELECT s.oid AS server, s.srvname AS name, coalesce('url=pull:' = ANY (s.srvoptions), false) AS pull
  FROM pg_catalog.pg_foreign_server AS s
  JOIN pg_catalog.pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
 WHERE f.fdwname = 'pg_outbox'
UNION ALL
SELECT 0, 'default', pg_catalog.current_setting('outbox.default_destination', true) = 'pull:'
 WHERE pg_catalog.current_setting('outbox.default_destination', true) <> ''
   AND NOT EXISTS (SELECT
                     FROM pg_catalog.pg_foreign_server AS s
                     JOIN pg_catalog.pg_foreign_data_wrapper AS f ON f.oid = s.srvfdw
                    WHERE f.fdwname = 'pg_outbox');
COMMENT ON VIEW outbox.destination IS 'where events go';
COMMENT ON COLUMN outbox.destination.server IS 'the foreign server; 0: outbox.default_destination';
COMMENT ON COLUMN outbox.destination.name IS 'its name; default: outbox.default_destination';
COMMENT ON COLUMN outbox.destination.pull IS 'it has no relay: events are taken with outbox.fetch()';

-- Which events of the log a destination holds, as a condition over e: those that it selects, has not settled, and
-- has no copy of in outbox.delivery. $1 is its name, $2 its topics as patterns, $3 its number; it
-- has settled $4, and of $5 what lies up to $6.
CREATE FUNCTION outbox_internal.held_condition()
RETURNS text
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'e.topic LIKE ANY ($2) AND (e.only_to IS NULL OR e.only_to = $3) AND NOT pg_visible_in_snapshot(e.xid, $4)
            AND (e.position <= $6 AND pg_visible_in_snapshot(e.xid, $5)) IS NOT TRUE
            AND NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = $1 AND d.position = e.position)';
END;
COMMENT ON FUNCTION outbox_internal.held_condition() IS 'which events of the log a destination holds';

-- The destinations that have not settled all of a segment, by what they have saved. Without a cursor
-- that speaks of this cluster's transactions that is all of it. An event that a destination does not select is
-- settled for it, so one producer cannot fill the log for destinations that do not ask for its topics.
CREATE FUNCTION outbox.segment_held_by(number integer)
RETURNS name[]
LANGUAGE plpgsql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    destination record;
    holds       boolean;
    holders     name[] := '{}';
BEGIN
    FOR destination IN
        SELECT d.name, d.pull, c.number, coalesce(c.done, '1:1:') AS done, c.upto, c.position
          FROM outbox.destination AS d
          LEFT JOIN outbox.cursor AS c
            ON c.destination = d.name
           AND c.system_identifier = (SELECT system_identifier FROM pg_control_system())
         WHERE c.detached_at IS NULL
    LOOP
        EXECUTE format(
            'SELECT EXISTS (SELECT FROM outbox.event_%1$s WHERE xid >= pg_snapshot_xmax($1))
                 OR EXISTS (SELECT FROM pg_snapshot_xip($1) AS late(xid)
                             WHERE EXISTS (SELECT FROM outbox.event_%1$s AS e WHERE e.xid = late.xid))',
            number)
            INTO holds USING destination.done;
        IF holds THEN  -- something that is not settled is there; only now it is read what that is
            EXECUTE format('SELECT EXISTS (SELECT FROM outbox.event_%s AS e WHERE %s)', number, outbox_internal.held_condition())
                INTO holds
               USING destination.name, outbox_internal.topic_patterns(outbox_internal.destination_option(destination.name, 'topics')),
                     destination.number, destination.done, destination.upto, destination.position;
        END IF;
        IF NOT holds AND destination.pull THEN  -- read, but not settled: see pull.sql
            EXECUTE format(
                'SELECT EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = $1 AND b.xids IS NULL)
                     OR EXISTS (SELECT
                                  FROM outbox.batch AS b
                                 CROSS JOIN LATERAL unnest(b.xids, b.positions) AS open(xid, place)
                                  JOIN outbox.event_%s AS e ON e.xid = open.xid AND e.position = open.place
                                 WHERE b.destination = $1)',
                number)
                INTO holds USING destination.name;
        END IF;
        IF holds THEN
            holders := holders || destination.name;
        END IF;
    END LOOP;
    RETURN holders;
END $$;
COMMENT ON FUNCTION outbox.segment_held_by(integer) IS 'destinations that have not settled all events that they select of a segment';

-- Without any destination, events wait for the first one.
CREATE FUNCTION outbox_internal.segment_is_free(number integer)
RETURNS boolean
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM outbox.destination) AND cardinality(outbox.segment_held_by(number)) = 0;
END;
COMMENT ON FUNCTION outbox_internal.segment_is_free(integer) IS 'no destination needs the events of a segment';

CREATE VIEW outbox.segment AS
SELECT r.number,
       r.current,
       r.since,
       pg_catalog.pg_total_relation_size(pg_catalog.format('outbox.event_%s', r.number)::regclass) AS size,
       outbox.segment_held_by(r.number) AS held_by
  FROM outbox.ring AS r;
COMMENT ON VIEW outbox.segment IS 'the log: where it grows, how large it is, and who keeps it from being emptied';
COMMENT ON COLUMN outbox.segment.number IS 'segment event_<number>';
COMMENT ON COLUMN outbox.segment.current IS 'enqueues go to this one';
COMMENT ON COLUMN outbox.segment.since IS 'since when they do, or do not any more';
COMMENT ON COLUMN outbox.segment.size IS 'bytes, with index and values stored apart';
COMMENT ON COLUMN outbox.segment.held_by IS 'destinations that have not settled all that they select of it';

-- What is looked at under a lock must not be older than the lock. `refused` begins the message.
CREATE FUNCTION outbox_internal.check_isolation(refused text)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION '% in a % transaction', refused, upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Use READ COMMITTED, in a transaction of its own.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_isolation(text) IS 'refuses transactions that look at the past';

CREATE FUNCTION outbox_internal.check_lease_time(lease interval)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF lease IS NULL OR lease < interval '1 millisecond' OR lease > interval '1 day' THEN
        RAISE EXCEPTION 'lease must be from 1 ms to a day'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_lease_time(interval) IS 'refuses leases that are too short or too long';

-- Pull destinations: a relay outside the server takes events with outbox.fetch(), sends them on, and
-- says what came of it with outbox.ack() and outbox.nack().
--
-- What is to be fetched is dealt out to lanes by ordering key, and cut into batches. Only the first
-- batch of a lane is handed out, to one fetcher at a time: so the order of a key holds, however many
-- fetchers there are. A batch knows the places of its events in the log, and is all that a healthy
-- event costs. When a lane has run empty, whoever finds it so reads the next window of the log (as
-- a relay does, see docs/architecture.md) under the lock of the destination's row of outbox.cursor,
-- in which `done` then means: settled, or in a batch.
--
-- An event that is refused moves to outbox.delivery and takes the other events of its key that were
-- handed out with it along, so that whatever becomes of the lease they stay in order there.
--
-- Locks are taken in this order: the destination's row of outbox.cursor, batches, rows of outbox.delivery.
-- Operators, the keeper and event triggers take the row FOR UPDATE. Fetchers share it (FOR KEY SHARE) before
-- they touch a batch, so that none of those comes between; and when they read on, or change what holds
-- keys, one at a time has it FOR NO KEY UPDATE as well. That one waits for no batch: it has its own, and
-- passes over those of others.
--
-- Everything here needs READ COMMITTED, for what is looked at under a lock must not be older than the lock.
CREATE TABLE outbox.batch (
    destination  name     NOT NULL,
    lane         integer  NOT NULL,
    number       bigint   NOT NULL,
    xids         xid8[],
    positions    bigint[] NOT NULL,
    oldest       timestamptz,
    taken        integer  NOT NULL DEFAULT 0,
    retries      bigint[] NOT NULL DEFAULT '{}',
    token        uuid,
    locked_until timestamptz,
    fetched_at   timestamptz,
    fetched_by   text,
    inserted_by  xid8     NOT NULL DEFAULT pg_current_xact_id(),
    PRIMARY KEY (destination, lane, number)
);
COMMENT ON TABLE outbox.batch IS 'what pull destinations have not settled';
COMMENT ON COLUMN outbox.batch.destination IS 'where the events go';
COMMENT ON COLUMN outbox.batch.lane IS 'batches of a lane are fetched one after the other; -1: events in trouble only';
COMMENT ON COLUMN outbox.batch.number IS 'their order';
COMMENT ON COLUMN outbox.batch.xids IS 'its events in the log, in order; NULL: they came with a dump and are to be found by position';
COMMENT ON COLUMN outbox.batch.positions IS 'its events in the log, in order';
COMMENT ON COLUMN outbox.batch.oldest IS 'occurred_at of the oldest of them';
COMMENT ON COLUMN outbox.batch.taken IS 'so many of them, the first ones, are under the lease';
COMMENT ON COLUMN outbox.batch.retries IS 'positions of events in outbox.delivery that are under the lease as well';
COMMENT ON COLUMN outbox.batch.token IS 'of the lease; NULL: it is to be fetched';
COMMENT ON COLUMN outbox.batch.locked_until IS 'when the lease ends';
COMMENT ON COLUMN outbox.batch.fetched_at IS 'when it began';
COMMENT ON COLUMN outbox.batch.fetched_by IS 'role, application_name and address of who has it';
COMMENT ON COLUMN outbox.batch.inserted_by IS 'the transaction that made the row; so one that comes with a dump is known';

CREATE UNIQUE INDEX batch_token ON outbox.batch (token) WHERE token IS NOT NULL;
COMMENT ON INDEX outbox.batch_token IS 'finds what a lease covers';
CREATE INDEX batch_restored ON outbox.batch (destination) WHERE xids IS NULL;
COMMENT ON INDEX outbox.batch_restored IS 'finds those that came with a dump';

SELECT pg_extension_config_dump('outbox.batch', '');

-- Positions mean the same after a restore, transactions do not: see restore.sql.
CREATE FUNCTION outbox_internal.adopt_batch()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NEW.positions = '{}' THEN  -- retries only, which outbox.delivery has
        RETURN NULL;
    END IF;
    NEW.xids := NULL;
    NEW.inserted_by := pg_current_xact_id();
    NEW.taken := 0;
    NEW.retries := '{}';
    NEW.token := NULL;
    NEW.locked_until := NULL;
    RETURN NEW;
END $$;
COMMENT ON FUNCTION outbox_internal.adopt_batch() IS 'makes a restored batch one of this database';

CREATE TRIGGER adopt_batch BEFORE INSERT ON outbox.batch
    FOR EACH ROW WHEN (NEW.inserted_by <> pg_current_xact_id()) EXECUTE FUNCTION outbox_internal.adopt_batch();
ALTER TABLE outbox.batch ENABLE ALWAYS TRIGGER adopt_batch;
COMMENT ON TRIGGER adopt_batch ON outbox.batch IS 'makes a restored batch one of this database';

CREATE VIEW outbox.lease AS
SELECT b.destination, b.lane, b.fetched_by, b.fetched_at, b.locked_until,
       b.taken + pg_catalog.cardinality(b.retries) AS events
  FROM outbox.batch AS b
 WHERE b.locked_until > pg_catalog.clock_timestamp();
COMMENT ON VIEW outbox.lease IS 'who has fetched events and not yet settled them';
COMMENT ON COLUMN outbox.lease.destination IS 'where the events go';
COMMENT ON COLUMN outbox.lease.lane IS 'the lane that waits for it; -1: none, the events were in trouble';
COMMENT ON COLUMN outbox.lease.fetched_by IS 'role, application_name and address of the fetcher';
COMMENT ON COLUMN outbox.lease.fetched_at IS 'when it fetched them';
COMMENT ON COLUMN outbox.lease.locked_until IS 'when others may';
COMMENT ON COLUMN outbox.lease.events IS 'how many are left under the lease';

CREATE FUNCTION outbox_internal.wake_keeper()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_wake_keeper';
COMMENT ON FUNCTION outbox_internal.wake_keeper() IS 'at commit the keeper hears that events were read or settled';

-- Stands for outbox.default_destination, which has no server to have USAGE on: who may execute it may fetch
-- from there. It is not called.
CREATE FUNCTION outbox_internal.may_fetch_default()
RETURNS void
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT;
END;
COMMENT ON FUNCTION outbox_internal.may_fetch_default() IS 'EXECUTE on it is the right to fetch from outbox.default_destination';

-- The server of a pull destination that a role may fetch from.
CREATE FUNCTION outbox_internal.check_fetcher(destination name, caller name)
RETURNS oid
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    server oid;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT d.server INTO server FROM outbox.destination AS d WHERE d.name = destination AND d.pull;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'there is no pull destination "%"', destination
            USING ERRCODE = 'undefined_object',
                  HINT = 'CREATE SERVER ... FOREIGN DATA WRAPPER pg_outbox OPTIONS (url ''pull:'').';
    END IF;
    IF (server = 0 AND has_function_privilege(caller, 'outbox_internal.may_fetch_default()', 'EXECUTE')
        OR server <> 0 AND has_server_privilege(caller, server, 'USAGE')) IS NOT TRUE THEN
        RAISE EXCEPTION 'permission denied for destination "%"', destination
            USING ERRCODE = 'insufficient_privilege',
                  HINT = CASE server
                           WHEN 0 THEN format('SELECT outbox.grant_fetch(%L, ''default'');', quote_ident(caller))
                           ELSE format('GRANT USAGE ON FOREIGN SERVER %I TO %s;', destination, quote_ident(caller))
                         END;
    END IF;
    RETURN server;
END $$;
COMMENT ON FUNCTION outbox_internal.check_fetcher(name, name) IS 'refuses those who may not fetch';

-- ------------------------------------------------------------------------------------------------
-- From the log into batches
-- ------------------------------------------------------------------------------------------------

-- Our own transaction has not finished, though it sees what it has written.
CREATE FUNCTION outbox_internal.finished_by_now()
RETURNS pg_snapshot
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE
             WHEN pg_visible_in_snapshot(own, now)
             THEN format('%s:%s:%s', least(own, pg_snapshot_xmin(now)), pg_snapshot_xmax(now),
                         (SELECT string_agg(xip::text, ',' ORDER BY xip)
                            FROM (SELECT pg_snapshot_xip(now) UNION ALL SELECT own) AS open(xip)))::pg_snapshot
             ELSE now
           END
      FROM (SELECT pg_current_snapshot(), pg_current_xact_id()) AS transaction(now, own);
END;
COMMENT ON FUNCTION outbox_internal.finished_by_now() IS 'a snapshot in which our own transaction is in progress';

-- The option `topics` as patterns of LIKE.
CREATE FUNCTION outbox_internal.topic_patterns(topics text)
RETURNS text[]
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT array_agg(replace(replace(replace(replace(btrim(topic, E' \t\r\n'), '\', '\\'), '%', '\%'), '_', '\_'),
                             '*', '%'))
      FROM string_to_table(coalesce(topics, '*'), ',') AS topic;
END;
COMMENT ON FUNCTION outbox_internal.topic_patterns(text) IS 'the option `topics` as patterns of LIKE';

-- Deals out the events that are not in `from_snapshot`, are in `to_snapshot`, and lie above `after`
-- and not above `upto`; without those up to `settled_position` that were settled in another cluster.
CREATE FUNCTION outbox_internal.make_batches(
    destination      name,
    from_snapshot    pg_snapshot,
    to_snapshot      pg_snapshot,
    after            bigint,
    upto             bigint,
    settled          pg_snapshot,
    settled_position bigint,
    lanes            integer,
    first_number     bigint,
    OUT events        bigint,
    OUT last_position bigint,
    OUT batches       bigint)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    patterns   CONSTANT text[]  := outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics'));
    own_number CONSTANT integer := (SELECT c.number FROM outbox.cursor AS c WHERE c.destination = $1);
BEGIN
    WITH event AS (
        SELECT e.xid, e.position, e.topic, e.ordering_key, e.occurred_at, octet_length(e.payload) AS bytes,
               e.only_to
          FROM outbox.event AS e
         WHERE e.xid >= pg_snapshot_xmax(from_snapshot) AND e.xid < pg_snapshot_xmax(to_snapshot)
           AND e.position > after AND e.position <= $5
        UNION ALL
        SELECT e.xid, e.position, e.topic, e.ordering_key, e.occurred_at, octet_length(e.payload), e.only_to
          FROM pg_snapshot_xip(from_snapshot) AS late(xid)
         CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                              WHERE e.xid = late.xid AND e.position > after AND e.position <= $5
                             OFFSET 0) AS e -- one by one, through the index
    ), found AS (
        SELECT * FROM event
         WHERE pg_visible_in_snapshot(xid, to_snapshot)
           AND NOT (position <= settled_position AND pg_visible_in_snapshot(xid, settled))
    ), dealt AS (
        -- Unordered events go to a lane by the hundred, so that they share batches.
        SELECT xid, position, occurred_at, bytes,
               (CASE ordering_key
                  WHEN '' THEN position / 100
                  ELSE hashtextextended(ordering_key, 0) & 9223372036854775807
                END % lanes)::integer AS lane
          FROM found
         WHERE topic LIKE ANY (patterns) AND (only_to IS NULL OR only_to = own_number)
    ), cut AS (
        SELECT xid, position, occurred_at, lane,
               (row_number() OVER w - 1) / 100 AS hundreds,
               sum(coalesce(bytes, 0)) OVER w / 4194304 AS megabytes
          FROM dealt
        WINDOW w AS (PARTITION BY lane ORDER BY position)
    ), made AS (
        INSERT INTO outbox.batch (destination, lane, number, xids, positions, oldest)
        SELECT $1, lane, first_number - 1 + row_number() OVER (ORDER BY min(position)),
               array_agg(xid ORDER BY position), array_agg(position ORDER BY position), min(occurred_at)
          FROM cut
         GROUP BY lane, hundreds, megabytes
        RETURNING 1
    )
    SELECT f.events, f.last_position, (SELECT count(*) FROM made)
      INTO events, last_position, batches
      FROM (SELECT count(*) AS events, max(position) AS last_position FROM found) AS f;
END $$;
COMMENT ON FUNCTION outbox_internal.make_batches(name, pg_snapshot, pg_snapshot, bigint, bigint, pg_snapshot, bigint, integer, bigint) IS
    'makes batches of events in the log';

CREATE FUNCTION outbox_internal.make_cursor(destination name, server oid)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    BEGIN
        LOCK TABLE outbox.cursor IN SHARE UPDATE EXCLUSIVE MODE NOWAIT; -- others that do the same are kept out
    EXCEPTION WHEN lock_not_available THEN
        RETURN;
    END;
    INSERT INTO outbox.cursor (destination, server, done, position, system_identifier, lease, saved_at,
                               lanes, first_batch, next_batch)
    SELECT $1, $2, '1:1:', 0, system_identifier, 0, clock_timestamp(), known.lanes, known.first_batch, known.next_batch
      FROM pg_control_system()
     CROSS JOIN (SELECT max(b.lane) + 1, min(b.number), max(b.number) + 1
                   FROM outbox.batch AS b WHERE b.destination = $1) AS known(lanes, first_batch, next_batch)
     WHERE NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = $1);
END $$;
COMMENT ON FUNCTION outbox_internal.make_cursor(name, oid) IS 'makes the cursor of a destination that has none';

-- The lowest position in a window above a given one.
CREATE FUNCTION outbox_internal.next_position(from_snapshot pg_snapshot, to_snapshot pg_snapshot, after bigint)
RETURNS bigint
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT min(position)
      FROM (SELECT e.xid, e.position
              FROM outbox.event AS e
             WHERE e.xid >= pg_snapshot_xmax(from_snapshot) AND e.xid < pg_snapshot_xmax(to_snapshot)
               AND e.position > after
            UNION ALL
            SELECT e.xid, e.position
              FROM pg_snapshot_xip(from_snapshot) AS late(xid)
             CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                                  WHERE e.xid = late.xid AND e.position > after OFFSET 0) AS e) AS event
     WHERE pg_visible_in_snapshot(xid, to_snapshot);
END;
COMMENT ON FUNCTION outbox_internal.next_position(pg_snapshot, pg_snapshot, bigint) IS
    'where the next event of a window is';

-- Reads on in the log. True: look again, there are new batches, or more to read.
--
-- A large window is read in parts, by position; meanwhile the cursor says, as that of a relay does:
-- of the window that ends with `upto`, what lies below `position` is done.
CREATE FUNCTION outbox_internal.read_on(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    part_size CONSTANT bigint := 200000;
    wanted    CONSTANT integer := coalesce(outbox_internal.destination_option(destination, 'lanes'), '8');
    nothing   CONSTANT pg_snapshot := '1:1:';
    c         outbox.cursor;
    foreign_  boolean;
    first     bigint;
    free      boolean;
    target    pg_snapshot;
    last      bigint;
    part_end  bigint;
    complete  boolean;
    made      record;
BEGIN
    SELECT * INTO c FROM outbox.cursor AS c WHERE c.destination = $1 FOR NO KEY UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN false; -- somebody is at it
    END IF;
    foreign_ := c.system_identifier <> (SELECT system_identifier FROM pg_control_system());

    SELECT min(b.number), count(b.number) < coalesce(c.lanes, 0)
      INTO first, free
      FROM generate_series(0, c.lanes - 1) AS l(lane)
     CROSS JOIN LATERAL (SELECT number FROM outbox.batch AS b
                          WHERE b.destination = $1 AND b.lane = l.lane AND b.number >= c.first_batch
                          ORDER BY number LIMIT 1) AS b;
    -- As long as every lane has something there is no need to. Other lanes, or another function that
    -- deals out to them, must not have batches of a key in two.
    IF first IS NOT NULL AND (NOT free OR c.lanes <> wanted OR foreign_) THEN
        RETURN false;
    END IF;

    target := CASE WHEN c.upto IS NULL OR foreign_ THEN outbox_internal.finished_by_now() ELSE c.upto END;
    SELECT last_value INTO last FROM outbox.event_position;
    part_end := CASE WHEN foreign_ THEN last ELSE c.position + part_size END;
    complete := part_end >= last;
    LOOP
        made := outbox_internal.make_batches(
            destination,
            CASE WHEN foreign_ THEN nothing ELSE c.done END, target,
            CASE WHEN foreign_ OR c.upto IS NULL THEN 0 ELSE c.position END, part_end,
            CASE WHEN foreign_ THEN coalesce(c.upto, c.done) ELSE nothing END, c.position,
            wanted, coalesce(c.next_batch, 1));
        EXIT WHEN made.events > 0 OR complete;
        part_end := outbox_internal.next_position(c.done, target, part_end) + part_size - 1; -- a gap: the log was emptied there
        complete := part_end IS NULL;
        EXIT WHEN complete;
    END LOOP;
    IF complete AND made.events = 0 AND c.upto IS NULL AND NOT foreign_ THEN
        RETURN false;
    END IF;
    UPDATE outbox.cursor AS u
       SET server = (SELECT d.server FROM outbox.destination AS d WHERE d.name = $1), -- another one after a restore
           done = CASE WHEN complete THEN target ELSE c.done END,
           upto = CASE WHEN NOT complete THEN target END,
           position = greatest(c.position, CASE WHEN complete THEN made.last_position ELSE part_end END),
           system_identifier = CASE WHEN foreign_ THEN (SELECT system_identifier FROM pg_control_system())
                                    ELSE c.system_identifier END,
           lease = c.lease + 1, -- should a relay still be at work
           saved_at = clock_timestamp(),
           lanes = wanted,
           first_batch = coalesce(first, c.next_batch, 1),
           next_batch = coalesce(c.next_batch, 1) + made.batches
     WHERE u.destination = $1;
    PERFORM outbox_internal.wake_keeper();
    RETURN made.batches > 0 OR NOT complete;
END $$;
COMMENT ON FUNCTION outbox_internal.read_on(name) IS 'makes batches of what is next in the log';

-- ------------------------------------------------------------------------------------------------
-- Fetching
-- ------------------------------------------------------------------------------------------------

-- Before anything else of a destination is locked. False: there is no cursor of this name, or not any more.
CREATE FUNCTION outbox_internal.share_cursor(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.cursor AS c WHERE c.destination = $1 FOR KEY SHARE;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION outbox_internal.share_cursor(name) IS 'keeps operators out while a fetcher is at work';

CREATE FUNCTION outbox_internal.fetcher(caller name)
RETURNS text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT concat_ws(' ', caller, nullif(current_setting('application_name'), ''), host(inet_client_addr()));
END;
COMMENT ON FUNCTION outbox_internal.fetcher(name) IS 'who fetches';

-- After a restore: reads the whole log, once.
CREATE FUNCTION outbox_internal.find_restored_batches(destination name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = on
SET enable_hashjoin = on
AS $$
BEGIN
    PERFORM outbox_internal.lock_cursor(destination);
    UPDATE outbox.batch AS b
       SET xids = found.xids
      FROM (SELECT r.lane, r.number, array_agg(e.xid ORDER BY place.number) AS xids
              FROM outbox.batch AS r
             CROSS JOIN LATERAL unnest(r.positions) WITH ORDINALITY AS place(position, number)
              JOIN outbox.event AS e ON e.position = place.position
             WHERE r.destination = $1 AND r.xids IS NULL
             GROUP BY r.lane, r.number) AS found
     WHERE b.destination = $1 AND b.lane = found.lane AND b.number = found.number;
END $$;
COMMENT ON FUNCTION outbox_internal.find_restored_batches(name) IS 'finds the events of restored batches';

-- Takes the first batch of a lane under a token. A lane in which somebody else is, or has a lease, is
-- passed over, and not just its first batch.
CREATE FUNCTION outbox_internal.claim_batch(
    destination name, token uuid, locked_until timestamptz, max_events integer, caller name)
RETURNS SETOF outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now         CONSTANT timestamptz := clock_timestamp();
    lanes       integer;
    first_batch bigint;
BEGIN
    SELECT c.lanes, c.first_batch INTO lanes, first_batch FROM outbox.cursor AS c WHERE c.destination = $1;
    RETURN QUERY
    UPDATE outbox.batch AS b
       SET token = $2, locked_until = $3, fetched_at = now, fetched_by = outbox_internal.fetcher(caller),
           taken = least(cardinality(b.positions), max_events), retries = '{}'
     WHERE b.destination = $1
       AND (b.lane, b.number) = (
               SELECT f.lane, f.number
                 FROM generate_series(0, lanes - 1) AS l(lane)
                CROSS JOIN LATERAL (SELECT h.lane, h.number FROM outbox.batch AS h
                                     WHERE h.destination = $1 AND h.lane = l.lane AND h.number >= first_batch
                                     ORDER BY h.number LIMIT 1) AS head
                 JOIN outbox.batch AS f
                   ON f.destination = $1 AND f.lane = head.lane AND f.number = head.number
                WHERE f.token IS NULL OR f.locked_until < now
                ORDER BY f.number
                LIMIT 1
                  FOR UPDATE OF f SKIP LOCKED)
    RETURNING b.*;
END $$;
COMMENT ON FUNCTION outbox_internal.claim_batch(name, uuid, timestamptz, integer, name) IS 'takes the first batch of a lane';

-- The events of a batch that are under its lease.
CREATE FUNCTION outbox_internal.events_of(batch outbox.batch)
RETURNS SETOF outbox.event
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT e.*
      FROM unnest(batch.xids[:batch.taken], batch.positions[:batch.taken])
           WITH ORDINALITY AS b(xid, place, number)
     CROSS JOIN LATERAL (SELECT * FROM outbox.event AS e
                          WHERE e.xid = b.xid AND e.position = b.place LIMIT 1) AS e
     ORDER BY b.number;
END;
COMMENT ON FUNCTION outbox_internal.events_of(outbox.batch) IS 'the events of a batch that are under its lease';

CREATE FUNCTION outbox_internal.take_out_of(batch outbox.batch, gone bigint[])
RETURNS outbox.batch
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    UPDATE outbox.batch AS b
       SET xids = left_over.xids, positions = left_over.positions, taken = left_over.taken
      FROM (SELECT coalesce(array_agg(e.xid ORDER BY e.number), '{}'),
                   coalesce(array_agg(e.place ORDER BY e.number), '{}'),
                   count(*) FILTER (WHERE e.number <= batch.taken)
              FROM unnest(batch.xids, batch.positions) WITH ORDINALITY AS e(xid, place, number)
             WHERE e.place <> ALL (gone)) AS left_over(xids, positions, taken)
     WHERE b.destination = batch.destination AND b.lane = batch.lane AND b.number = batch.number
    RETURNING b.*;
END;
COMMENT ON FUNCTION outbox_internal.take_out_of(outbox.batch, bigint[]) IS 'takes events out of a batch';

-- Ends a lease: what was under it has been settled, or (handed_back) not.
CREATE FUNCTION outbox_internal.end_lease(batch outbox.batch, handed_back boolean)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.batch AS b
     WHERE b.destination = batch.destination AND b.lane = batch.lane AND b.number = batch.number
       AND cardinality(b.positions) <= CASE WHEN handed_back THEN 0 ELSE b.taken END;
    UPDATE outbox.batch AS b
       SET xids      = CASE WHEN handed_back THEN b.xids ELSE b.xids[b.taken + 1:] END,
           positions = CASE WHEN handed_back THEN b.positions ELSE b.positions[b.taken + 1:] END,
           taken = 0, retries = '{}', token = NULL, locked_until = NULL, fetched_at = NULL, fetched_by = NULL
     WHERE b.destination = batch.destination AND b.lane = batch.lane AND b.number = batch.number;
END;
COMMENT ON FUNCTION outbox_internal.end_lease(outbox.batch, boolean) IS 'ends the lease of a batch';

CREATE FUNCTION outbox_internal.lock_cursor(destination name)
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM FROM outbox.cursor AS c WHERE c.destination = $1 FOR NO KEY UPDATE;
    RETURN FOUND;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_cursor(name) IS 'keeps other fetchers from changing what holds keys';

-- Puts events of a batch whose keys are held behind those that hold them.
CREATE FUNCTION outbox_internal.park_held(batch outbox.batch)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    held record;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.delivery AS d WHERE d.destination = batch.destination)
       OR NOT EXISTS (SELECT FROM outbox_internal.events_of(batch) AS e, outbox_internal.first_of_key(batch.destination, e.ordering_key))
    THEN
        RETURN batch;
    END IF;
    PERFORM outbox_internal.lock_cursor(batch.destination);
    SELECT array_agg(e.xid) AS xids, array_agg(e.position) AS positions, array_agg(e.ordering_key) AS keys
      INTO held
      FROM outbox_internal.events_of(batch) AS e
     WHERE EXISTS (SELECT FROM outbox_internal.first_of_key(batch.destination, e.ordering_key));
    IF held.positions IS NULL THEN
        RETURN batch;
    END IF;
    PERFORM outbox_internal.park_events(batch.destination, held.xids, held.positions);
    PERFORM outbox_internal.promote(batch.destination, held.keys); -- a late one may have come to be the first
    RETURN outbox_internal.take_out_of(batch, held.positions);
END $$;
COMMENT ON FUNCTION outbox_internal.park_held(outbox.batch) IS 'puts events behind those that hold their keys';

-- Takes events in trouble that are due under a token.
CREATE FUNCTION outbox_internal.claim_retries(
    destination name, token uuid, locked_until timestamptz, max_events integer, caller name)
RETURNS SETOF outbox.delivery
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    now     CONSTANT timestamptz := clock_timestamp();
    claimed bigint[];
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.delivery AS d
                    WHERE d.destination = $1 AND d.next_retry_at <= now
                      AND (d.lock_token IS NULL OR d.locked_until < now)) THEN
        RETURN;
    END IF;
    IF NOT outbox_internal.lock_cursor(destination) THEN
        RETURN; -- there is none yet
    END IF;
    DELETE FROM outbox.batch AS b
     WHERE b.ctid = ANY (ARRAY(SELECT o.ctid FROM outbox.batch AS o
                                WHERE o.destination = $1 AND o.lane = -1 AND o.locked_until < now
                                  FOR UPDATE SKIP LOCKED));
    claimed := ARRAY(SELECT d.position FROM outbox_internal.claim_due($1, $2, $3, max_events, 4194304) AS d);
    IF cardinality(claimed) = 0 THEN
        RETURN;
    END IF;
    UPDATE outbox.cursor AS c SET next_batch = coalesce(c.next_batch, 1) + 1 WHERE c.destination = $1;
    INSERT INTO outbox.batch
        (destination, lane, number, xids, positions, retries, token, locked_until, fetched_at, fetched_by)
    SELECT $1, -1, c.next_batch - 1, '{}', '{}', claimed, $2, $3, now,
           outbox_internal.fetcher(caller)
      FROM outbox.cursor AS c
     WHERE c.destination = $1;
    RETURN QUERY
    SELECT d.* FROM outbox.delivery AS d
     WHERE d.destination = $1 AND d.position = ANY (claimed)
     ORDER BY d.position;
END $$;
COMMENT ON FUNCTION outbox_internal.claim_retries(name, uuid, timestamptz, integer, name) IS
    'takes events in trouble that are due under a token';

-- Plans are kept, and must be right for tables that were empty when they were made: indexes only, and
-- no compiling because of what the others seem to cost.
CREATE FUNCTION outbox.fetch(
    destination name,
    max_events  integer DEFAULT 100,
    lease       interval DEFAULT '30 seconds',
    caller      outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS TABLE (
    token           uuid,
    attempts        integer,
    "position"      bigint,
    occurred_at     timestamptz,
    event_id        uuid,
    version         bigint,
    schema_version  integer,
    source_event_id uuid,
    topic           text,
    aggregate_type  text,
    aggregate_id    text,
    event_type      text,
    ordering_key    text,
    content_type    text,
    headers         jsonb,
    payload         bytea)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    server    CONSTANT oid := outbox_internal.check_fetcher(destination, caller);
    new_token CONSTANT uuid := gen_random_uuid();
    batch     outbox.batch;
    count     bigint;
BEGIN
    PERFORM outbox_internal.check_isolation('events cannot be fetched or settled');
    PERFORM outbox_internal.check_lease_time(lease);
    IF max_events IS NULL OR max_events < 1 THEN
        RAISE EXCEPTION 'max_events must be at least 1' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The commit of this transaction puts those of the events on disk, which may have been asynchronous.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'on', true);
    END IF;

    IF NOT outbox_internal.share_cursor(destination) THEN
        PERFORM outbox_internal.make_cursor(destination, server);
    ELSIF (SELECT c.paused FROM outbox.cursor AS c WHERE c.destination = $1) THEN
        RETURN;
    ELSIF EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = $1 AND b.xids IS NULL) THEN
        PERFORM outbox_internal.find_restored_batches(destination);
    END IF;

    RETURN QUERY
    SELECT new_token, d.attempts, d.position, d.occurred_at, d.event_id, d.version, d.schema_version,
           d.source_event_id, d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key,
           d.content_type, d.headers, d.payload
      FROM outbox_internal.claim_retries(destination, new_token, clock_timestamp() + lease, max_events, caller) AS d;
    IF FOUND THEN
        RETURN;
    END IF;

    LOOP
        SELECT * INTO batch
          FROM outbox_internal.claim_batch(destination, new_token, clock_timestamp() + lease, max_events, caller);
        IF NOT FOUND THEN
            CONTINUE WHEN outbox_internal.read_on(destination);
            RETURN;
        END IF;
        batch := outbox_internal.park_held(batch);
        EXIT WHEN batch.taken > 0;
        PERFORM outbox_internal.end_lease(batch, false);
    END LOOP;

    RETURN QUERY
    SELECT new_token, 0, e.position, e.occurred_at, e.event_id, e.version, e.schema_version,
           e.source_event_id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.ordering_key,
           e.content_type, e.headers, e.payload
      FROM outbox_internal.events_of(batch) AS e;
    GET DIAGNOSTICS count = ROW_COUNT;
    IF count <> batch.taken THEN
        RAISE EXCEPTION 'events of destination "%" are missing in the log', destination
            USING ERRCODE = 'data_corrupted',
                  DETAIL = format('Of batch %s, %s of %s were found.', batch.number, count, batch.taken);
    END IF;
END $$;
COMMENT ON FUNCTION outbox.fetch(name, integer, interval, outbox_internal.caller) IS
    'takes the next events of a pull destination under a lease; commit before you use them';

-- ------------------------------------------------------------------------------------------------
-- Settling
-- ------------------------------------------------------------------------------------------------

-- The batch of a lease that has not ended, locked; with the cursor if events in trouble are concerned.
CREATE FUNCTION outbox_internal.lock_lease(token uuid, with_cursor boolean)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    batch outbox.batch;
BEGIN
    PERFORM outbox_internal.refuse_restricted(); -- here for all who settle
    PERFORM outbox_internal.check_isolation('events cannot be fetched or settled');
    PERFORM outbox_internal.wake_keeper();
    LOOP
        SELECT * INTO batch FROM outbox.batch AS b WHERE b.token = $1;
        EXIT WHEN NOT FOUND OR outbox_internal.share_cursor(batch.destination); -- else it was renamed while we waited
    END LOOP;
    SELECT * INTO batch FROM outbox.batch AS b WHERE b.token = $1 FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'lease % is not known', token
            USING ERRCODE = 'OL001',
                  DETAIL = 'It was settled or given back, or it ended and others have fetched its events since.';
    END IF;
    IF with_cursor OR cardinality(batch.retries) > 0 THEN
        PERFORM outbox_internal.lock_cursor(batch.destination);
    END IF;
    IF batch.locked_until <= clock_timestamp() THEN
        RAISE EXCEPTION 'lease % has ended', token
            USING ERRCODE = 'OL001',
                  DETAIL = format('It ended at %s.', batch.locked_until),
                  HINT = 'Ask outbox.fetch() for a longer lease, or prolong it with outbox.extend().';
    END IF;
    RETURN batch;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_lease(uuid, boolean) IS 'the batch of a lease that has not ended';

CREATE FUNCTION outbox.ack(token uuid)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    batch CONSTANT outbox.batch := outbox_internal.lock_lease(token, false);
BEGIN
    IF outbox_internal.destination_option(batch.destination, 'receipts') = 'on' THEN
        PERFORM outbox_internal.add_receipts(batch.destination, array_agg(e.event_id), array_agg(e.position),
                                    array_agg(extract(epoch FROM clock_timestamp())::double precision), array_agg(''::text))
           FROM (SELECT b.event_id, b.position FROM outbox_internal.events_of(batch) AS b
                 UNION ALL
                 SELECT d.event_id, d.position FROM outbox.delivery AS d
                  WHERE d.destination = batch.destination AND d.position = ANY (batch.retries)) AS e;
    END IF;
    IF cardinality(batch.retries) > 0 THEN
        PERFORM outbox_internal.promote(batch.destination, ARRAY(SELECT outbox_internal.settle_events(batch.destination, token, batch.retries)));
    END IF;
    PERFORM outbox_internal.end_lease(batch, false);
    RETURN batch.taken + cardinality(batch.retries);
END $$;
COMMENT ON FUNCTION outbox.ack(uuid) IS
    'settles what was fetched under a token and not refused; says how many events that were';

-- Moves an event that is under a lease to outbox.delivery, still under the lease, with all others of
-- its key there are.
CREATE FUNCTION outbox_internal.move_key(batch outbox.batch, failed bigint)
RETURNS outbox.batch
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    moved record;
BEGIN
    SELECT array_agg(e.xid) AS xids, array_agg(e.position) AS positions INTO moved
      FROM outbox_internal.events_of(batch) AS e
      JOIN outbox_internal.events_of(batch) AS f ON f.position = failed
     WHERE e.position = f.position OR e.ordering_key = f.ordering_key AND f.ordering_key <> '';
    PERFORM outbox_internal.park_events(batch.destination, moved.xids, moved.positions);
    UPDATE outbox.delivery AS d
       SET lock_token = batch.token, locked_at = batch.fetched_at, locked_until = batch.locked_until
     WHERE d.destination = batch.destination AND d.position = ANY (moved.positions);
    batch := outbox_internal.take_out_of(batch, moved.positions);
    batch.retries := batch.retries || moved.positions;
    RETURN batch;
END $$;
COMMENT ON FUNCTION outbox_internal.move_key(outbox.batch, bigint) IS 'moves the events of a key to outbox.delivery';

-- Returns events of the same lease that must not be sent any more: they wait behind this one.
CREATE FUNCTION outbox.nack(token uuid, event_id uuid, error text, permanent boolean DEFAULT false)
RETURNS SETOF uuid
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
SET enable_hashjoin = off
SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
    batch  outbox.batch := outbox_internal.lock_lease(token, true);
    place  bigint;
    failed outbox.delivery;
    behind bigint[] := '{}';
BEGIN
    SELECT e.position INTO place FROM outbox_internal.events_of(batch) AS e WHERE e.event_id = $2;
    IF FOUND THEN
        batch := outbox_internal.move_key(batch, place);
    END IF;
    SELECT * INTO failed FROM outbox.delivery AS d
     WHERE d.destination = batch.destination AND d.position = ANY (batch.retries)
       AND d.lock_token = $1 AND d.event_id = $2;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'event % is not under lease %', event_id, token
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = 'Perhaps it was refused before, or is one that waits behind another.';
    END IF;

    SELECT f.state INTO failed.state
      FROM outbox_internal.fail_events(batch.destination, ARRAY[failed.xid], ARRAY[failed.position],
                              ARRAY[coalesce(error, '')], ARRAY[coalesce(permanent, false)]) AS f;
    IF failed.state = 'RELEASED' OR outbox_internal.destination_option(batch.destination, 'on_dead_letter') = 'block' THEN
        behind := ARRAY(SELECT d.position FROM outbox.delivery AS d
                         WHERE d.destination = batch.destination AND d.position = ANY (batch.retries)
                           AND d.ordering_key = failed.ordering_key AND d.ordering_key <> ''
                           AND d.position > failed.position AND d.lock_token = $1);
        PERFORM outbox_internal.unlock_events(batch.destination, token, behind);
    END IF;
    PERFORM outbox_internal.promote(batch.destination, ARRAY[failed.ordering_key]);
    UPDATE outbox.batch AS b
       SET retries = ARRAY(SELECT r FROM unnest(batch.retries) AS r WHERE r <> ALL (behind || failed.position))
     WHERE b.token = $1;
    RETURN QUERY
    SELECT d.event_id FROM outbox.delivery AS d
     WHERE d.destination = batch.destination AND d.position = ANY (behind)
     ORDER BY d.position;
END $$;
COMMENT ON FUNCTION outbox.nack(uuid, uuid, text, boolean) IS
    'says that an event was refused; returns those of the lease that must not be sent any more';

CREATE FUNCTION outbox.extend(token uuid, lease interval DEFAULT '30 seconds')
RETURNS timestamptz
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
#variable_conflict use_column
DECLARE
    batch   outbox.batch;
    new_end CONSTANT timestamptz := clock_timestamp() + lease;
BEGIN
    PERFORM outbox_internal.check_lease_time(lease);
    batch := outbox_internal.lock_lease(token, false);
    UPDATE outbox.batch AS b SET locked_until = new_end WHERE b.token = $1;
    UPDATE outbox.delivery AS d SET locked_until = new_end
     WHERE d.destination = batch.destination AND d.position = ANY (batch.retries) AND d.lock_token = $1;
    RETURN new_end;
END $$;
COMMENT ON FUNCTION outbox.extend(uuid, interval) IS 'makes a lease end so much after now; says when that is';

CREATE FUNCTION outbox.release(token uuid)
RETURNS integer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
SET jit = off
AS $$
DECLARE
    batch CONSTANT outbox.batch := outbox_internal.lock_lease(token, false);
BEGIN
    PERFORM outbox_internal.unlock_events(batch.destination, token, batch.retries);
    PERFORM outbox_internal.end_lease(batch, true);
    RETURN batch.taken + cardinality(batch.retries);
END $$;
COMMENT ON FUNCTION outbox.release(uuid) IS
    'gives what was fetched under a token back to others; says how many events that were';

-- ------------------------------------------------------------------------------------------------
-- A pull destination that gets another url
-- ------------------------------------------------------------------------------------------------

-- The cursor of its relay is ahead of what is in batches: that is put in the relay's way.
CREATE FUNCTION outbox_internal.leave_pull()
RETURNS event_trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    left_behind name;
BEGIN
    FOR left_behind IN
        SELECT DISTINCT d.name
          FROM pg_event_trigger_ddl_commands() AS command
          JOIN outbox.destination AS d ON d.server = command.objid
         WHERE command.classid = 'pg_foreign_server'::regclass AND NOT d.pull
    LOOP
        -- Before it is asked for batches: somebody may just be making the first ones.
        PERFORM FROM outbox.cursor AS c WHERE c.destination = left_behind FOR UPDATE;
        CONTINUE WHEN NOT EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = left_behind);
        PERFORM outbox_internal.find_restored_batches(left_behind);
        PERFORM outbox_internal.park_events(left_behind, b.xids, b.positions) FROM outbox.batch AS b WHERE b.destination = left_behind;
        DELETE FROM outbox.batch AS b WHERE b.destination = left_behind;
        UPDATE outbox.delivery AS w SET next_retry_at = clock_timestamp()
         WHERE w.destination = left_behind AND w.ordering_key = '' AND w.state = 'PENDING' AND w.next_retry_at IS NULL;
        PERFORM outbox_internal.promote(left_behind, ARRAY(SELECT DISTINCT w.ordering_key FROM outbox.delivery AS w
                                              WHERE w.destination = left_behind AND w.state = 'PENDING'));
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.leave_pull() IS 'hands what fetchers have not settled to a relay';

CREATE EVENT TRIGGER outbox_leave_pull ON ddl_command_end WHEN tag IN ('ALTER SERVER')
    EXECUTE FUNCTION outbox_internal.leave_pull();
ALTER EVENT TRIGGER outbox_leave_pull ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_leave_pull IS 'hands what fetchers have not settled to a relay';

-- Figures live in shared memory, since the worker started. Latencies are those of the last minutes,
-- from occurred_at to the confirmation by the destination.
CREATE FUNCTION outbox.workers(
    OUT kind             text,
    OUT object           oid,
    OUT name             name,
    OUT pid              integer,
    OUT state            text,
    OUT state_since      timestamptz,
    OUT delivered        bigint,
    OUT delivered_bytes  bigint,
    OUT failures         bigint,
    OUT unsettled        bigint,
    OUT held_keys        bigint,
    OUT read_to          xid8,
    OUT oldest_unsettled timestamptz,
    OUT settled_position bigint,
    OUT latency_p50      interval,
    OUT latency_p99      interval,
    OUT last_error       text,
    OUT last_error_at    timestamptz,
    OUT throttled        bigint,
    OUT request_limit    double precision,
    OUT suspects         bigint,
    OUT lanes_down       bigint)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_workers';
COMMENT ON FUNCTION outbox.workers() IS 'the background workers of pg_outbox in this database';

-- Workers that should live and do not.
--   held back   it has crashed twice or more in a row, and the server with it
--   failing     it ends with an error again and again
--   waiting     for room: the server, its role or its database has as many workers as allowed
CREATE FUNCTION outbox.absent_workers(
    OUT kind      text,
    OUT object    oid,
    OUT name      name,
    OUT account   oid,
    OUT state     text,
    OUT waits_for text,
    OUT crashes   integer,
    OUT deaths    integer,
    OUT since     timestamptz,
    OUT next_try  timestamptz)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_absent_workers';
COMMENT ON FUNCTION outbox.absent_workers() IS
    'background workers of pg_outbox in this database that should live and are not started yet';

-- occurred_at of the first event in the log that a cursor has not settled, found by the index: one
-- probe for the transactions that came later, and one for each that was in progress then. NULL: none.
CREATE FUNCTION outbox.oldest_after(done pg_snapshot)
RETURNS timestamptz
LANGUAGE sql STABLE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT min(first.occurred_at)
      FROM (
        (SELECT e.occurred_at FROM outbox.event AS e
          WHERE e.xid >= pg_snapshot_xmax(done)
          ORDER BY e.xid, e.position LIMIT 1)
        UNION ALL
        (SELECT late.occurred_at
           FROM pg_snapshot_xip(done) AS xip,
                LATERAL (SELECT e.occurred_at FROM outbox.event AS e
                          WHERE e.xid = xip ORDER BY e.position LIMIT 1) AS late)
      ) AS first;
END;
COMMENT ON FUNCTION outbox.oldest_after(pg_snapshot) IS
    'time of the oldest event that a snapshot has not seen';

CREATE VIEW outbox.status AS
SELECT d.name AS destination,
       CASE
         WHEN NOT d.pull
         THEN coalesce(w.state,
                       (SELECT a.state FROM outbox.absent_workers() AS a
                         WHERE a.kind = 'relay' AND a.object = d.server
                           AND a.waits_for IS DISTINCT FROM 'outbox.max_workers, max_worker_processes'),
                       'stopped')
         WHEN c.paused THEN 'paused'
         ELSE 'pull'
       END AS state,
       w.state_since,
       w.pid,
       coalesce(w.delivered, 0) AS published,
       coalesce(w.failures, 0) AS failures,
       -- Positions handed out since; an upper bound, for it counts rolled back events and those of
       -- other topics.
       greatest(last.position - greatest(w.settled_position, c.position, 0), 0) + open.events AS pending_at_most,
       coalesce(w.unsettled, open.leased) AS in_flight,
       coalesce(w.held_keys, 0) AS held_keys,
       clock_timestamp() - least(oldest.occurred_at, open.oldest) AS oldest_pending_age,
       w.latency_p50,
       w.latency_p99,
       w.last_error,
       w.last_error_at,
       greatest(w.settled_position, c.position) AS position,
       c.saved_at AS cursor_saved_at,
       coalesce(w.throttled, 0) AS throttled,
       w.request_limit,
       coalesce(w.suspects, 0) AS suspects,
       coalesce(w.lanes_down, 0) AS lanes_down
  FROM outbox.destination AS d
  LEFT JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.object = d.server
  LEFT JOIN outbox.cursor AS c ON c.destination = d.name
  CROSS JOIN LATERAL (SELECT CASE WHEN is_called THEN last_value ELSE 0 END AS position
                        FROM outbox.event_position) AS last
  -- What fetchers have not settled.
  CROSS JOIN LATERAL (SELECT coalesce(sum(cardinality(b.positions)), 0)::bigint AS events,
                             coalesce((SELECT sum(l.events) FROM outbox.lease AS l WHERE l.destination = d.name),
                                      0)::bigint AS leased,
                             min(b.oldest) AS oldest
                        FROM outbox.batch AS b
                       WHERE d.pull AND b.destination = d.name) AS open
  -- A relay knows its oldest event; without one the log is asked.
  CROSS JOIN LATERAL (SELECT CASE
                               WHEN w.pid IS NULL
                               THEN outbox.oldest_after(coalesce(c.done, '1:1:'))
                               ELSE w.oldest_unsettled
                             END AS occurred_at) AS oldest;
COMMENT ON VIEW outbox.status IS 'every destination in one look: is anything stuck, since when, why';
COMMENT ON COLUMN outbox.status.destination IS 'name of the foreign server; default: outbox.default_destination';
COMMENT ON COLUMN outbox.status.state IS 'starting, idle, delivering, throttled, backing off, paused, misconfigured or stopped; held back, failing or waiting: see outbox.absent_workers(); pull: events are fetched';
COMMENT ON COLUMN outbox.status.state_since IS 'since when it is in this state';
COMMENT ON COLUMN outbox.status.pid IS 'process of the relay';
COMMENT ON COLUMN outbox.status.published IS 'events confirmed since the relay started';
COMMENT ON COLUMN outbox.status.failures IS 'failed attempts since the relay started';
COMMENT ON COLUMN outbox.status.pending_at_most IS 'events not settled, at most';
COMMENT ON COLUMN outbox.status.in_flight IS 'events read from the log and not settled; pull: under leases';
COMMENT ON COLUMN outbox.status.held_keys IS 'ordering keys whose events wait behind one in trouble; see outbox.blocked_key';
COMMENT ON COLUMN outbox.status.oldest_pending_age IS 'age of the oldest event not settled';
COMMENT ON COLUMN outbox.status.latency_p50 IS 'half of the recent events took at most this long from occurred_at to confirmed';
COMMENT ON COLUMN outbox.status.latency_p99 IS '99 of 100 recent events took at most this long';
COMMENT ON COLUMN outbox.status.last_error IS 'why the last attempt failed that failed';
COMMENT ON COLUMN outbox.status.last_error_at IS 'when';
COMMENT ON COLUMN outbox.status.position IS 'highest settled position; pull: highest in a batch or settled';
COMMENT ON COLUMN outbox.status.cursor_saved_at IS 'when the cursor was last saved';
COMMENT ON COLUMN outbox.status.throttled IS 'answers since the relay started that asked for fewer requests';
COMMENT ON COLUMN outbox.status.request_limit IS
    'requests a second that the topic or queue gets that asked for fewer most; null: as many as it takes';
COMMENT ON COLUMN outbox.status.suspects IS 'events in memory whose last attempt failed, or whose request hangs';
COMMENT ON COLUMN outbox.status.lanes_down IS 'topics or queues of the destination that fail, and are probed';

-- Receipts: which events a destination has confirmed, when, and what it calls them. Kept where the option
-- `receipts` is on, in two tables of which one is filled; after outbox.receipt_retention the keeper
-- empties the other and turns to it.
CREATE TABLE outbox.receipt (
    event_id     uuid        NOT NULL,
    destination  name        NOT NULL,
    position     bigint      NOT NULL,
    published_at timestamptz NOT NULL,
    message_id   text
);
COMMENT ON TABLE outbox.receipt IS 'events that destinations have confirmed';
COMMENT ON COLUMN outbox.receipt.event_id IS 'the event';
COMMENT ON COLUMN outbox.receipt.destination IS 'who confirmed it';
COMMENT ON COLUMN outbox.receipt.position IS 'its position in the log';
COMMENT ON COLUMN outbox.receipt.published_at IS 'when the confirmation arrived';
COMMENT ON COLUMN outbox.receipt.message_id IS 'what the destination calls it; NULL: it does not say';

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
COMMENT ON COLUMN outbox.receipt_turn.current IS 'receipt_<current>';
COMMENT ON COLUMN outbox.receipt_turn.since IS 'since when';

SELECT pg_extension_config_dump('outbox.receipt_0', '');
SELECT pg_extension_config_dump('outbox.receipt_1', '');

-- Times are seconds since 1970.
CREATE FUNCTION outbox_internal.add_receipts(destination name, event_ids uuid[], positions bigint[], times double precision[], message_ids text[])
RETURNS void
LANGUAGE plpgsql VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    EXECUTE format('INSERT INTO outbox.receipt_%s
                    SELECT r.event_id, $1, r.position, to_timestamp(r.time), nullif(r.message_id, '''')
                      FROM unnest($2, $3, $4, $5) AS r(event_id, position, time, message_id)',
                   (SELECT t.current FROM outbox.receipt_turn AS t))
      USING destination, event_ids, positions, times, message_ids;
END $$;
COMMENT ON FUNCTION outbox_internal.add_receipts(name, uuid[], bigint[], double precision[], text[]) IS
    'keeps that events were confirmed';

-- Called by the keeper. Whoever adds receipts, or reads them, at this very moment makes it come back later.
CREATE FUNCTION outbox_internal.turn_receipts()
RETURNS boolean
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    retention CONSTANT interval := current_setting('outbox.receipt_retention');
    turn      outbox.receipt_turn;
BEGIN
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
COMMENT ON FUNCTION outbox_internal.turn_receipts() IS 'forgets receipts that are old';

-- What operators decide: to pause, resume, seek, replay, and what becomes of dead letters. Every
-- decision is noted in outbox.operation, in the transaction that makes it.
--
-- They are safe against each other and against relays and fetchers, because all of them lock the
-- destination's row of outbox.cursor first; the order of locks stands in pull.sql. A relay never waits for that lock: while an operator
-- keeps a transaction open, it goes on delivering and saves what it did later.

CREATE SEQUENCE outbox.operation_id AS bigint;
COMMENT ON SEQUENCE outbox.operation_id IS 'ids of operations';

CREATE TABLE outbox.operation (
    id            bigint      PRIMARY KEY DEFAULT nextval('outbox.operation_id'),
    requested_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    requested_by  name        NOT NULL,
    destination   name        NOT NULL,
    action        text        NOT NULL,
    from_position bigint,
    to_position   bigint,
    events        bigint,
    selection     jsonb
);
COMMENT ON TABLE outbox.operation IS 'what operators did, and who';
COMMENT ON COLUMN outbox.operation.id IS 'in the order of requests';
COMMENT ON COLUMN outbox.operation.requested_at IS 'when';
COMMENT ON COLUMN outbox.operation.requested_by IS 'the role whose rights the request was made with';
COMMENT ON COLUMN outbox.operation.destination IS 'name of the destination at that time; *: all';
COMMENT ON COLUMN outbox.operation.action IS 'pause, resume, seek, replay, cancel replay, redrive or discard; backfill, and pause, resume or cancel backfill; detach, set aside: by the keeper';
COMMENT ON COLUMN outbox.operation.from_position IS 'seek: highest settled position before';
COMMENT ON COLUMN outbox.operation.to_position IS 'seek: what lies above is delivered';
COMMENT ON COLUMN outbox.operation.events IS 'how many events it concerned';
COMMENT ON COLUMN outbox.operation.selection IS 'which ones, as the arguments said';

SELECT pg_extension_config_dump('outbox.operation', '');
SELECT pg_extension_config_dump('outbox.operation_id', '');

CREATE FUNCTION outbox_internal.wake_relays()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_wake_relays';
COMMENT ON FUNCTION outbox_internal.wake_relays() IS 'at commit, relays look at what operators decided';

-- Locks the destination until the transaction ends, and returns its cursor.
-- Errors: 42704 there is no such destination; 55P03 it is just being set up.
CREATE FUNCTION outbox_internal.take_control(destination name)
RETURNS outbox.cursor
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cursor outbox.cursor;
BEGIN
    IF NOT EXISTS (SELECT FROM outbox.destination AS d WHERE d.name = destination) THEN
        RAISE EXCEPTION 'destination "%" does not exist', destination
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
    END IF;
    SELECT c.* INTO cursor FROM outbox.cursor AS c WHERE c.destination = $1 FOR UPDATE;
    IF NOT FOUND THEN  -- outbox.default_destination has a cursor from when its relay starts
        RAISE EXCEPTION 'destination "%" is just being set up', destination
            USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
    END IF;
    PERFORM outbox_internal.wake_relays();
    RETURN cursor;
END $$;
COMMENT ON FUNCTION outbox_internal.take_control(name) IS 'locks a destination for an operator';

-- ---------------------------------------------------------------------------------------------
-- Pause and resume
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.set_paused(destination name, paused boolean, caller name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    cursor CONSTANT outbox.cursor := outbox_internal.take_control(destination);
BEGIN
    -- One that was detached starts over: what its relay or fetchers know of the log may be gone.
    UPDATE outbox.cursor AS c
       SET paused = $2, detached_at = NULL, lease = c.lease + (c.detached_at IS NOT NULL)::integer
     WHERE c.destination = $1;
    INSERT INTO outbox.operation (requested_by, destination, action, from_position)
    VALUES (caller, destination, CASE WHEN paused THEN 'pause' ELSE 'resume' END, cursor.position);
END $$;
COMMENT ON FUNCTION outbox_internal.set_paused(name, boolean, name) IS 'pauses or resumes a destination';

-- Nothing more is sent to the destination; what is on its way is finished. Events wait in the log.
CREATE FUNCTION outbox.pause(destination name, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.set_paused(destination, true, caller);
END;
COMMENT ON FUNCTION outbox.pause(name, outbox_internal.caller) IS 'stops delivering to a destination';

CREATE FUNCTION outbox.resume(destination name, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.set_paused(destination, false, caller);
END;
COMMENT ON FUNCTION outbox.resume(name, outbox_internal.caller) IS 'goes on delivering to a destination';

-- About how many bytes of events a destination holds, in the log and in outbox.delivery: the part that it has in
-- some pages of each segment, of the size of the segment.
CREATE FUNCTION outbox_internal.bytes_held(holder outbox.cursor)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    pages   CONSTANT integer := 2000;
    topics  CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option(holder.destination, 'topics'));
    segment record;
    part    double precision;
    bytes   double precision;
BEGIN
    SELECT coalesce(sum(200 + octet_length(d.payload)), 0) INTO bytes
      FROM outbox.delivery AS d WHERE d.destination = holder.destination;
    FOR segment IN SELECT s.number, s.size FROM outbox.segment AS s WHERE holder.destination = ANY (s.held_by) LOOP
        EXECUTE format(
            'SELECT sum(200 + octet_length(e.payload)) FILTER (WHERE %s)::double precision / sum(200 + octet_length(e.payload))
               FROM outbox.event_%s AS e TABLESAMPLE SYSTEM (%s) REPEATABLE (0)',
            outbox_internal.held_condition(), segment.number,
            least(100, 100.0 * pages * current_setting('block_size')::integer
                       / greatest(pg_relation_size(format('outbox.event_%s', segment.number)::regclass), 1)))
            INTO part USING holder.destination, topics, holder.number, holder.done, holder.upto, holder.position;
        bytes := bytes + coalesce(part, 0) * segment.size;
    END LOOP;
    RETURN bytes;
END $$;
COMMENT ON FUNCTION outbox_internal.bytes_held(outbox.cursor) IS 'about how much of the log is there for a destination';

-- Puts copies of the events that a destination holds of a segment into outbox.delivery, from where they are
-- delivered, in order. What lies before the last of them in another segment goes along, because of that order.
-- What fetchers have under a lease stays. Called with the lock of the cursor.
CREATE FUNCTION outbox_internal.set_aside(holder outbox.cursor, segment integer)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    last  bigint;
    batch outbox.batch;
    moved bigint := 0;
BEGIN
    EXECUTE format('SELECT max(e.position) FROM outbox.event_%s AS e', segment) INTO last;
    FOR batch IN
        SELECT b.* FROM outbox.batch AS b
         WHERE b.destination = holder.destination AND b.xids IS NOT NULL AND b.positions[1] <= last
           AND (b.token IS NULL OR b.locked_until < clock_timestamp())
         ORDER BY b.lane, b.number
           FOR UPDATE SKIP LOCKED
    LOOP
        PERFORM outbox_internal.park_events(holder.destination, array_agg(o.xid), array_agg(o.place))
           FROM unnest(batch.xids, batch.positions) AS o(xid, place) WHERE o.place <= last;
        moved := moved + (SELECT count(*) FROM unnest(batch.positions) AS o WHERE o <= last);
        batch.taken := 0;
        batch := outbox_internal.take_out_of(batch, ARRAY(SELECT o FROM unnest(batch.positions) AS o WHERE o <= last));
        PERFORM outbox_internal.end_lease(batch, true);
    END LOOP;
    EXECUTE format(
        'WITH copied AS (
            INSERT INTO outbox.delivery
            SELECT e.*, $1, ''PENDING'' FROM outbox.event AS e WHERE e.position <= $7 AND %s
                ON CONFLICT DO NOTHING
            RETURNING 1
         )
         SELECT $8 + count(*) FROM copied', outbox_internal.held_condition())
        INTO moved
       USING holder.destination, outbox_internal.topic_patterns(outbox_internal.destination_option(holder.destination, 'topics')),
             holder.number, holder.done, holder.upto, holder.position, last, moved;
    UPDATE outbox.delivery AS d SET next_retry_at = clock_timestamp()
     WHERE d.destination = holder.destination AND d.ordering_key = '' AND d.state = 'PENDING' AND d.next_retry_at IS NULL;
    PERFORM outbox_internal.promote(holder.destination, ARRAY(
        SELECT DISTINCT d.ordering_key FROM outbox.delivery AS d
         WHERE d.destination = holder.destination AND d.state = 'PENDING' AND d.ordering_key <> ''));
    RETURN moved;
END $$;
COMMENT ON FUNCTION outbox_internal.set_aside(outbox.cursor, integer) IS 'copies what a destination holds of a segment out of the log';

CREATE FUNCTION outbox_internal.detach(holder outbox.cursor)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- What fetchers have not settled goes back to the log.
    UPDATE outbox.cursor AS c
       SET paused = true, detached_at = clock_timestamp(), lease = c.lease + 1,
           done = CASE WHEN open.position IS NULL THEN c.done ELSE '1:1:' END,
           upto = CASE WHEN open.position IS NULL THEN c.upto ELSE coalesce(c.upto, c.done) END,
           position = coalesce(open.position - 1, c.position)
      FROM (SELECT min(b.positions[1]) FROM outbox.batch AS b WHERE b.destination = holder.destination) AS open(position)
     WHERE c.destination = holder.destination;
    DELETE FROM outbox.batch AS b WHERE b.destination = holder.destination;
    INSERT INTO outbox.operation (requested_by, destination, action, from_position)
    VALUES (current_user, holder.destination, 'detach', holder.position);
    PERFORM outbox_internal.wake_relays();
END $$;
COMMENT ON FUNCTION outbox_internal.detach(outbox.cursor) IS 'has a destination let go of the log';

-- Called by the keeper when the log has outgrown outbox.max_log_size and outbox.on_full_log says 'detach'. Of the
-- destinations that hold the oldest segment, the one that holds most of the log by its own events is paused and
-- does not hold it any more, if these are at least half of the limit. If there is none it is the events of others
-- that fill the log: then what the destinations hold of that segment is set aside, and they keep it.
-- NULL: none was detached, or somebody is at work on it.
CREATE FUNCTION outbox_internal.detach_last()
RETURNS name
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    most_bytes CONSTANT bigint := pg_size_bytes(current_setting('outbox.max_log_size')) / 2;
    oldest     record;
    holder     outbox.cursor;
    moved      bigint;
BEGIN
    SELECT s.number, s.held_by INTO oldest
      FROM outbox.segment AS s
     WHERE NOT s.current AND s.held_by <> '{}'
     ORDER BY s.since
     LIMIT 1;
    WITH held AS MATERIALIZED (
        SELECT o.destination, outbox_internal.bytes_held(o) AS bytes FROM outbox.cursor AS o WHERE o.destination = ANY (oldest.held_by)
    )
    SELECT c.* INTO holder
      FROM held AS h
      JOIN outbox.cursor AS c ON c.destination = h.destination
     WHERE h.bytes >= most_bytes
     ORDER BY h.bytes DESC
     LIMIT 1
       FOR UPDATE OF c SKIP LOCKED;
    IF FOUND THEN
        PERFORM outbox_internal.detach(holder);
        RETURN holder.destination;
    END IF;
    FOR holder IN
        SELECT c.* FROM outbox.cursor AS c
         WHERE c.destination = ANY (oldest.held_by)
           AND c.system_identifier = (SELECT system_identifier FROM pg_control_system())
           FOR UPDATE SKIP LOCKED
    LOOP
        moved := outbox_internal.set_aside(holder, oldest.number);
        IF moved > 0 THEN
            UPDATE outbox.cursor AS c SET lease = c.lease + 1 WHERE c.destination = holder.destination;
            INSERT INTO outbox.operation (requested_by, destination, action, events)
            VALUES (current_user, holder.destination, 'set aside', moved);
            PERFORM outbox_internal.wake_relays();
        END IF;
    END LOOP;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.detach_last() IS 'makes room in a log that is too large';

-- ---------------------------------------------------------------------------------------------
-- Seek
-- ---------------------------------------------------------------------------------------------

-- From here on the events of `done`, and those at or below the position of transactions that have
-- finished, count as settled, and all others are delivered, once more or for the first time. Events in
-- outbox.delivery stay there. Segments are locked so that none is emptied before this is committed.
CREATE FUNCTION outbox_internal.move_cursor(destination name, done pg_snapshot, upto pg_snapshot, "position" bigint, caller name)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    before CONSTANT outbox.cursor := outbox_internal.take_control(destination);
BEGIN
    LOCK TABLE outbox.event IN ACCESS SHARE MODE;
    DELETE FROM outbox.batch AS b WHERE b.destination = $1;
    UPDATE outbox.cursor AS c
       SET done = $2, upto = $3, position = $4, lease = c.lease + 1, saved_at = clock_timestamp(),
           system_identifier = s.system_identifier
      FROM pg_control_system() AS s
     WHERE c.destination = $1;
    INSERT INTO outbox.operation (requested_by, destination, action, from_position, to_position)
    VALUES (caller, destination, 'seek', before.position, $4);
    RETURN $4;
END $$;
COMMENT ON FUNCTION outbox_internal.move_cursor(name, pg_snapshot, pg_snapshot, bigint, name) IS 'moves the cursor of a destination';

-- Delivers what lies above a position, and nothing else. Returns the position.
CREATE FUNCTION outbox.seek(destination name, "position" bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.move_cursor(destination, '1:1:', pg_current_snapshot(), $2, caller);
END;
COMMENT ON FUNCTION outbox.seek(name, bigint, outbox_internal.caller) IS 'delivers the events above a position, again or for the first time';

-- Delivers what occurred at a time or later (occurred_at), and what was enqueued behind the first of
-- that. Reads the whole log. Returns the position that was found.
CREATE FUNCTION outbox.seek(destination name, since timestamptz, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox.seek(destination,
                       coalesce((SELECT min(e.position) - 1 FROM outbox.event AS e WHERE e.occurred_at >= since),
                                (SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END FROM outbox.event_position AS p)),
                       caller);
END;
COMMENT ON FUNCTION outbox.seek(name, timestamptz, outbox_internal.caller) IS 'delivers the events since a time, again or for the first time';

-- 'beginning': all that is in the log; 'end': what commits from now on; or a position or a time as above.
-- Errors: 22007 it is none of these.
CREATE FUNCTION outbox.seek(destination name, target text, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF target = 'beginning' THEN
        RETURN outbox_internal.move_cursor(destination, '1:1:', NULL, 0, caller);
    ELSIF target = 'end' THEN
        RETURN outbox_internal.move_cursor(destination, outbox_internal.finished_by_now(), NULL,
                                  (SELECT CASE WHEN p.is_called THEN p.last_value ELSE 0 END FROM outbox.event_position AS p),
                                  caller);
    ELSIF target ~ '^\d{1,18}$' THEN
        RETURN outbox.seek(destination, target::bigint, caller);
    END IF;
    RETURN outbox.seek(destination, target::timestamptz, caller);
EXCEPTION
    WHEN invalid_datetime_format OR datetime_field_overflow THEN
        RAISE EXCEPTION 'cannot seek to "%"', target
            USING ERRCODE = 'invalid_datetime_format', HINT = 'Write "beginning", "end", a position or a time.';
END $$;
COMMENT ON FUNCTION outbox.seek(name, text, outbox_internal.caller) IS 'moves a destination to the beginning or end of the log, a position or a time';

-- ---------------------------------------------------------------------------------------------
-- Replay
-- ---------------------------------------------------------------------------------------------

-- Delivers a selection of the events in the log once more, without moving the cursor, and before later
-- events of their keys. All arguments must fit; NULL fits everything. Copies of the events wait in
-- outbox.delivery, so the log can move on meanwhile. Returns the id of the operation; the view
-- outbox.replay_progress tells how far it is.
CREATE FUNCTION outbox.replay(
    destination    name,
    since          timestamptz DEFAULT NULL,
    until          timestamptz DEFAULT NULL,
    topic          text        DEFAULT NULL,
    aggregate_type text        DEFAULT NULL,
    aggregate_id   text        DEFAULT NULL,
    event_type     text        DEFAULT NULL,
    ordering_key   text        DEFAULT NULL,
    event_ids      uuid[]      DEFAULT NULL,
    caller         outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    id       CONSTANT bigint := nextval('outbox.operation_id');
    patterns CONSTANT text[] := outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics'));
    keys     text[];
    count    bigint;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.take_control(destination);
    WITH selected AS (
        INSERT INTO outbox.delivery AS d
        SELECT e.*, $1, 'PENDING', 0, CASE WHEN e.ordering_key = '' THEN clock_timestamp() END,
               NULL, NULL, NULL, NULL, NULL, NULL, id
          FROM outbox.event AS e
         WHERE e.topic LIKE ANY (patterns)
           AND (e.only_to IS NULL OR e.only_to = (SELECT c.number FROM outbox.cursor AS c WHERE c.destination = $1))
           AND ($2 IS NULL OR e.occurred_at >= $2) AND ($3 IS NULL OR e.occurred_at < $3)
           AND ($4 IS NULL OR e.topic LIKE ANY (outbox_internal.topic_patterns($4)))
           AND ($5 IS NULL OR e.aggregate_type = $5) AND ($6 IS NULL OR e.aggregate_id = $6)
           AND ($7 IS NULL OR e.event_type = $7) AND ($8 IS NULL OR e.ordering_key = $8)
           AND ($9 IS NULL OR e.event_id = ANY ($9))
            ON CONFLICT DO NOTHING  -- it waits to be delivered already, or for a decision
        RETURNING d.ordering_key
    )
    SELECT count(*), array_agg(DISTINCT s.ordering_key) INTO count, keys FROM selected AS s;
    PERFORM outbox_internal.promote(destination, coalesce(keys, '{}'));
    INSERT INTO outbox.operation (id, requested_by, destination, action, events, selection)
    VALUES (id, caller, $1, 'replay', count, jsonb_strip_nulls(jsonb_build_object(
        'since', $2, 'until', $3, 'topic', $4, 'aggregate_type', $5, 'aggregate_id', $6,
        'event_type', $7, 'ordering_key', $8, 'event_ids', $9)));
    RETURN id;
END $$;
COMMENT ON FUNCTION outbox.replay(name, timestamptz, timestamptz, text, text, text, text, text, uuid[], outbox_internal.caller) IS
    'delivers a selection of events once more';

CREATE VIEW outbox.replay_progress AS
SELECT o.id, o.destination, o.requested_at, o.requested_by, o.events,
       count(d.position) FILTER (WHERE d.state <> 'DEAD') AS waiting,
       count(d.position) FILTER (WHERE d.state = 'DEAD') AS dead
  FROM outbox.operation AS o
  LEFT JOIN outbox.delivery AS d ON d.operation = o.id AND d.state <> 'DISCARDED'
 WHERE o.action = 'replay'
 GROUP BY o.id;
COMMENT ON VIEW outbox.replay_progress IS 'how far replays are';
COMMENT ON COLUMN outbox.replay_progress.id IS 'as outbox.replay() returned it';
COMMENT ON COLUMN outbox.replay_progress.destination IS 'where to';
COMMENT ON COLUMN outbox.replay_progress.requested_at IS 'since when';
COMMENT ON COLUMN outbox.replay_progress.requested_by IS 'by whom';
COMMENT ON COLUMN outbox.replay_progress.events IS 'how many events were selected';
COMMENT ON COLUMN outbox.replay_progress.waiting IS 'how many of them are still to be delivered';
COMMENT ON COLUMN outbox.replay_progress.dead IS 'how many of them became dead letters';

-- Gives up what of a replay has not been delivered and is not on its way. Returns how many events.
-- Errors: 42704 there is no such replay.
CREATE FUNCTION outbox.cancel_replay(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE plpgsql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    target name;
    keys   text[];
    count  bigint;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT o.destination INTO target FROM outbox.operation AS o WHERE o.id = $1 AND o.action = 'replay';
    IF NOT FOUND THEN
        RAISE EXCEPTION 'replay % does not exist', id
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.replay_progress lists all replays.';
    END IF;
    PERFORM outbox_internal.take_control(target);
    WITH given_up AS (
        DELETE FROM outbox.delivery AS d
         WHERE d.operation = $1 AND d.state = 'PENDING' AND d.lock_token IS NULL
        RETURNING d.ordering_key
    )
    SELECT count(*), array_agg(DISTINCT g.ordering_key) INTO count, keys FROM given_up AS g;
    PERFORM outbox_internal.promote(target, coalesce(keys, '{}'));
    INSERT INTO outbox.operation (requested_by, destination, action, events, selection)
    VALUES (caller, target, 'cancel replay', count, jsonb_build_object('replay', $1));
    RETURN count;
END $$;
COMMENT ON FUNCTION outbox.cancel_replay(bigint, outbox_internal.caller) IS 'gives up what is left of a replay';

-- ---------------------------------------------------------------------------------------------
-- Dead letters
-- ---------------------------------------------------------------------------------------------

CREATE VIEW outbox.dead_letter WITH (security_barrier) AS
SELECT d.destination, d.event_id, d.topic, d.aggregate_type, d.aggregate_id, d.event_type, d.version, d.ordering_key,
       d.occurred_at, d.attempts, d.first_failed_at, d.last_failed_at, d.last_error,
       d.content_type, d.headers, d.payload, d.position
  FROM outbox.delivery AS d
 WHERE d.state = 'DEAD';
COMMENT ON VIEW outbox.dead_letter IS 'events that wait for a decision: outbox.redrive() or outbox.discard()';

CREATE VIEW outbox.blocked_key AS
SELECT first.destination, first.ordering_key,
       first.event_id, first.state, first.attempts, first.next_retry_at, first.last_error,
       coalesce(first.first_failed_at, first.occurred_at) AS since,
       (SELECT count(*)
          FROM outbox.delivery AS d
         WHERE d.destination = first.destination AND d.ordering_key = first.ordering_key AND d.ordering_key <> ''
           AND d.position > first.position AND d.state <> 'DISCARDED' AND d.state <> 'DEAD') AS waiting
  FROM outbox.destination AS t
 CROSS JOIN LATERAL outbox_internal.held_keys(t.name, 100000) AS key
 CROSS JOIN LATERAL outbox_internal.first_of_key(t.name, key) AS first;
COMMENT ON VIEW outbox.blocked_key IS 'ordering keys whose later events wait, since when and why';
COMMENT ON COLUMN outbox.blocked_key.destination IS 'where they wait for delivery';
COMMENT ON COLUMN outbox.blocked_key.ordering_key IS 'the key';
COMMENT ON COLUMN outbox.blocked_key.event_id IS 'the event that holds it';
COMMENT ON COLUMN outbox.blocked_key.state IS 'RELEASED: it is tried again; DEAD: it waits for a decision; PENDING: it is its turn';
COMMENT ON COLUMN outbox.blocked_key.attempts IS 'how often it was refused';
COMMENT ON COLUMN outbox.blocked_key.next_retry_at IS 'when it is tried again';
COMMENT ON COLUMN outbox.blocked_key.last_error IS 'why it was refused';
COMMENT ON COLUMN outbox.blocked_key.since IS 'when it was first refused';
COMMENT ON COLUMN outbox.blocked_key.waiting IS 'how many events wait behind it';

-- Decides on the dead letters that fit all arguments; NULL fits everything.
CREATE FUNCTION outbox_internal.decide_on_dead_letters(
    action text, destination name, event_ids uuid[], topic text, aggregate_type text, aggregate_id text,
    event_type text, ordering_key text, error text, caller name)
RETURNS bigint
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    keys  text[];
    count bigint;
BEGIN
    PERFORM outbox_internal.take_control(destination);
    WITH decided AS (
        UPDATE outbox.delivery AS d
           SET state = CASE action WHEN 'redrive' THEN 'RELEASED' ELSE 'DISCARDED' END,
               attempts = CASE action WHEN 'redrive' THEN 0 ELSE d.attempts END,
               next_retry_at = CASE action WHEN 'redrive' THEN clock_timestamp() END,
               headers = CASE action WHEN 'redrive' THEN d.headers END,
               payload = CASE action WHEN 'redrive' THEN d.payload END
         WHERE d.destination = $2 AND d.state = 'DEAD'
           AND ($3 IS NULL OR d.event_id = ANY ($3)) AND ($4 IS NULL OR d.topic LIKE ANY (outbox_internal.topic_patterns($4)))
           AND ($5 IS NULL OR d.aggregate_type = $5) AND ($6 IS NULL OR d.aggregate_id = $6)
           AND ($7 IS NULL OR d.event_type = $7) AND ($8 IS NULL OR d.ordering_key = $8)
           AND ($9 IS NULL OR d.last_error LIKE $9)
        RETURNING d.ordering_key
    )
    SELECT count(*), array_agg(DISTINCT d.ordering_key) INTO count, keys FROM decided AS d;
    -- A discarded event is remembered for as long as anybody may ask, or the cursor may meet it again.
    DELETE FROM outbox.delivery AS d
     WHERE d.destination = $2 AND d.state = 'DISCARDED' AND d.last_failed_at < clock_timestamp() - interval '30 days';
    PERFORM outbox_internal.promote(destination, coalesce(keys, '{}'));
    INSERT INTO outbox.operation (requested_by, destination, action, events, selection)
    VALUES (caller, $2, action, count, jsonb_strip_nulls(jsonb_build_object(
        'event_ids', $3, 'topic', $4, 'aggregate_type', $5, 'aggregate_id', $6,
        'event_type', $7, 'ordering_key', $8, 'error', $9)));
    RETURN count;
END $$;
COMMENT ON FUNCTION outbox_internal.decide_on_dead_letters(text, name, uuid[], text, text, text, text, text, text, name) IS 'redrives or discards dead letters';

-- Delivers dead letters again, with all their attempts. All arguments must fit, without any it is all
-- of them; `topic` takes patterns as destinations do, `error` one of LIKE. Returns how many.
CREATE FUNCTION outbox.redrive(
    destination    name,
    event_ids      uuid[] DEFAULT NULL,
    topic          text   DEFAULT NULL,
    aggregate_type text   DEFAULT NULL,
    aggregate_id   text   DEFAULT NULL,
    event_type     text   DEFAULT NULL,
    ordering_key   text   DEFAULT NULL,
    error          text   DEFAULT NULL,
    caller         outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.decide_on_dead_letters('redrive', $1, $2, $3, $4, $5, $6, $7, $8, caller);
END;
COMMENT ON FUNCTION outbox.redrive(name, uuid[], text, text, text, text, text, text, outbox_internal.caller) IS 'delivers dead letters again';

-- Gives dead letters up; what waits behind them follows. Arguments as for outbox.redrive().
CREATE FUNCTION outbox.discard(
    destination    name,
    event_ids      uuid[] DEFAULT NULL,
    topic          text   DEFAULT NULL,
    aggregate_type text   DEFAULT NULL,
    aggregate_id   text   DEFAULT NULL,
    event_type     text   DEFAULT NULL,
    ordering_key   text   DEFAULT NULL,
    error          text   DEFAULT NULL,
    caller         outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.refuse_restricted();
    SELECT outbox_internal.decide_on_dead_letters('discard', $1, $2, $3, $4, $5, $6, $7, $8, caller);
END;
COMMENT ON FUNCTION outbox.discard(name, uuid[], text, text, text, text, text, text, outbox_internal.caller) IS 'gives dead letters up';

-- ---------------------------------------------------------------------------------------------
-- One event
-- ---------------------------------------------------------------------------------------------

-- Where an event stands at each destination that selects its topic. Reads the whole log, which has no
-- index on ids. No row: the event is unknown, not committed, or so old that the log has let it go;
-- where receipts are kept, they know of it for longer.
--
--   PENDING     waits to be read, or behind an earlier event of its key
--   INFLIGHT    a relay or fetcher has it, or it was confirmed within the last outbox.cursor_flush_interval
--   PUBLISHED   was confirmed
--   RELEASED    failed and waits for its next attempt
--   DEAD        waits for a person
--   DISCARDED   a person gave it up
CREATE FUNCTION outbox.event_status(
    event_id uuid,
    OUT destination     name,
    OUT state           text,
    OUT attempts        integer,
    OUT next_retry_at   timestamptz,
    OUT last_error      text,
    OUT first_failed_at timestamptz,
    OUT last_failed_at  timestamptz,
    OUT "position"      bigint,
    OUT published_at    timestamptz,
    OUT message_id      text)
RETURNS SETOF record
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH event AS MATERIALIZED (
        SELECT e.position, e.xid, e.topic, e.only_to FROM outbox.event AS e WHERE e.event_id = $1
    ), trouble AS MATERIALIZED (
        SELECT d.* FROM outbox.delivery AS d WHERE d.event_id = $1
    ), receipt AS MATERIALIZED (
        SELECT DISTINCT ON (r.destination) r.*
          FROM outbox.receipt AS r WHERE r.event_id = $1 ORDER BY r.destination, r.published_at DESC
    )
    SELECT t.destination,
           CASE WHEN t.lock_token IS NOT NULL THEN 'INFLIGHT' ELSE t.state END,
           t.attempts, t.next_retry_at, t.last_error, t.first_failed_at, t.last_failed_at, t.position,
           r.published_at, r.message_id
      FROM trouble AS t
      LEFT JOIN receipt AS r ON r.destination = t.destination
    UNION ALL
    SELECT d.name,
           CASE
             WHEN r.event_id IS NOT NULL THEN 'PUBLISHED'
             WHEN leased.number IS NOT NULL THEN 'INFLIGHT'
             WHEN dealt.number IS NOT NULL THEN 'PENDING'
             WHEN pg_visible_in_snapshot(e.xid, c.done)
                  OR e.position <= c.position AND pg_visible_in_snapshot(e.xid, c.upto) THEN 'PUBLISHED'
             WHEN e.xid < w.read_to THEN 'INFLIGHT'
             ELSE 'PENDING'
           END,
           0, NULL, NULL, NULL, NULL, e.position, r.published_at, r.message_id
      FROM event AS e
      JOIN outbox.destination AS d
        ON e.topic LIKE ANY (outbox_internal.topic_patterns(outbox_internal.destination_option(d.name, 'topics')))
      LEFT JOIN outbox.cursor AS c ON c.destination = d.name
      LEFT JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.object = d.server
      LEFT JOIN outbox.batch AS leased ON leased.destination = d.name AND e.position = ANY (leased.positions[:leased.taken])
      LEFT JOIN outbox.batch AS dealt ON dealt.destination = d.name AND e.position = ANY (dealt.positions)
      LEFT JOIN receipt AS r ON r.destination = d.name
     WHERE (e.only_to IS NULL OR e.only_to = c.number) AND NOT EXISTS (SELECT FROM trouble AS t WHERE t.destination = d.name)
    UNION ALL
    SELECT r.destination, 'PUBLISHED', 0, NULL, NULL, NULL, NULL, r.position, r.published_at, r.message_id
      FROM receipt AS r
     WHERE NOT EXISTS (SELECT FROM event) AND NOT EXISTS (SELECT FROM trouble AS t WHERE t.destination = r.destination)
     ORDER BY 1;
END;
COMMENT ON FUNCTION outbox.event_status(uuid) IS 'where an event stands at each destination';

-- Backfill: events of the rows that a captured table has already, for consumers that have never seen them.
--
-- A background worker walks the table by its primary key, a batch per transaction, and writes a snapshot
-- event of each row while it has the row locked (extension/backfill.cpp). Progress is saved in that same
-- transaction; so whatever ends the worker, the next one goes on where events end. Rows that somebody has
-- locked are noted, and done one by one when the walk is over: the worker never waits for one lock while
-- it has another that somebody could wait for longer than it takes to give up (lock_timeout, backfill_main.cpp).
--
-- A table with partitions or children is walked one part after the other. What is added to it meanwhile
-- has its own events.

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
COMMENT ON TABLE outbox.backfill_task IS 'backfills, also those that have ended lately';
COMMENT ON COLUMN outbox.backfill_task.id IS 'of the operation that started it';
COMMENT ON COLUMN outbox.backfill_task.relation IS 'the captured table';
COMMENT ON COLUMN outbox.backfill_task.role IS 'who asked, and must own the table for as long as it takes';
COMMENT ON COLUMN outbox.backfill_task.destination IS 'number of the one destination it is for; NULL: all';
COMMENT ON COLUMN outbox.backfill_task.batch IS 'rows per transaction';
COMMENT ON COLUMN outbox.backfill_task.rate IS 'rows per second, at most; NULL: no limit';
COMMENT ON COLUMN outbox.backfill_task.max_pending IS 'it waits while a destination has more events than this before it';
COMMENT ON COLUMN outbox.backfill_task.state IS 'running, paused, finished, failed or cancelled';
COMMENT ON COLUMN outbox.backfill_task.parts IS 'tables that are still to be walked, the first one now';
COMMENT ON COLUMN outbox.backfill_task.key_columns IS 'by which the first of them is walked; NULL: not begun';
COMMENT ON COLUMN outbox.backfill_task.last_key IS 'of the last row that was passed; NULL: none';
COMMENT ON COLUMN outbox.backfill_task.rows_done IS 'rows that need nothing more';
COMMENT ON COLUMN outbox.backfill_task.rows_estimated IS 'rows of the table, as the planner thought when it began';
COMMENT ON COLUMN outbox.backfill_task.rows_per_second IS 'over about the last ten seconds';
COMMENT ON COLUMN outbox.backfill_task.last_xid IS 'transaction of the last batch';
COMMENT ON COLUMN outbox.backfill_task.last_position IS 'no event of it has a higher position';
COMMENT ON COLUMN outbox.backfill_task.started_at IS 'when it was asked for';
COMMENT ON COLUMN outbox.backfill_task.updated_at IS 'when the row was written';
COMMENT ON COLUMN outbox.backfill_task.finished_at IS 'when it finished, failed or was cancelled';
COMMENT ON COLUMN outbox.backfill_task.last_error IS 'why it failed';

CREATE TABLE outbox.backfill_row (
    task        bigint      NOT NULL REFERENCES outbox.backfill_task ON DELETE CASCADE,
    part        regclass    NOT NULL,
    key_columns name[]      NOT NULL,
    key         text[]      NOT NULL,
    tried_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
COMMENT ON TABLE outbox.backfill_row IS 'rows that were locked when a backfill came to them';
COMMENT ON COLUMN outbox.backfill_row.task IS 'the backfill';
COMMENT ON COLUMN outbox.backfill_row.part IS 'the table they are in';
COMMENT ON COLUMN outbox.backfill_row.key_columns IS 'columns of their key';
COMMENT ON COLUMN outbox.backfill_row.key IS 'its values';
COMMENT ON COLUMN outbox.backfill_row.tried_at IS 'when they were last found to be locked';
CREATE INDEX backfill_row_tried ON outbox.backfill_row (task, tried_at);
COMMENT ON INDEX outbox.backfill_row_tried IS 'finds the row to be tried next';

SELECT pg_extension_config_dump('outbox.backfill_task', 'WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class) AND role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_extension_config_dump('outbox.backfill_row',
    'WHERE part::oid IN (SELECT oid FROM pg_catalog.pg_class) AND task IN (SELECT id FROM outbox.backfill_task WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class) AND role::oid IN (SELECT oid FROM pg_catalog.pg_roles))');

-- One that comes with a dump waits for outbox.resume_backfill(): the rows of its table may come later.
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
COMMENT ON FUNCTION outbox_internal.adopt_backfill() IS 'pauses a backfill that comes with a dump';

CREATE TRIGGER adopt_backfill BEFORE INSERT ON outbox.backfill_task
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.adopt_backfill();
ALTER TABLE outbox.backfill_task ENABLE ALWAYS TRIGGER adopt_backfill;
COMMENT ON TRIGGER adopt_backfill ON outbox.backfill_task IS 'pauses a backfill that comes with a dump';

-- ---------------------------------------------------------------------------------------------
-- Starting one
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.wake_for_backfill()
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_wake_for_backfill';
COMMENT ON FUNCTION outbox_internal.wake_for_backfill() IS 'at commit the keeper looks for backfills';

CREATE FUNCTION outbox_internal.check_can_backfill(part regclass)
RETURNS void
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_check_can_backfill';
COMMENT ON FUNCTION outbox_internal.check_can_backfill(regclass) IS 'raises an error unless a table is captured and can be walked';

-- The tables that have the rows of a table: itself, its partitions or children.
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
COMMENT ON FUNCTION outbox_internal.parts_of_table(regclass) IS 'the tables that have the rows of a table';

-- How many rows the planner would expect, by the size that the table has now; but nothing is planned, for that
-- runs functions of the table's owner.
CREATE FUNCTION outbox_internal.estimate_rows(part regclass)
RETURNS bigint
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_estimate_rows';
COMMENT ON FUNCTION outbox_internal.estimate_rows(regclass) IS 'about how many rows a table has';

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
COMMENT ON FUNCTION outbox_internal.check_owner(regclass, regrole) IS 'raises an error unless a role owns a table';

-- Events that nobody selects would be written for nobody. Where a column has the topic nobody can know.
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
                  HINT = 'CREATE SERVER makes a destination, ALTER SERVER ... OPTIONS (SET topics ...) has it select others.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_selected(regclass, name) IS 'raises an error if nobody would get the events of a table';

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
COMMENT ON FUNCTION outbox_internal.add_backfill(regclass, name, integer, integer, integer, outbox_internal.caller) IS 'see outbox.backfill()';

-- Delivers a snapshot event of each row of a captured table: to one destination, or to all that select
-- its topic. Returns the id of the backfill; the view outbox.backfill_progress tells how far it is.
-- Errors: 42501 the table is another's; 42704 there is no such destination; 55000 the table is not
-- captured, or has no unique key, or the destination (none, without it) does not select its topic.
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
COMMENT ON FUNCTION outbox.backfill(regclass, name, integer, integer, integer) IS
    'delivers a snapshot event of each row of a captured table';

-- ---------------------------------------------------------------------------------------------
-- Pause, resume, cancel
-- ---------------------------------------------------------------------------------------------

-- By who owns it or may operate destinations. Its worker notices at its next batch at the latest.
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
        OR has_function_privilege(caller, 'outbox.pause(name, outbox_internal.caller)', 'EXECUTE')) IS NOT TRUE THEN
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
COMMENT ON FUNCTION outbox_internal.set_backfill_state(bigint, text[], text, text, name) IS 'see outbox.pause_backfill()';

-- Errors of all three: 42704 there is no such backfill; 42501 it is another's; 55000 it has ended.
CREATE FUNCTION outbox.pause_backfill(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.set_backfill_state(id, '{running}', 'paused', 'pause', caller);
END;
COMMENT ON FUNCTION outbox.pause_backfill(bigint, outbox_internal.caller) IS 'stops a backfill until outbox.resume_backfill()';

CREATE FUNCTION outbox.resume_backfill(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.set_backfill_state(id, '{paused, failed}', 'running', 'resume', caller);
END;
COMMENT ON FUNCTION outbox.resume_backfill(bigint, outbox_internal.caller) IS 'goes on with a backfill that is paused or has failed, where it was';

CREATE FUNCTION outbox.cancel_backfill(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.set_backfill_state(id, '{running, paused, failed}', 'cancelled', 'cancel', caller);
END;
COMMENT ON FUNCTION outbox.cancel_backfill(bigint, outbox_internal.caller) IS 'ends a backfill; what it has written is delivered';

-- ---------------------------------------------------------------------------------------------
-- At work
-- ---------------------------------------------------------------------------------------------

-- Writes the events of the rows of a part after a key, but for those that are locked. NULL: the part is gone.
CREATE FUNCTION outbox_internal.write_snapshots(
    part regclass, columns name[], after text[], "limit" integer, only_to integer,
    OUT key_columns name[], OUT rows integer, OUT last_key text[], OUT locked text[])
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_write_snapshots';
COMMENT ON FUNCTION outbox_internal.write_snapshots(regclass, name[], text[], integer, integer) IS 'a batch of a backfill';

-- Writes the event of one row, if it is still there. Waits for its lock.
CREATE FUNCTION outbox_internal.write_snapshot(part regclass, columns name[], key text[], only_to integer)
RETURNS void
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_write_snapshot';
COMMENT ON FUNCTION outbox_internal.write_snapshot(regclass, name[], text[], integer) IS 'one row of a backfill';

-- Of the destinations that a backfill is for, the one that has the most events before the last one of
-- the backfill, at most. A relay that finds nothing for its destination does not get further by
-- position; that it has looked is enough then.
CREATE FUNCTION outbox_internal.most_behind(task outbox.backfill_task, OUT destination name, OUT pending bigint)
LANGUAGE plpgsql VOLATILE -- which keeps the plan: it is asked before every batch
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
      LEFT JOIN outbox.workers() AS w ON w.kind = 'relay' AND w.object = d.server
     WHERE (task.destination IS NULL OR c.number = task.destination) AND c.detached_at IS NULL
     ORDER BY unsettled DESC
     LIMIT 1;
END $$;
COMMENT ON FUNCTION outbox_internal.most_behind(outbox.backfill_task) IS 'the destination that a backfill may have to wait for';

-- What a backfill must find as it was when it was asked for.
CREATE FUNCTION outbox_internal.check_backfill(task outbox.backfill_task)
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_class AS c WHERE c.oid = task.relation) THEN
        RAISE EXCEPTION 'the table does not exist any more' USING ERRCODE = 'undefined_table';
    END IF;
    PERFORM outbox_internal.check_owner(task.relation, task.role);
    IF NOT has_function_privilege(task.role, 'outbox_internal.add_backfill(regclass, name, integer, integer, integer, outbox_internal.caller)', 'EXECUTE') THEN
        RAISE EXCEPTION 'role % may not backfill tables any more', task.role
            USING ERRCODE = 'insufficient_privilege', HINT = 'outbox.grant_capture() lets it.';
    END IF;
    IF NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE task.destination IS NULL OR c.number = task.destination) THEN
        RAISE EXCEPTION '%', CASE WHEN task.destination IS NULL THEN 'there is no destination any more'
                                  ELSE 'the destination does not exist any more' END USING ERRCODE = 'undefined_object';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_backfill(outbox.backfill_task) IS 'raises an error if a backfill cannot go on';

-- A batch; after the last one of a part, the next part.
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
COMMENT ON FUNCTION outbox_internal.backfill_batch(outbox.backfill_task) IS 'a batch of a backfill';

-- The next one of the rows that were locked; none is left: the backfill has finished.
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
COMMENT ON FUNCTION outbox_internal.backfill_locked_row(outbox.backfill_task) IS 'one row of a backfill that was locked';

-- Saves how far a backfill has come, with its speed: the older a figure, the less it counts.
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
COMMENT ON FUNCTION outbox_internal.save_backfill(outbox.backfill_task, bigint) IS 'saves how far a backfill has come';

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
COMMENT ON FUNCTION outbox_internal.fail_backfill(bigint, text) IS 'notes why a backfill cannot go on';

-- One transaction of the worker. What it came to:
--   more     it goes on
--   behind   a destination has to settle something first
--   later    somebody has a lock
--   over     it does not go on
-- Key values are written and read under the same settings, whatever the database prefers.
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
COMMENT ON FUNCTION outbox_internal.backfill_step(bigint) IS 'what the worker of a backfill does, again and again';

-- ---------------------------------------------------------------------------------------------
-- Progress
-- ---------------------------------------------------------------------------------------------

CREATE FUNCTION outbox_internal.backfill_waits_for(id bigint, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS text
LANGUAGE sql VOLATILE STRICT SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE
             WHEN NOT EXISTS (SELECT FROM outbox.workers() AS w WHERE w.kind = 'backfill' AND w.object::bigint = t.id)
             THEN 'a background worker'
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
COMMENT ON FUNCTION outbox_internal.backfill_waits_for(bigint, outbox_internal.caller) IS 'what keeps a backfill from being faster';

-- A role sees its own; who may see how destinations are or operate them, all.
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
       t.last_error
  FROM outbox.backfill_task AS t
  LEFT JOIN outbox.cursor AS c ON c.number = t.destination
 WHERE pg_catalog.pg_has_role(t.role, 'MEMBER')
    OR pg_catalog.has_table_privilege('outbox.status', 'SELECT')
    OR pg_catalog.has_table_privilege('outbox.operation', 'SELECT');
COMMENT ON VIEW outbox.backfill_progress IS 'how far backfills are';
COMMENT ON COLUMN outbox.backfill_progress.id IS 'as outbox.backfill() returned it';
COMMENT ON COLUMN outbox.backfill_progress."table" IS 'the captured table';
COMMENT ON COLUMN outbox.backfill_progress.destination IS 'the one it is for; NULL: all';
COMMENT ON COLUMN outbox.backfill_progress.state IS 'running, paused, finished, failed or cancelled';
COMMENT ON COLUMN outbox.backfill_progress.rows_done IS 'rows whose events are in the log, or that have none';
COMMENT ON COLUMN outbox.backfill_progress.rows_estimated IS 'rows the table had at the beginning, about';
COMMENT ON COLUMN outbox.backfill_progress.percent IS 'done of those';
COMMENT ON COLUMN outbox.backfill_progress.rate IS 'rows per second, lately';
COMMENT ON COLUMN outbox.backfill_progress.started_at IS 'when it was asked for';
COMMENT ON COLUMN outbox.backfill_progress.finished_at IS 'when it finished, failed or was cancelled';
COMMENT ON COLUMN outbox.backfill_progress.expected_end IS 'at this rate';
COMMENT ON COLUMN outbox.backfill_progress.waiting_for IS 'what keeps it from being faster; NULL: nothing but itself';
COMMENT ON COLUMN outbox.backfill_progress.locked_rows IS 'rows that others had locked, to be done at the end';
COMMENT ON COLUMN outbox.backfill_progress.last_error IS 'why it failed';

-- Is anything wrong, and what is to be done: for a person at 3 a.m., and for an alert.
--
--   failing    events do not arrive, and will not until somebody acts
--   degraded   something goes wrong, and may pass
CREATE FUNCTION outbox.health(OUT state text, OUT reasons text[])
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    WITH status AS MATERIALIZED (
        SELECT * FROM outbox.status
    ), server(preloaded) AS (
        SELECT current_setting('outbox.max_workers', true) IS NOT NULL
    ), reason(level, text) AS (
        SELECT 'failing', 'pg_outbox is not preloaded: add it to shared_preload_libraries and restart the server'
          FROM server
         WHERE NOT server.preloaded
        UNION ALL
        SELECT 'failing', 'nothing is delivered: ' || w.last_error
          FROM outbox.workers() AS w
         WHERE w.kind = 'keeper' AND w.state = 'misconfigured'
        UNION ALL
        SELECT 'failing', format('destination "%s" has no relay: see the server log; perhaps max_worker_processes (%s) is used up',
                                 s.destination, current_setting('max_worker_processes'))
          FROM status AS s, server
         WHERE s.state = 'stopped' AND server.preloaded
        UNION ALL
        SELECT 'failing', format('%s "%s" is held back until %s: it has crashed %s times in a row, and the server with it; the server log or a core dump tells more, a restart of the server has it start at once',
                                 a.kind, a.name, a.next_try::timestamptz(0), a.crashes)
          FROM outbox.absent_workers() AS a
         WHERE a.state = 'held back'
        UNION ALL
        SELECT 'degraded', format('%s "%s" has ended early %s times in a row, and is started again at %s at the latest; the server log says why it ends',
                                  a.kind, a.name, a.deaths, a.next_try::timestamptz(0))
          FROM outbox.absent_workers() AS a
         WHERE a.state = 'failing'
        UNION ALL
        -- A relay that finds no room in the server is above.
        SELECT 'degraded', format('%s workers wait for room: %s, the first for "%s"; %s',
                                  a.kind, count(*), (array_agg(a.name ORDER BY a.since, a.object))[1],
                                  CASE a.waits_for
                                    WHEN 'outbox.max_workers_per_role'
                                    THEN format('role %s has as many as outbox.max_workers_per_role (%s) allows', a.account::regrole,
                                                current_setting(a.waits_for))
                                    ELSE format('increase %s, or end others', a.waits_for)
                                  END)
          FROM outbox.absent_workers() AS a
         WHERE a.state = 'waiting' AND NOT (a.kind = 'relay' AND a.waits_for = 'outbox.max_workers, max_worker_processes')
         GROUP BY a.kind, a.waits_for, a.account
        UNION ALL
        SELECT 'failing', format('destination "%s" cannot be used as configured: %s', s.destination, s.last_error)
          FROM status AS s
         WHERE s.state = 'misconfigured'
        UNION ALL
        -- A destination that fails is given a minute to come back.
        SELECT CASE WHEN s.state_since < clock_timestamp() - interval '1 minute' THEN 'failing' ELSE 'degraded' END,
               format('destination "%s" fails since %s: %s', s.destination, s.state_since::timestamptz(0), s.last_error)
          FROM status AS s
         WHERE s.state = 'backing off'
        UNION ALL
        SELECT 'degraded', format('destination "%s": %s of its topics or queues fail, the others work: %s', s.destination, s.lanes_down, s.last_error)
          FROM status AS s
         WHERE s.state <> 'backing off' AND s.lanes_down > 0
        UNION ALL
        SELECT 'degraded', format('destination "%s" is behind by %s%s', s.destination,
                                  date_trunc('second', s.oldest_pending_age),
                                  CASE WHEN s.state = 'throttled'
                                       THEN format(': it asks for fewer requests (%s)', s.last_error) ELSE '' END)
          FROM status AS s
         WHERE s.state IN ('delivering', 'throttled') AND s.oldest_pending_age > interval '1 minute'
        UNION ALL
        SELECT 'degraded', format('destination "%s" is behind by %s: its fetchers are away, slow or stuck; %s of its events are under leases',
                                  s.destination, date_trunc('second', s.oldest_pending_age), s.in_flight)
          FROM status AS s
         WHERE s.state = 'pull' AND s.oldest_pending_age > interval '1 minute'
        UNION ALL
        SELECT 'failing', format('destination "%s" was detached at %s, because the log had outgrown outbox.max_log_size; outbox.resume() goes on with what the log still has',
                                 c.destination, c.detached_at::timestamptz(0))
          FROM outbox.cursor AS c
         WHERE c.detached_at IS NOT NULL
        UNION ALL
        SELECT 'degraded', format('destination "%s" is paused; outbox.resume() goes on', c.destination)
          FROM outbox.cursor AS c
         WHERE c.paused AND c.detached_at IS NULL
        UNION ALL
        SELECT CASE WHEN t.blocks THEN 'failing' ELSE 'degraded' END,
               format('destination "%s" has %s dead letters, the first of %s (%s)%s; see outbox.dead_letter, outbox.redrive(), outbox.discard()',
                      t.destination, t.count, t.since::timestamptz(0), t.last_error,
                      CASE WHEN t.blocks THEN ', and they block their keys' ELSE '' END)
          FROM (SELECT d.destination, count(*), min(d.last_failed_at) AS since,
                       (array_agg(d.last_error ORDER BY d.last_failed_at))[1] AS last_error,
                       outbox_internal.destination_option(d.destination, 'on_dead_letter') = 'block' AS blocks
                  FROM outbox.delivery AS d
                 WHERE d.state = 'DEAD'
                 GROUP BY d.destination) AS t
        UNION ALL
        SELECT 'degraded', format('destination "%s" has refused %s events, which are tried again (%s)', t.destination, t.count, t.last_error)
          FROM (SELECT d.destination, count(*), (array_agg(d.last_error ORDER BY d.last_failed_at DESC))[1] AS last_error
                  FROM outbox.delivery AS d
                 WHERE d.state = 'RELEASED' AND d.attempts > 0
                 GROUP BY d.destination) AS t
        UNION ALL
        SELECT 'failing', format('destination "%s": 100000 ordering keys are held by events in trouble, and nothing more is read', s.destination)
          FROM status AS s
         WHERE s.held_keys >= 100000
        UNION ALL
        SELECT 'degraded', format('backfill %s of table %s has failed: %s; see outbox.resume_backfill(), outbox.cancel_backfill()',
                                  t.id, t.relation, t.last_error)
          FROM outbox.backfill_task AS t
         WHERE t.state = 'failed'
        UNION ALL
        SELECT 'degraded', 'events wait for a destination: CREATE SERVER ... FOREIGN DATA WRAPPER pg_outbox'
         WHERE NOT EXISTS (SELECT FROM outbox.destination) AND EXISTS (SELECT FROM outbox.event)
        UNION ALL
        SELECT 'degraded',
               format('the log has grown to %s, more than outbox.max_log_size; it is held by %s', pg_size_pretty(log.size),
                      coalesce((SELECT string_agg(DISTINCT quote_ident(name), ', ')
                                  FROM outbox.segment AS s, unnest(s.held_by) AS name),
                               'open transactions, or outbox.retention'))
          FROM (SELECT sum(s.size)::bigint AS size FROM outbox.segment AS s) AS log
         WHERE log.size > pg_size_bytes(nullif(current_setting('outbox.max_log_size', true), '0'))
    )
    SELECT CASE
             WHEN pg_is_in_recovery() THEN 'ok'  -- the primary delivers
             WHEN bool_or(level = 'failing') THEN 'failing'
             WHEN bool_or(level = 'degraded') THEN 'degraded'
             ELSE 'ok'
           END,
           CASE
             WHEN pg_is_in_recovery() THEN '{}'
             ELSE coalesce(array_agg(text ORDER BY level DESC, text), '{}')
           END
      FROM reason;
END;
COMMENT ON FUNCTION outbox.health() IS 'ok, degraded or failing, with reasons a person can act on';

-- Figures for a monitoring system, as OpenMetrics text (version 1.0.0). Counters start anew with the
-- relay they belong to, which is what monitoring systems expect of counters.
CREATE FUNCTION outbox.metrics()
RETURNS text
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- A sample without a value is left out.
    WITH sample(number, family, type, help, labels, value) AS (
        SELECT figure.number, figure.family, figure.type, figure.help,
               format('destination="%s"', replace(replace(replace(s.destination, '\', '\\'), '"', '\"'), E'\n', '\n'))
                   || figure.more_labels,
               figure.value
          FROM outbox.status AS s,
               LATERAL (VALUES
                   (1, 'outbox_up', 'gauge', 'Whether the destination takes events.', '',
                    (s.state IN ('idle', 'delivering', 'throttled', 'pull'))::integer::numeric),
                   (2, 'outbox_published', 'counter', 'Events that the destination has confirmed.', '', s.published),
                   (3, 'outbox_failures', 'counter', 'Attempts that failed.', '', s.failures),
                   (4, 'outbox_in_flight', 'gauge', 'Events read from the log and not settled.', '', s.in_flight),
                   (5, 'outbox_pending_at_most', 'gauge', 'Events not settled, at most.', '', s.pending_at_most),
                   (6, 'outbox_oldest_pending_seconds', 'gauge', 'Age of the oldest event not settled.', '',
                    greatest(coalesce(extract(epoch FROM s.oldest_pending_age), 0), 0)),
                   (9, 'outbox_held_keys', 'gauge', 'Ordering keys that events in trouble hold.', '', s.held_keys),
                   (10, 'outbox_retries', 'gauge', 'Events in outbox.delivery that wait for an attempt.', '',
                    (SELECT count(*) FROM outbox.delivery AS d WHERE d.destination = s.destination AND d.state = 'RELEASED')),
                   (11, 'outbox_dead_letters', 'gauge', 'Events that wait for a decision.', '',
                    (SELECT count(*) FROM outbox.delivery AS d WHERE d.destination = s.destination AND d.state = 'DEAD')),
                   (12, 'outbox_throttled', 'counter', 'Answers that asked for fewer requests.', '', s.throttled),
                   (13, 'outbox_request_limit', 'gauge', 'Requests a second, where fewer are asked for.', '', s.request_limit::numeric),
                   (14, 'outbox_suspects', 'gauge', 'Events in memory whose last attempt failed, or hangs.', '', s.suspects),
                   (15, 'outbox_lanes_down', 'gauge', 'Topics or queues of the destination that fail.', '', s.lanes_down),
                   (7, 'outbox_latency_seconds', 'gauge', 'From occurred_at to the confirmation, of the last minutes.',
                    ',quantile="0.5"', extract(epoch FROM s.latency_p50)),
                   (7, 'outbox_latency_seconds', 'gauge', 'From occurred_at to the confirmation, of the last minutes.',
                    ',quantile="0.99"', extract(epoch FROM s.latency_p99))
               ) AS figure(number, family, type, help, more_labels, value)
        UNION ALL
        SELECT 8, 'outbox_log_bytes', 'gauge', 'Size of a segment of the log.', format('segment="%s"', s.number), s.size
          FROM outbox.segment AS s
    ), family(number, text) AS (
        SELECT number,
               format(E'# TYPE %s %s\n# HELP %s %s\n', family, type, family, help)
                   || string_agg(format(E'%s%s{%s} %s\n', family, CASE type WHEN 'counter' THEN '_total' END, labels, value),
                                 '' ORDER BY labels)
          FROM sample
         WHERE value IS NOT NULL
         GROUP BY number, family, type, help
    )
    SELECT coalesce(string_agg(text, '' ORDER BY number), '') || E'# EOF\n'
      FROM family;
END;
COMMENT ON FUNCTION outbox.metrics() IS 'figures for a monitoring system, as OpenMetrics text';

-- Whether a destination can be used as it is configured, for whoever sets one up. A background worker
-- of its own looks, as the relay would; nothing is published, and nothing changes at the destination.

-- Events that tell which topics or queues a destination needs: the topic to look for, or else those
-- that the option `topics` names without a wildcard, and of the last events of the log those that the
-- destination takes. Where nothing but the topic is known, the rest is NULL.
CREATE FUNCTION outbox_internal.events_to_check(
    destination        name,
    looked_for         text,
    OUT topic          text,
    OUT aggregate_type text,
    OUT event_type     text)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT looked_for, NULL, NULL
     WHERE looked_for IS NOT NULL
    UNION
    SELECT btrim(pattern, E' \t\r\n'), NULL, NULL
      FROM string_to_table(outbox_internal.destination_option(destination, 'topics'), ',') AS pattern
     WHERE looked_for IS NULL AND pattern NOT LIKE '%*%'
    UNION
    SELECT e.topic, e.aggregate_type, e.event_type
      FROM (SELECT * FROM outbox.event ORDER BY xid DESC, position DESC LIMIT 300) AS e
     WHERE CASE
             WHEN looked_for IS NULL
             THEN e.topic LIKE ANY (outbox_internal.topic_patterns(outbox_internal.destination_option(destination, 'topics')))
             ELSE e.topic = looked_for
           END;
END;
COMMENT ON FUNCTION outbox_internal.events_to_check(name, text) IS 'events whose topics or queues a check looks for';

CREATE FUNCTION outbox_internal.run_check(server oid, topic text, OUT subject text, OUT ok boolean, OUT detail text)
RETURNS SETOF record
LANGUAGE c VOLATILE
AS 'MODULE_PATHNAME', 'outbox_run_check';
COMMENT ON FUNCTION outbox_internal.run_check(oid, text) IS 'has a background worker check a destination';

-- One row for each step, in the order in which a relay would take it; the first that is not ok says
-- what is wrong and mostly ends the check. `topic`: what events to come will have, where that decides
-- which topic or queue of the destination they go to.
-- Errors: 42704 there is no such destination; 53400 no background worker could be started.
CREATE FUNCTION outbox.check_destination(name text, topic text DEFAULT NULL)
RETURNS TABLE (subject text, ok boolean, detail text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    server oid;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    SELECT d.server INTO server FROM outbox.destination AS d WHERE d.name = $1;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'destination "%" does not exist', $1
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.status lists all destinations.';
    END IF;
    RETURN QUERY SELECT * FROM outbox_internal.run_check(server, $2);
END $$;
COMMENT ON FUNCTION outbox.check_destination(text, text) IS
    'tells what is wrong with a destination, without publishing anything';

-- Views with the columns of outbox tables that applications have. What is inserted into one goes
-- straight into the log; SELECT shows the log, with the columns that a publisher would have kept
-- up to date. docs/existing-outbox.md says what such a view does and what it does not.

-- What jsonb cannot hold gives NULL: {"n": 1e999999}, "\ud800" and "\u0000" are JSON, but not jsonb. An error
-- would be one for whoever reads the view, whatever event is looked for.
CREATE FUNCTION outbox.payload_as_jsonb(payload bytea)
RETURNS jsonb
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_payload_as_jsonb';
COMMENT ON FUNCTION outbox.payload_as_jsonb(bytea) IS 'a JSON payload, or NULL if jsonb cannot hold it';

-- How far each event is, over all destinations that select it. Views call functions with the rights of
-- whoever reads them, so what is in here are functions of pg_catalog only.
CREATE VIEW outbox.event_progress AS
WITH destination AS MATERIALIZED (
    SELECT d.name, c.number, c.done, c.upto, c.position, c.saved_at,
           -- as outbox_internal.topic_patterns() does
           (SELECT array_agg(replace(replace(replace(replace(btrim(topic, E' \t\r\n'), '\', '\\'), '%', '\%'), '_', '\_'),
                                     '*', '%'))
              FROM string_to_table(
                       coalesce((SELECT o.option_value
                                   FROM pg_foreign_server AS s, pg_options_to_table(s.srvoptions) AS o
                                  WHERE s.oid = d.server AND o.option_name = 'topics'),
                                '*'), ',') AS topic) AS patterns
      FROM outbox.destination AS d
      LEFT JOIN outbox.cursor AS c ON c.destination = d.name
), unsettled AS (
    SELECT d.position, d.destination, d.attempts, d.next_retry_at, d.lock_token, d.locked_at
      FROM outbox.delivery AS d
     WHERE d.state <> 'DISCARDED'
    UNION ALL
    SELECT o.position, b.destination, 0, NULL,
           CASE WHEN o.number <= b.taken THEN b.token END, CASE WHEN o.number <= b.taken THEN b.fetched_at END
      FROM outbox.batch AS b
     CROSS JOIN LATERAL unnest(b.positions) WITH ORDINALITY AS o(position, number)
), trouble AS (
    SELECT u.position, array_agg(u.destination) AS destinations, max(u.attempts) AS attempts,
           min(u.next_retry_at) AS next_retry_at,
           (array_agg(u.lock_token ORDER BY u.locked_at) FILTER (WHERE u.lock_token IS NOT NULL))[1] AS lock_token,
           min(u.locked_at) AS locked_at
      FROM unsettled AS u
     GROUP BY u.position
), event AS (
    SELECT e.* FROM outbox.event AS e
    UNION ALL
    SELECT DISTINCT ON (d.position)
           d.position, d.xid, d.occurred_at, d.event_id, d.version, d.schema_version, d.source_event_id, d.topic,
           d.aggregate_type, d.aggregate_id, d.event_type, d.ordering_key, d.content_type, d.headers, d.payload, d.only_to
      FROM outbox.delivery AS d
     WHERE NOT EXISTS (SELECT FROM outbox.event AS e WHERE e.xid = d.xid AND e.position = d.position)
)
SELECT e.position, e.event_id, e.topic, e.aggregate_type, e.aggregate_id, e.event_type, e.version, e.schema_version,
       e.content_type, e.payload, e.occurred_at,
       (SELECT CASE
                 WHEN d.name = ANY (t.destinations) THEN NULL
                 ELSE coalesce((SELECT max(r.published_at)
                                  FROM outbox.receipt AS r
                                 WHERE r.event_id = e.event_id AND r.destination = d.name),
                               CASE WHEN pg_visible_in_snapshot(e.xid, d.done)
                                         OR e.position <= d.position AND pg_visible_in_snapshot(e.xid, d.upto)
                                    THEN d.saved_at END)
               END AS settled_at
          FROM destination AS d
         WHERE e.topic LIKE ANY (d.patterns) AND (e.only_to IS NULL OR e.only_to = d.number)
         ORDER BY settled_at DESC NULLS FIRST
         LIMIT 1) AS published_at,
       coalesce(t.attempts, 0) AS attempts, t.next_retry_at, t.lock_token, t.locked_at
  FROM event AS e
  LEFT JOIN trouble AS t ON t.position = e.position;
COMMENT ON VIEW outbox.event_progress IS 'how far each event is, for views of the log';
COMMENT ON COLUMN outbox.event_progress.position IS 'its place in the log';
COMMENT ON COLUMN outbox.event_progress.event_id IS 'the event';
COMMENT ON COLUMN outbox.event_progress.topic IS 'as enqueued; so are the next columns';
COMMENT ON COLUMN outbox.event_progress.published_at IS
    'when the last of its destinations confirmed it, or at the latest then; NULL: some have not, or none selects it';
COMMENT ON COLUMN outbox.event_progress.attempts IS 'how often a destination refused it';
COMMENT ON COLUMN outbox.event_progress.next_retry_at IS 'not sent before';
COMMENT ON COLUMN outbox.event_progress.lock_token IS 'it is being delivered under this token, after trouble or to a fetcher';
COMMENT ON COLUMN outbox.event_progress.locked_at IS 'since when';

-- ---------------------------------------------------------------------------------------------
-- Layouts
-- ---------------------------------------------------------------------------------------------

-- The tables that there are views for. `unpublished` tells which rows of a table are to be moved into the log,
-- and in_order in which order: by time, but of one aggregate by version, for a transaction that began
-- earlier may have changed it later.
CREATE FUNCTION outbox_internal.layout(
    layout text,
    OUT topic        text,
    OUT content_type text,
    OUT unpublished  text,
    OUT in_order     text,
    OUT shown        text)
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    by_version CONSTANT text := 'max(occurred_at) OVER (PARTITION BY %s ORDER BY version ROWS UNBOUNDED PRECEDING), version';
BEGIN
    topic := '{aggregate_type}.events';
    CASE layout
        WHEN 'seed' THEN
            content_type := 'application/octet-stream';
            unpublished := 'published_at IS NULL';
            in_order := format(by_version, 'aggregate_type, aggregate_id');
        WHEN 'seed_jsonb' THEN
            unpublished := 'published_at IS NULL';
            in_order := format(by_version, 'aggregatetype, aggregateid');
        WHEN 'debezium' THEN
            topic := 'outbox.event.{aggregate_type}';
            in_order := 'tableoid, ctid';
        WHEN 'tutorial' THEN
            topic := '{event_type}';
            unpublished := $q$state <> 'processed'$q$;
            in_order := 'created_at';
            shown := 'e.aggregate_id = e.event_id::text';
        WHEN 'cqrs' THEN
            unpublished := 'processed_at IS NULL';
            in_order := 'id';
            shown := $q$e.aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'$q$;
        ELSE
            RAISE EXCEPTION 'layout "%" does not exist', layout
                USING ERRCODE = 'invalid_parameter_value',
                      HINT = 'There are seed, seed_jsonb, debezium, tutorial and cqrs.';
    END CASE;
END $$;
COMMENT ON FUNCTION outbox_internal.layout(text) IS 'what is particular to a layout of outbox tables';

-- Their columns: the type and default of each, and what the view shows in it. What the application gives is
-- `given`, all else says what became of the event. extension/outbox_view.cpp has them in the same order.
CREATE FUNCTION outbox_internal.layout_columns(
    layout text,
    OUT number     bigint,
    OUT name       name,
    OUT type       text,
    OUT given      boolean,
    OUT by_default text,
    OUT shows      text)
RETURNS SETOF record
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT row_number() OVER (), c.name, c.type, c.given, c.by_default,
           CASE c.shows
             WHEN 'state' THEN $q$CASE WHEN e.published_at IS NULL THEN 'pending' ELSE 'processed' END$q$
             WHEN 'json' THEN
                 $q$CASE WHEN e.content_type = 'application/json' THEN outbox.payload_as_jsonb(e.payload) END$q$
             WHEN 'uuid' THEN $q$CASE WHEN e.aggregate_id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                      THEN e.aggregate_id::uuid END$q$
             ELSE 'e.' || c.shows
           END
      FROM (VALUES
        ('seed',       'id',               'uuid',         true,  NULL,                'event_id'),
        ('seed',       'aggregate_type',   'text',         true,  NULL,                'aggregate_type'),
        ('seed',       'aggregate_id',     'text',         true,  NULL,                'aggregate_id'),
        ('seed',       'event_type',       'text',         true,  NULL,                'event_type'),
        ('seed',       'version',          'bigint',       true,  NULL,                'version'),
        ('seed',       'schema_version',   'integer',      true,  '1',                 'schema_version'),
        ('seed',       'payload',          'bytea',        true,  NULL,                'payload'),
        ('seed',       'occurred_at',      'timestamptz',  true,  'now()',             'occurred_at'),
        ('seed',       'published_at',     'timestamptz',  false, NULL,                'published_at'),
        ('seed',       'publish_attempts', 'integer',      false, '0',                 'attempts'),
        ('seed',       'next_retry_at',    'timestamptz',  false, NULL,                'next_retry_at'),
        ('seed',       'lock_token',       'text',         false, NULL,                'lock_token'),
        ('seed',       'locked_at',        'timestamptz',  false, NULL,                'locked_at'),

        ('seed_jsonb', 'id',               'uuid',         true,  NULL,                'event_id'),
        ('seed_jsonb', 'aggregatetype',    'text',         true,  NULL,                'aggregate_type'),
        ('seed_jsonb', 'aggregateid',      'text',         true,  NULL,                'aggregate_id'),
        ('seed_jsonb', 'event_type',       'text',         true,  NULL,                'event_type'),
        ('seed_jsonb', 'version',          'bigint',       true,  NULL,                'version'),
        ('seed_jsonb', 'payload',          'jsonb',        true,  NULL,                'json'),
        ('seed_jsonb', 'occurred_at',      'timestamptz',  true,  'now()',             'occurred_at'),
        ('seed_jsonb', 'published_at',     'timestamptz',  false, NULL,                'published_at'),
        ('seed_jsonb', 'publish_attempts', 'integer',      false, '0',                 'attempts'),
        ('seed_jsonb', 'next_retry_at',    'timestamptz',  false, NULL,                'next_retry_at'),
        ('seed_jsonb', 'lock_token',       'text',         false, NULL,                'lock_token'),
        ('seed_jsonb', 'locked_at',        'timestamptz',  false, NULL,                'locked_at'),

        ('debezium',   'id',               'uuid',         true,  NULL,                'event_id'),
        ('debezium',   'aggregatetype',    'varchar(255)', true,  NULL,                'aggregate_type'),
        ('debezium',   'aggregateid',      'varchar(255)', true,  NULL,                'aggregate_id'),
        ('debezium',   'type',             'varchar(255)', true,  NULL,                'event_type'),
        ('debezium',   'payload',          'jsonb',        true,  NULL,                'json'),

        ('tutorial',   'id',               'uuid',         true,  'gen_random_uuid()', 'event_id'),
        ('tutorial',   'topic',            'varchar(255)', true,  NULL,                'event_type'),
        ('tutorial',   'message',          'jsonb',        true,  NULL,                'json'),
        ('tutorial',   'state',            'varchar(50)',  false, $q$'pending'$q$,    'state'),
        ('tutorial',   'created_at',       'timestamptz',  true,  'now()',             'occurred_at'),
        ('tutorial',   'processed_at',     'timestamptz',  false, NULL,                'published_at'),

        ('cqrs',       'id',               'bigint',       false, NULL,                'position'),
        ('cqrs',       'aggregate_id',     'uuid',         true,  NULL,                'uuid'),
        ('cqrs',       'aggregate_type',   'varchar(255)', true,  NULL,                'aggregate_type'),
        ('cqrs',       'event_type',       'varchar(255)', true,  NULL,                'event_type'),
        ('cqrs',       'payload',          'jsonb',        true,  NULL,                'json'),
        ('cqrs',       'created_at',       'timestamptz',  true,  'now()',             'occurred_at'),
        ('cqrs',       'processed_at',     'timestamptz',  false, NULL,                'published_at')
      ) AS c(of_layout, name, type, given, by_default, shows)
     WHERE c.of_layout = layout;
END;
COMMENT ON FUNCTION outbox_internal.layout_columns(text) IS 'the columns of a layout of outbox tables';

-- A template over {aggregate_type} and {event_type}, as an SQL expression over e.
CREATE FUNCTION outbox_internal.topic_expression(topic text)
RETURNS text
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    wrong text;
    expression text;
BEGIN
    SELECT string_agg(CASE part
                        WHEN '{aggregate_type}' THEN 'e.aggregate_type'
                        WHEN '{event_type}' THEN 'e.event_type'
                        ELSE quote_literal(part)
                      END, ' || ' ORDER BY n),
           min(part) FILTER (WHERE part ~ '[{}]' AND part NOT IN ('{aggregate_type}', '{event_type}'))
      INTO expression, wrong
      FROM regexp_matches(topic, '\{[^{}]*\}|[^{}]+|[{}]', 'g') WITH ORDINALITY AS m(parts, n)
     CROSS JOIN LATERAL unnest(parts) AS part;
    IF wrong IS NOT NULL OR expression IS NULL THEN
        RAISE EXCEPTION 'topic "%" is not a template', topic
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = CASE WHEN wrong IS NULL THEN 'It is empty.' ELSE format('There is no field "%s".', wrong) END,
                  HINT = 'Fields are: {aggregate_type}, {event_type}.';
    END IF;
    RETURN expression;
END $$;
COMMENT ON FUNCTION outbox_internal.topic_expression(text) IS 'a template for topics as an SQL expression';

-- ---------------------------------------------------------------------------------------------
-- Views
-- ---------------------------------------------------------------------------------------------

-- Arguments: the layout, the content type of payloads that are bytes, the template for topics.
CREATE FUNCTION outbox.insert_event()
RETURNS trigger
LANGUAGE c
AS 'MODULE_PATHNAME', 'outbox_insert_event';
COMMENT ON FUNCTION outbox.insert_event() IS 'makes an event of what is inserted into a view of the log';

CREATE FUNCTION outbox.refuse_change()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'cannot % events in view "%"', lower(TG_OP), TG_TABLE_NAME
        USING ERRCODE = 'object_not_in_prerequisite_state',
              DETAIL = 'The view shows the log of pg_outbox, which delivers the events.',
              HINT = CASE TG_OP
                       WHEN 'UPDATE' THEN 'What became of an event, the view shows by itself. Take the application''s own publisher out of service.'
                       ELSE 'Events leave the log by themselves when every destination has them. Take the statement out.'
                     END;
END $$;
COMMENT ON FUNCTION outbox.refuse_change() IS 'says what to do instead of changing events';

CREATE FUNCTION outbox_internal.is_content_type(text text)
RETURNS boolean
LANGUAGE c IMMUTABLE STRICT PARALLEL SAFE
AS 'MODULE_PATHNAME', 'outbox_is_content_type';
COMMENT ON FUNCTION outbox_internal.is_content_type(text) IS 'whether a text is a media type, as outbox.enqueue() takes it';

CREATE FUNCTION outbox_internal.make_outbox_view(schema name, name name, layout text, content_type text, topic text)
RETURNS regclass
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    its       CONSTANT record := outbox_internal.layout(layout);
    topics    CONSTANT text   := coalesce($5, its.topic);
    type      CONSTANT text   := coalesce($4, its.content_type, '');
    shown     CONSTANT text   := concat_ws(' AND ', 'e.topic = ' || outbox_internal.topic_expression(topics), its.shown);
    view_name text;
    column_   record;
BEGIN
    IF schema IS NULL THEN
        RAISE EXCEPTION 'no schema has been selected to create the view in'
            USING ERRCODE = 'invalid_schema_name', HINT = 'Write the name with its schema, or set search_path.';
    ELSIF $4 IS NOT NULL AND its.content_type IS NULL THEN
        RAISE EXCEPTION 'payloads of layout "%" are JSON', $3
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Leave content_type out.';
    ELSIF type <> '' AND NOT outbox_internal.is_content_type(type) THEN
        RAISE EXCEPTION 'content_type is not a media type'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write for example ''application/x-protobuf''.';
    END IF;
    view_name := format('%I.%I', schema, name);
    -- The barrier: a role that may read the view must not see other events through functions in its conditions.
    EXECUTE (SELECT format('CREATE VIEW %s WITH (security_barrier) AS SELECT %s FROM outbox.event_progress AS e WHERE %s', view_name,
                           string_agg(format('(%s)::%s AS %I', c.shows, c.type, c.name), ', ' ORDER BY c.number), shown)
               FROM outbox_internal.layout_columns($3) AS c);
    FOR column_ IN SELECT * FROM outbox_internal.layout_columns($3) AS c WHERE c.by_default IS NOT NULL LOOP
        EXECUTE format('ALTER VIEW %s ALTER %I SET DEFAULT %s', view_name, column_.name, column_.by_default);
    END LOOP;
    EXECUTE format('CREATE TRIGGER insert_event INSTEAD OF INSERT ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION outbox.insert_event(%L, %L, %L)', view_name, $3, type, topics);
    -- Without the one there is an error of the server's own, without the other none if no row is concerned.
    EXECUTE format('CREATE TRIGGER refuse_change INSTEAD OF UPDATE OR DELETE ON %s FOR EACH ROW '
                   'EXECUTE FUNCTION outbox.refuse_change()', view_name);
    EXECUTE format('CREATE TRIGGER refuse_statement BEFORE UPDATE OR DELETE ON %s FOR EACH STATEMENT '
                   'EXECUTE FUNCTION outbox.refuse_change()', view_name);
    EXECUTE format('COMMENT ON VIEW %s IS %L', view_name,
                   format('the log of pg_outbox, with the columns of the layout "%s"', $3));
    RETURN view_name::regclass;
END $$;
COMMENT ON FUNCTION outbox_internal.make_outbox_view(name, name, text, text, text) IS 'makes a view of the log';

-- Makes a view of the log for an application that inserts into an outbox table. Its events get topics by the
-- template, and it shows all events of such topics. It belongs to the caller: his are the rights on the
-- log that it is read with, and the topics that may be used (outbox.grant_produce()). Who inserts needs
-- INSERT on the view only.
-- Errors: 22023 no such layout, no such field in topic, content_type where payloads are JSON; 42P07 the name is
-- taken; 3F000 it has no schema and search_path is empty.
CREATE FUNCTION outbox.create_outbox_view(
    name         text,
    layout       text DEFAULT 'seed',
    content_type text DEFAULT NULL,
    topic        text DEFAULT NULL)
RETURNS regclass
LANGUAGE sql VOLATILE
BEGIN ATOMIC -- no search_path of its own: names without a schema are the caller's
    SELECT outbox_internal.make_outbox_view(
               CASE cardinality(parts) WHEN 1 THEN current_schema() ELSE array_to_string(trim_array(parts, 1), '.')::name END,
               parts[cardinality(parts)]::name, layout, content_type, topic)
      FROM parse_ident(name) AS parts;
END;
COMMENT ON FUNCTION outbox.create_outbox_view(text, text, text, text) IS
    'makes a view that an application can use like its outbox table';

-- An outbox table that an application has makes way for a view of the log (outbox_view.sql).

-- Refuses a table that the view could not stand for.
CREATE FUNCTION outbox_internal.check_adoptable("table" regclass, layout text, ignore_columns name[])
RETURNS void
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
#variable_conflict use_column
DECLARE
    class   pg_class;
    missing text;
    extra   text;
    wrong   text;
BEGIN
    SELECT c.* INTO class FROM pg_class AS c WHERE c.oid = $1;
    IF class.relkind NOT IN ('r', 'p') OR class.relispartition OR class.relpersistence = 't' THEN
        RAISE EXCEPTION '"%" cannot be adopted', $1
            USING ERRCODE = 'wrong_object_type', DETAIL = 'Only tables can, and partitioned tables as a whole.';
    ELSIF NOT pg_has_role(class.relowner, 'USAGE') THEN
        RAISE EXCEPTION 'must be owner of table "%"', $1 USING ERRCODE = 'insufficient_privilege';
    END IF;

    SELECT string_agg(quote_ident(l.name), ', ' ORDER BY l.number) FILTER (WHERE a.attname IS NULL),
           string_agg(quote_ident(a.attname), ', ' ORDER BY a.attnum) FILTER (WHERE l.name IS NULL AND a.attname <> ALL ($3)),
           string_agg(format('%I is %s, not %s', a.attname, format_type(a.atttypid, a.atttypmod), l.type), '; ' ORDER BY l.number)
               FILTER (WHERE t.typnamespace <> 'pg_catalog'::regnamespace -- its functions are the owner's
                          OR l.given AND a.atttypid <> l.type::regtype
                             AND NOT EXISTS (SELECT FROM pg_cast AS c
                                              WHERE c.castsource = a.atttypid AND c.casttarget = l.type::regtype
                                                AND c.castcontext IN ('i', 'a')))
      INTO missing, extra, wrong
      FROM (SELECT * FROM pg_attribute WHERE attrelid = $1 AND attnum > 0 AND NOT attisdropped) AS a
      FULL JOIN outbox_internal.layout_columns(layout) AS l ON l.name = a.attname
      LEFT JOIN pg_type AS t ON t.oid = a.atttypid;
    IF missing IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" does not have the layout "%"', $1, $2
            USING ERRCODE = 'undefined_column', DETAIL = format('Columns that are missing: %s.', missing),
                  HINT = 'Is it another layout? There are seed, seed_jsonb, debezium, tutorial and cqrs.';
    ELSIF wrong IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" does not have the layout "%"', $1, $2
            USING ERRCODE = 'datatype_mismatch', DETAIL = format('Columns of another type: %s.', wrong);
    ELSIF extra IS NOT NULL THEN
        RAISE EXCEPTION 'table "%" has columns that the layout "%" does not have', $1, $2
            USING ERRCODE = 'feature_not_supported', DETAIL = format('They are: %s.', extra),
                  HINT = 'If the application can do without them, name them in ignore_columns. What is in them is not delivered.';
    END IF;
END $$;
COMMENT ON FUNCTION outbox_internal.check_adoptable(regclass, text, name[]) IS 'refuses tables that a view of the log could not stand for';

CREATE FUNCTION outbox_internal.in_another_order("table" regclass, layout text)
RETURNS boolean
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT bool_or(a.number <> l.number)
      FROM (SELECT a.attname, row_number() OVER (ORDER BY a.attnum) AS number
              FROM pg_attribute AS a
             WHERE a.attrelid = $1 AND a.attnum > 0 AND NOT a.attisdropped) AS a
      JOIN outbox_internal.layout_columns(layout) AS l ON l.name = a.attname;
END;
COMMENT ON FUNCTION outbox_internal.in_another_order(regclass, text) IS 'whether a table has its columns in another order than a view has';

-- What belongs to a table, or depends on it, and goes with it when it gets another name.
CREATE FUNCTION outbox_internal.what_stays("table" regclass)
RETURNS SETOF text
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT DISTINCT format('view %s', r.ev_class::regclass)
      FROM pg_depend AS d
      JOIN pg_rewrite AS r ON r.oid = d.objid AND r.ev_class <> d.refobjid
     WHERE d.classid = 'pg_rewrite'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1
    UNION ALL
    SELECT format('foreign key %I of %s', c.conname, c.conrelid::regclass)
      FROM pg_constraint AS c
     WHERE c.contype = 'f' AND $1 IN (c.conrelid, c.confrelid)
    UNION ALL
    SELECT format('trigger %I', t.tgname) FROM pg_trigger AS t WHERE t.tgrelid = $1 AND NOT t.tgisinternal
    UNION ALL
    SELECT format('rule %I', r.rulename) FROM pg_rewrite AS r WHERE r.ev_class = $1
    UNION ALL
    SELECT format('policy %I', p.polname) FROM pg_policy AS p WHERE p.polrelid = $1
    UNION ALL
    SELECT format('publication %I', p.pubname)
      FROM pg_publication AS p, pg_get_publication_tables(p.pubname) AS t
     WHERE t.relid = $1
    UNION ALL
    SELECT format('sequence %s', d.objid::regclass)
      FROM pg_depend AS d
      JOIN pg_class AS c ON c.oid = d.objid AND c.relkind = 'S'
     WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = $1
       AND d.deptype IN ('a', 'i')
     ORDER BY 1;
END;
COMMENT ON FUNCTION outbox_internal.what_stays(regclass) IS 'what goes with a table that is adopted';

-- The privileges on a table, for a view that takes its place. Its owner has all.
CREATE FUNCTION outbox_internal.grants_to_move("table" regclass, layout text, OUT privilege text, OUT grantee text, OUT grantable boolean)
RETURNS SETOF record
LANGUAGE sql STABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT g.privilege, CASE g.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(g.grantee)) END, g.grantable
      FROM (SELECT 'ALL', c.relowner, true FROM pg_class AS c WHERE c.oid = $1
            UNION ALL
            SELECT a.privilege_type, a.grantee, a.is_grantable
              FROM pg_class AS c, aclexplode(c.relacl) AS a
             WHERE c.oid = $1 AND a.grantee <> c.relowner
            UNION ALL
            SELECT format('%s (%I)', a.privilege_type, t.attname), a.grantee, a.is_grantable
              FROM pg_attribute AS t, aclexplode(t.attacl) AS a
             WHERE t.attrelid = $1 AND t.attname IN (SELECT l.name FROM outbox_internal.layout_columns(layout) AS l)
           ) AS g(privilege, grantee, grantable);
END;
COMMENT ON FUNCTION outbox_internal.grants_to_move(regclass, text) IS 'the privileges on a table that is adopted';

-- Runs a statement with the rights of the owner of a table, restricted as VACUUM is, and returns the first row. Whoever
-- reads a table runs code of its owner: functions of its indexes, policies, rules. It must not have the caller's rights.
CREATE FUNCTION outbox_internal.run_as_owner("table" regclass, statement text)
RETURNS text[]
LANGUAGE c VOLATILE STRICT
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_run_as_owner';
COMMENT ON FUNCTION outbox_internal.run_as_owner(regclass, text) IS 'runs a statement with the rights of the owner of a table';

CREATE FUNCTION outbox_internal.rows_to_adopt(
    "table" regclass,
    layout text,
    unpublished text,
    OUT moved  text,
    OUT oldest text,
    OUT leased bigint,
    OUT kept   text)
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    occurred_at CONSTANT text := (SELECT quote_ident(l.name) FROM outbox_internal.layout_columns(layout) AS l WHERE l.by_default = 'now()');
    has_leases  CONSTANT boolean := EXISTS (SELECT FROM outbox_internal.layout_columns(layout) AS l WHERE l.name = 'locked_at');
    found       CONSTANT text[] := outbox_internal.run_as_owner($1, format(
        'SELECT count(*) FILTER (WHERE %1$s), min(%2$s) FILTER (WHERE %1$s), count(*) FILTER (WHERE %1$s AND %3$s), '
               'count(*) FILTER (WHERE (%1$s) IS NOT TRUE) FROM %4$s',
        unpublished, coalesce(occurred_at, 'NULL::timestamptz'),
        CASE WHEN has_leases THEN '(lock_token IS NOT NULL OR locked_at IS NOT NULL)' ELSE 'false' END, $1));
BEGIN
    moved := found[1];
    oldest := found[2];
    leased := found[3];
    kept := found[4];
END $$;
COMMENT ON FUNCTION outbox_internal.rows_to_adopt(regclass, text, text) IS 'counts the rows of a table that is adopted';

-- Puts a view of the log in the place of an application's outbox table, in one transaction: waits for those who
-- are writing to the table, gives it the name <name>_adopted, makes the view with the same privileges, and
-- enqueues the rows that are not published. Returns what it did; with dry_run what it would do, and does
-- nothing. The condition, over columns of the table, tells which rows are not published, instead of the
-- columns of the layout. The caller, whose the view will be, must own the table. docs/existing-outbox.md.
-- Errors: 42501 he does not; 42703, 42804 the table has not got the columns of the layout; 0A000 it has
-- others (ignore_columns); 22023 no such layout, or condition is missing; 25001 not in READ COMMITTED.
CREATE FUNCTION outbox.adopt(
    "table"        regclass,
    layout         text,
    dry_run        boolean DEFAULT false,
    condition      text    DEFAULT NULL,
    content_type   text    DEFAULT NULL,
    topic          text    DEFAULT NULL,
    ignore_columns name[]  DEFAULT '{}',
    OUT item   text,
    OUT detail text)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
SET row_security = off
AS $$
DECLARE
    its         CONSTANT record := outbox_internal.layout(layout);
    unpublished CONSTANT text := coalesce(E'(' || condition || E'\n)', its.unpublished); -- it may end with a comment
    given       CONSTANT text := (SELECT string_agg(quote_ident(l.name), ', ' ORDER BY l.number)
                                    FROM outbox_internal.layout_columns(layout) AS l WHERE l.given);
    schema      name;
    name        name;
    new_name    name;
    privilege   record;
    rows        record;
    view        regclass;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF current_setting('transaction_isolation') IN ('repeatable read', 'serializable') THEN
        RAISE EXCEPTION 'a table cannot be adopted in a % transaction', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'active_sql_transaction',
                  DETAIL = 'It would not see all rows that others have written.', HINT = 'Use READ COMMITTED.';
    ELSIF unpublished IS NULL THEN
        RAISE EXCEPTION 'condition is missing'
            USING ERRCODE = 'invalid_parameter_value',
                  DETAIL = format('Nothing in the layout "%s" tells which rows are not published.', layout),
                  HINT = 'Write ''false'' if Debezium has read all of them, ''true'' to move all.';
    END IF;
    PERFORM outbox_internal.check_adoptable($1, layout, ignore_columns);
    IF NOT dry_run THEN
        EXECUTE format('LOCK TABLE %s IN ACCESS EXCLUSIVE MODE', $1);
        PERFORM outbox_internal.check_adoptable($1, layout, ignore_columns);
    END IF;
    SELECT n.nspname, c.relname, c.relname || '_adopted' INTO schema, name, new_name
      FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
     WHERE c.oid = $1;

    rows := outbox_internal.rows_to_adopt($1, layout, unpublished);
    RETURN QUERY VALUES ('rows to move', rows.moved), ('rows left', rows.kept);
    RETURN QUERY SELECT 'oldest', rows.oldest WHERE rows.oldest IS NOT NULL;
    RETURN QUERY SELECT 'leased', format('%s rows, which a publisher may be publishing right now', rows.leased)
                  WHERE rows.leased > 0;
    RETURN QUERY SELECT 'ignored column', c::text FROM unnest(ignore_columns) AS c;
    RETURN QUERY SELECT 'order of columns', 'is another one in the view: an INSERT must name its columns'
                  WHERE outbox_internal.in_another_order($1, layout);
    RETURN QUERY SELECT 'stays with the table', s FROM outbox_internal.what_stays($1) AS s;
    RETURN QUERY SELECT 'granted on the view', format('%s to %s', g.privilege, g.grantee)
                   FROM outbox_internal.grants_to_move($1, layout) AS g;
    RETURN QUERY VALUES ('new name of the table', format('%I.%I', schema, new_name));
    IF dry_run THEN
        RETURN;
    END IF;

    EXECUTE format('ALTER TABLE %s RENAME TO %I', $1, new_name);
    view := outbox_internal.make_outbox_view(schema, name, layout, content_type, topic);
    FOR privilege IN SELECT * FROM outbox_internal.grants_to_move($1, layout) LOOP
        EXECUTE format('GRANT %s ON %s TO %s%s', privilege.privilege, view, privilege.grantee,
                       CASE WHEN privilege.grantable THEN ' WITH GRANT OPTION' ELSE '' END);
    END LOOP;
    PERFORM outbox_internal.run_as_owner($1, format('INSERT INTO %s (%s) SELECT %2$s FROM %s WHERE %s ORDER BY %s',
                                           view, given, $1, unpublished, its.in_order));
END $$;
COMMENT ON FUNCTION outbox.adopt(regclass, text, boolean, text, text, text, name[]) IS
    'puts a view of the log in the place of an outbox table';

-- What each right consists of: functions, views and types of the schemas outbox and outbox_internal, by name. A new
-- one that is not for its owner alone is added here, and to tests/system/test_privileges.py.
CREATE FUNCTION outbox_internal.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'produce' THEN ARRAY['enqueue', 'new_event']
             WHEN 'capture' THEN ARRAY['capture', 'uncapture', 'captures', 'capture_condition', -- and what these call
                                       'refuse_restricted', 'save_captured', 'forget_captured', 'check_captured',
                                       'check_capturable', 'check_choice', 'check_moves', 'add_capture_triggers',
                                       'drop_capture_triggers', 'captured_tree', 'event_type_of', 'row_key_of', 'columns_of',
                                       'set_capture_fire', 'trigger_state', 'has_capture_triggers',
                                       'backfill', 'add_backfill', 'pause_backfill', 'resume_backfill', 'cancel_backfill',
                                       'backfill_progress', 'backfill_waits_for']
             WHEN 'operate' THEN ARRAY['pause', 'resume', 'seek', 'replay', 'cancel_replay', 'redrive', 'discard',
                                       'event_status', 'receipt', 'operation', 'replay_progress', 'dead_letter', 'blocked_key',
                                       'held_keys', 'first_of_key', 'check_destination', 'pause_backfill', 'resume_backfill',
                                       'cancel_backfill', 'backfill_progress', 'backfill_waits_for']
             WHEN 'fetch' THEN ARRAY['fetch', 'ack', 'nack', 'extend', 'release']
             -- the views, and the functions they call on behalf of whoever reads them
             WHEN 'monitor' THEN ARRAY['status', 'segment', 'lease', 'health', 'metrics',
                                       'workers', 'absent_workers', 'oldest_after', 'segment_held_by',
                                       'backfill_progress', 'backfill_waits_for']
             WHEN 'fetch default' THEN ARRAY['may_fetch_default']
           END;
END;
COMMENT ON FUNCTION outbox_internal.parts_of_right(text) IS 'the objects that a right gives the use of';

-- Privileges of one object cannot be changed by two transactions at the same time: the second one would fail.
CREATE FUNCTION outbox_internal.lock_rights()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    LOCK TABLE outbox.producer IN SHARE UPDATE EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_rights() IS 'lets one transaction at a time change rights';

-- How a right is given and taken: each is a set of privileges, see outbox_internal.parts_of_right().

CREATE FUNCTION outbox_internal.privileges_of_right(right_to text, OUT privilege text, OUT object text)
RETURNS SETOF record
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT 'EXECUTE', 'ROUTINE ' || p.oid::regprocedure
      FROM pg_proc AS p
     WHERE p.pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)
       AND p.proname = ANY (outbox_internal.parts_of_right(right_to))
    UNION ALL
    SELECT 'SELECT', 'TABLE ' || c.oid::regclass
      FROM pg_class AS c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (outbox_internal.parts_of_right(right_to))
       AND c.relkind IN ('r', 'v')
    UNION ALL
    SELECT 'USAGE', 'TYPE ' || c.reltype::regtype
      FROM pg_class AS c
     WHERE c.relnamespace = 'outbox'::regnamespace AND c.relname = ANY (outbox_internal.parts_of_right(right_to))
       AND c.relkind = 'c';
END;
COMMENT ON FUNCTION outbox_internal.privileges_of_right(text) IS 'the privileges that make up a right';

-- Where a role may do something. USAGE on a schema comes with the first privilege on something in it, and goes
-- with the last.
CREATE FUNCTION outbox_internal.schemas_used_by(role regrole)
RETURNS SETOF name
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT n.nspname
      FROM pg_namespace AS n
     WHERE n.nspname IN ('outbox', 'outbox_internal')
       AND (EXISTS (SELECT FROM pg_proc AS p, aclexplode(p.proacl) AS acl
                     WHERE p.pronamespace = n.oid AND acl.grantee = role)
            OR EXISTS (SELECT FROM pg_class AS c, aclexplode(c.relacl) AS acl
                        WHERE c.relnamespace = n.oid AND acl.grantee = role));
END;
COMMENT ON FUNCTION outbox_internal.schemas_used_by(regrole) IS 'the schemas in which a role has privileges';

CREATE FUNCTION outbox_internal.grant_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part   record;
    schema name;
BEGIN
    PERFORM outbox_internal.lock_rights();
    FOR part IN SELECT * FROM outbox_internal.privileges_of_right(right_to) LOOP
        EXECUTE format('GRANT %s ON %s TO %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    FOR schema IN SELECT outbox_internal.schemas_used_by(role) LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', schema, pg_get_userbyid(role));
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.grant_right(regrole, text) IS 'gives a role the privileges of a right';

CREATE FUNCTION outbox_internal.revoke_right(role regrole, right_to text)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    part   record;
    schema name;
BEGIN
    PERFORM outbox_internal.lock_rights();
    FOR part IN SELECT * FROM outbox_internal.privileges_of_right(right_to) LOOP
        EXECUTE format('REVOKE %s ON %s FROM %I', part.privilege, part.object, pg_get_userbyid(role));
    END LOOP;
    FOR schema IN SELECT unnest('{outbox,outbox_internal}'::name[]) EXCEPT SELECT outbox_internal.schemas_used_by(role) LOOP
        EXECUTE format('REVOKE USAGE ON SCHEMA %I FROM %I', schema, pg_get_userbyid(role));
    END LOOP;
END $$;
COMMENT ON FUNCTION outbox_internal.revoke_right(regrole, text) IS 'takes the privileges of a right from a role';

-- Rights that can be granted, each a set of privileges. Who calls these functions needs EXECUTE on
-- them and nothing else: whoever gets it may hand out the right.

-- Which topics a right is for. Granted again, the new ones take the place of the old.
CREATE FUNCTION outbox_internal.set_topics(role regrole, right_to text, topics text, follows boolean, caller name)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    INSERT INTO outbox.producer AS p (role, topics, granted_by, right_to, follows)
    VALUES (set_topics.role, set_topics.topics, caller, set_topics.right_to, set_topics.follows)
        ON CONFLICT ON CONSTRAINT producer_pkey DO UPDATE
           SET topics = excluded.topics, follows = excluded.follows,
               granted_by = excluded.granted_by, granted_at = excluded.granted_at;
END;
COMMENT ON FUNCTION outbox_internal.set_topics(regrole, text, text, boolean, name) IS 'notes which topics a right is for';

CREATE FUNCTION outbox_internal.forget_topics(role regrole, right_to text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    -- What is captured already stays so, and keeps its topics.
    DELETE FROM outbox.producer AS p
     WHERE p.role = forget_topics.role AND p.right_to = forget_topics.right_to
       AND NOT (p.right_to = 'capture'
                AND EXISTS (SELECT FROM outbox.captured AS c JOIN pg_class AS r ON r.oid = c.relation
                             WHERE pg_has_role(r.relowner, p.role, 'USAGE')));
    UPDATE outbox.producer AS p SET follows = false WHERE p.role = forget_topics.role;
    DELETE FROM outbox.producer AS p WHERE p.role::oid NOT IN (SELECT r.oid FROM pg_roles AS r); -- dropped ones
END;
COMMENT ON FUNCTION outbox_internal.forget_topics(regrole, text) IS 'forgets which topics a right was for';

-- Lets a role enqueue events of topics that match one of the patterns ('video.*, user.events'). Granted
-- again, the new patterns take the place of the old. Errors: 22023 a pattern is empty; 42704 there is
-- no such role.
CREATE FUNCTION outbox.grant_produce(role regrole, topics text DEFAULT '*', caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'produce');
    SELECT outbox_internal.set_topics(role, 'produce', topics, false, caller);
    UPDATE outbox.producer AS p SET topics = grant_produce.topics WHERE p.role = grant_produce.role AND p.follows;
END;
COMMENT ON FUNCTION outbox.grant_produce(regrole, text, outbox_internal.caller) IS 'lets a role enqueue events of some topics';

CREATE FUNCTION outbox.revoke_produce(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'produce');
    SELECT outbox_internal.forget_topics(role, 'produce');
END;
COMMENT ON FUNCTION outbox.revoke_produce(regrole) IS 'takes the right to enqueue events from a role';

-- From foreign servers that it has USAGE on; with the destination 'default' also from outbox.default_destination,
-- if that is a pull destination. Errors: 22023 another destination, which takes a GRANT USAGE.
CREATE FUNCTION outbox.grant_fetch(role regrole, destination name DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF destination <> 'default' THEN
        RAISE EXCEPTION 'the right to fetch from destination "%" is granted on its foreign server', destination
            USING ERRCODE = 'invalid_parameter_value',
                  HINT = format('GRANT USAGE ON FOREIGN SERVER %I TO %s;', destination, role);
    END IF;
    PERFORM outbox_internal.grant_right(role, 'fetch');
    IF destination = 'default' THEN
        PERFORM outbox_internal.grant_right(role, 'fetch default');
    END IF;
END $$;
COMMENT ON FUNCTION outbox.grant_fetch(regrole, name) IS 'lets a role fetch from pull destinations that it has USAGE on';

CREATE FUNCTION outbox.revoke_fetch(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'fetch');
    SELECT outbox_internal.revoke_right(role, 'fetch default');
END;
COMMENT ON FUNCTION outbox.revoke_fetch(regrole) IS 'takes that right from a role';

CREATE FUNCTION outbox.grant_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'operate');
END;
COMMENT ON FUNCTION outbox.grant_operate(regrole) IS 'lets a role operate destinations';

CREATE FUNCTION outbox.revoke_operate(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'operate');
END;
COMMENT ON FUNCTION outbox.revoke_operate(regrole) IS 'takes the right to operate destinations from a role';

CREATE FUNCTION outbox.grant_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'monitor');
END;
COMMENT ON FUNCTION outbox.grant_monitor(regrole) IS 'lets a role see whether everything is well';

CREATE FUNCTION outbox.revoke_monitor(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'monitor');
END;
COMMENT ON FUNCTION outbox.revoke_monitor(regrole) IS 'takes the right to see whether everything is well from a role';

-- Lets a role capture tables that it owns, and produce events of topics that match one of the patterns from
-- them. Without patterns: those of outbox.grant_produce(), be it called before or after; without these all.
-- What is revoked of one of the two rights leaves the topics of the other as they are. Errors as for
-- outbox.grant_produce().
CREATE FUNCTION outbox.grant_capture(role regrole, topics text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.grant_right(role, 'capture');
    SELECT outbox_internal.set_topics(role, 'capture',
                             coalesce(topics, (SELECT p.topics FROM outbox.producer AS p
                                                WHERE p.role = grant_capture.role AND p.right_to = 'produce'), '*'),
                             topics IS NULL, caller);
END;
COMMENT ON FUNCTION outbox.grant_capture(regrole, text, outbox_internal.caller) IS 'lets a role capture its tables';

CREATE FUNCTION outbox.revoke_capture(role regrole)
RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT outbox_internal.revoke_right(role, 'capture');
    SELECT outbox_internal.forget_topics(role, 'capture');
END;
COMMENT ON FUNCTION outbox.revoke_capture(regrole) IS 'takes the right to capture tables from a role';

-- Last: whatever came before is for nobody but its owner, whatever ALTER DEFAULT PRIVILEGES has said.
-- docs/security.md says what to grant.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA outbox, outbox_internal FROM PUBLIC;
REVOKE ALL ON TYPE outbox.new_event FROM PUBLIC;

DO $$
DECLARE
    granted record;
BEGIN
    FOR granted IN
        SELECT o.object, CASE acl.grantee WHEN 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(acl.grantee)) END AS to_whom
          FROM (SELECT 'ROUTINE ' || oid::regprocedure, proowner, proacl
                  FROM pg_proc WHERE pronamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)
                UNION ALL
                SELECT CASE relkind WHEN 'S' THEN 'SEQUENCE ' ELSE 'TABLE ' END || oid::regclass, relowner, relacl
                  FROM pg_class
                 WHERE relnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace) AND relkind IN ('r', 'v', 'S')
                UNION ALL
                SELECT 'SCHEMA ' || oid::regnamespace, nspowner, nspacl
                  FROM pg_namespace WHERE nspname = 'outbox_internal'
                UNION ALL
                SELECT 'TYPE ' || oid::regtype, typowner, typacl
                  FROM pg_type WHERE typnamespace IN ('outbox'::regnamespace, 'outbox_internal'::regnamespace)
                UNION ALL
                SELECT 'FOREIGN DATA WRAPPER pg_outbox', fdwowner, fdwacl
                  FROM pg_foreign_data_wrapper WHERE fdwname = 'pg_outbox') AS o(object, owner, acl),
               aclexplode(o.acl) AS acl
         WHERE acl.grantee <> o.owner
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %s', granted.object, granted.to_whom);
    END LOOP;
END $$;

-- Who may read statistics of the server may read ours; there is nothing of an event in them.
SELECT outbox.grant_monitor('pg_monitor');

-- Whoever adds a partition to a captured table gives it the triggers of the table, and whoever captures a table gives
-- them to it as its owner. The functions do nothing for tables that are not captured.
GRANT EXECUTE ON FUNCTION outbox.capture_row(), outbox.capture_truncate() TO PUBLIC;

-- Views that outbox.create_outbox_view() makes call it with the rights of whoever reads them. It depends on nothing
-- but its argument.
GRANT EXECUTE ON FUNCTION outbox.payload_as_jsonb(bytea) TO PUBLIC;
