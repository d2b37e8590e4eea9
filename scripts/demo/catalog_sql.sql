-- Without a library there is no worker that calls handlers. A consumer of your own does it, such as one
-- on the client library (docs/client.md), or here a procedure.
CREATE PROCEDURE apply_for_ever() LANGUAGE plpgsql AS $$
DECLARE
    event inbox.message;
BEGIN
    LOOP
        FOR event IN SELECT * FROM inbox.message ORDER BY seq LIMIT 500 LOOP
            IF inbox.begin_event('catalog', event.event_id, 'shop') THEN
                PERFORM apply_video(event);
            END IF;
            DELETE FROM inbox.message AS m WHERE m.consumer_id = event.consumer_id AND m.seq = event.seq;
        END LOOP;
        COMMIT;
        PERFORM pg_sleep(0.02);
    END LOOP;
END $$;
