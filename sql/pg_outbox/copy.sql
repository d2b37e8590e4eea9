-- A copy does not send. outbox.installation says which installation delivers the events of this log.
-- It is part of the database, so a copy has it as well, and finds that it is not that installation:
--
--   the identity    that the server has outside its data directory, in outbox.identity_file, or that
--                   outbox-relay has in its configuration, is another one, or there is none. This is how a
--                   base backup or a snapshot is known. The first one that has an identity enters it, the
--                   server for what it delivers itself, and a relay for what relays outside deliver: a
--                   role that may relay must not be able to stop the server.
--   the cluster     is another one: a dump was restored in it, which adds the row of the old one
--   a subscription  of logical replication brings the rows of the log, and its publisher delivers them
--
-- pg_upgrade makes another cluster of the same installation. It keeps OIDs and transaction ids, and a
-- restored dump does not.

CREATE TABLE outbox.installation (
    identity          text,
    relay_identity    text,
    system_identifier bigint NOT NULL,
    log               oid    NOT NULL,
    inserted_by       xid    NOT NULL
);
COMMENT ON TABLE outbox.installation IS 'the installation that delivers the events of this log; a copy is not that one. A restored dump adds a row';
COMMENT ON COLUMN outbox.installation.identity IS 'identity of its server, from outside the database; null if it has none';
COMMENT ON COLUMN outbox.installation.relay_identity IS 'identity of its relays outside the server; null if they have none';
COMMENT ON COLUMN outbox.installation.system_identifier IS 'its cluster; another one after pg_upgrade';
COMMENT ON COLUMN outbox.installation.log IS 'OID of outbox.event, which pg_upgrade keeps';
COMMENT ON COLUMN outbox.installation.inserted_by IS 'transaction that wrote the row, which pg_upgrade keeps as well';

-- Makes this installation the one that delivers.
CREATE FUNCTION outbox_internal.set_installation(identity text, relay_identity text)
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    DELETE FROM outbox.installation;
    INSERT INTO outbox.installation (identity, relay_identity, system_identifier, log, inserted_by)
    SELECT $1, $2, c.system_identifier, 'outbox.event'::regclass, '0' FROM pg_control_system() AS c;
    UPDATE outbox.installation AS i SET inserted_by = i.xmin; -- of a subtransaction, if this is one
END;
COMMENT ON FUNCTION outbox_internal.set_installation(text, text) IS 'makes this installation the one that delivers';
DO $$
BEGIN
    ALTER TABLE outbox.installation REPLICA IDENTITY FULL; -- all others get one later, before they are changed
    PERFORM outbox_internal.set_installation(NULL, NULL);
END $$;

-- Returns the name of a subscription that brings rows of this log; NULL if there is none. Each fetch asks, so
-- this and the next are in PL/pgSQL, which keeps plans.
CREATE FUNCTION outbox_internal.subscription_to_log()
RETURNS name
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN (SELECT min(s.subname)
              FROM pg_subscription_rel AS r
              JOIN pg_subscription AS s ON s.oid = r.srsubid
              JOIN pg_class AS c ON c.oid = r.srrelid
             WHERE c.relnamespace = 'outbox'::regnamespace);
END $$;

-- Returns what this database is a copy of, for one that would send with this identity, inside or outside the
-- server; NULL if it may send. The identity is empty where there is none, and NULL where it is not known.
CREATE FUNCTION outbox_internal.copy_of(identity text, external boolean)
RETURNS text
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    subscription CONSTANT name := outbox_internal.subscription_to_log();
BEGIN
    IF subscription IS NOT NULL THEN
        RETURN format('copy by subscription "%s"', subscription);
    END IF;
    RETURN (SELECT min(coalesce('copy of "' || o.identity || '"', 'copy of cluster ' || i.system_identifier))
              FROM outbox.installation AS i
             CROSS JOIN LATERAL (SELECT CASE WHEN $2 THEN i.relay_identity ELSE i.identity END AS identity) AS o
             CROSS JOIN pg_control_system() AS c
             WHERE o.identity <> $1
                OR i.system_identifier <> c.system_identifier AND (i.log <> 'outbox.event'::regclass OR i.inserted_by <> i.xmin));
END $$;

-- Does the same for a relay or keeper that begins to work. The first one that has an identity enters it.
CREATE FUNCTION outbox_internal.recognize(identity text, external boolean)
RETURNS text
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    entered outbox.installation;
BEGIN
    IF identity <> '' AND NOT EXISTS (SELECT FROM outbox.installation AS i
                                       WHERE CASE WHEN external THEN i.relay_identity ELSE i.identity END IS NOT NULL) THEN
        LOCK TABLE outbox.installation IN SHARE ROW EXCLUSIVE MODE;
        SELECT max(i.identity), max(i.relay_identity) INTO entered.identity, entered.relay_identity FROM outbox.installation AS i;
        IF outbox_internal.copy_of(identity, external) IS NULL THEN
            PERFORM outbox_internal.set_installation(CASE WHEN external THEN entered.identity ELSE coalesce(entered.identity, $1) END,
                                                     CASE WHEN external THEN coalesce(entered.relay_identity, $1) ELSE entered.relay_identity END);
        END IF;
    END IF;
    RETURN outbox_internal.copy_of(identity, external);
END $$;

-- Keeps rows out that logical replication brings and that are about the publisher only: where its log
-- goes on, and the relays that serve it.
CREATE FUNCTION outbox_internal.skip_replicated()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RETURN NULL;
END $$;

DO $$
DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['ring', 'receipt_turn', 'relay', 'relay_status'] LOOP
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER skip_replicated BEFORE INSERT OR UPDATE OR DELETE ON outbox.%1$I
                 FOR EACH ROW EXECUTE FUNCTION outbox_internal.skip_replicated();
             ALTER TABLE outbox.%1$I ENABLE REPLICA TRIGGER skip_replicated;
             COMMENT ON TRIGGER skip_replicated ON outbox.%1$I IS ''keeps out rows that are about a publisher''',
            name);
    END LOOP;
END
$$;

-- Makes this database the one that delivers its events. A copy delivers nothing before that. The
-- identity is that of the server now; the next outbox-relay that has one enters its own.
-- Errors: 55000 a subscription brings rows of the log.
CREATE FUNCTION outbox.claim_identity(why text DEFAULT NULL, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    IF outbox_internal.subscription_to_log() IS NOT NULL THEN
        RAISE EXCEPTION 'subscription "%" brings rows of the log', outbox_internal.subscription_to_log()
            USING ERRCODE = 'object_not_in_prerequisite_state',
                  DETAIL = 'Its publisher delivers them.', HINT = 'Use DROP SUBSCRIPTION first.';
    END IF;
    PERFORM outbox_internal.set_installation(nullif(outbox_internal.own_identity(), ''), NULL);
    INSERT INTO outbox.operation (requested_by, destination, action, why)
    VALUES (caller, '*', 'claim identity', nullif(why, ''));
    PERFORM outbox_internal.wake_for_backfill();
    PERFORM outbox_internal.tell_relays();
END $$;
