-- Destinations are rows of this table, with the options that a foreign server of the extension has.
-- Credentials are not among them: outbox-relay has them in its own configuration, under the name that
-- the option `credentials` gives, by default that of the destination.
CREATE TABLE outbox.destination_config (
    name    name  PRIMARY KEY,
    options jsonb NOT NULL
);
COMMENT ON TABLE outbox.destination_config IS 'destinations of events; roles that may write to it decide where outbox-relay connects';
COMMENT ON COLUMN outbox.destination_config.name IS 'name of the destination; the cursor follows a rename';
COMMENT ON COLUMN outbox.destination_config.options IS 'object of texts; outbox.destination_options() lists the options';

-- The number stands in place of the OID of a server.
CREATE FUNCTION outbox_internal.is_destination(server oid)
RETURNS boolean
LANGUAGE sql STABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT EXISTS (SELECT FROM outbox.cursor AS c JOIN outbox.destination_config AS d ON d.name = c.destination
                    WHERE c.number = server::bigint);
END;
COMMENT ON FUNCTION outbox_internal.is_destination(oid) IS 'returns whether a number is that of a destination';

-- Refuses an invalid value of an option, or warns, as the extension does. `range` and `type` are
-- those of outbox.destination_options().
CREATE FUNCTION outbox_internal.check_option(option text, type text, range text, value text)
RETURNS void
LANGUAGE plpgsql IMMUTABLE
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    part CONSTANT text[] := regexp_match(value, '^\s*(\d{1,9})\s*(ms|min|h|s|)\s*$');
    most CONSTANT text   := substring(range FROM '\d+$');
    hint text;
BEGIN
    CASE type
        WHEN 'number' THEN
            IF (CASE WHEN value ~ '^\d{1,9}$' THEN value::integer BETWEEN 1 AND most::integer END) IS NOT TRUE THEN
                hint := format('Write a number from 1 to %s.', most);
            END IF;
        WHEN 'duration' THEN
            IF (part[1]::bigint * CASE part[2] WHEN 'h' THEN 3600000 WHEN 'min' THEN 60000 WHEN 's' THEN 1000 ELSE 1 END
                BETWEEN 1 AND 86400000) IS NOT TRUE THEN
                RAISE EXCEPTION 'invalid value for option "%"', option
                    USING ERRCODE = 'invalid_parameter_value', DETAIL = format('Invalid duration "%s".', value),
                          HINT = 'Write a number of milliseconds, or a number with the unit ms, s, min or h; at least 1 ms and at most a day.';
            ELSIF part[2] = '' THEN
                RAISE WARNING 'option "%" has no unit', option
                    USING DETAIL = format('"%s" means milliseconds.', value),
                          HINT = 'Write for example ''10s''; units are ms, s, min and h.';
            END IF;
        WHEN 'choice', 'switch' THEN
            IF value <> ALL (string_to_array(range, ', ')) THEN
                hint := format('Write "%s".', regexp_replace(replace(range, ', ', '", "'), '", "([^,]*)$', '" or "\1'));
            END IF;
        WHEN 'patterns' THEN
            IF EXISTS (SELECT FROM string_to_table(value, ',') AS pattern WHERE pattern ~ '^\s*$') OR value = '' THEN
                RAISE EXCEPTION 'topic pattern is empty'
                    USING ERRCODE = 'invalid_parameter_value', HINT = 'Write a list such as "video.*, user.events".';
            END IF;
        ELSE
    END CASE;
    IF hint IS NOT NULL THEN
        RAISE EXCEPTION 'invalid value for option "%"', option USING ERRCODE = 'invalid_parameter_value', HINT = hint;
    END IF;
END $$;

-- Refuses destinations that are wrong at first sight. It checks the options that pg_outbox reads
-- here: those of pull destinations, which no relay looks at, and those that all destinations have.
-- The rest is checked by outbox-relay with the rules of the sinks; until it is right, the
-- destination is misconfigured.
CREATE FUNCTION outbox_internal.check_destination_config()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
SET standard_conforming_strings = on
AS $$
DECLARE
    wrong     text;
    sink_here text; -- if it is known here
BEGIN
    IF NEW.name = 'default' THEN
        RAISE EXCEPTION 'a destination cannot be called "default"'
            USING ERRCODE = 'reserved_name', HINT = 'Give the destination another name.';
    ELSIF outbox_internal.is_endpoint(NEW.name) THEN
        RAISE EXCEPTION 'there is an endpoint "%"', NEW.name
            USING ERRCODE = 'duplicate_object', HINT = 'Give the destination another name.';
    ELSIF jsonb_typeof(NEW.options) <> 'object' THEN
        RAISE EXCEPTION 'options must be a JSON object'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write for example ''{"url": "https://example.com/events"}''.';
    END IF;
    SELECT o.key INTO wrong FROM jsonb_each(NEW.options) AS o WHERE jsonb_typeof(o.value) <> 'string' LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'option "%" is not a text', wrong
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write numbers and durations as texts, such as "100" or "5s".';
    ELSIF NOT NEW.options ? 'url' THEN
        RAISE EXCEPTION 'option "url" is required'
            USING ERRCODE = 'fdw_dynamic_parameter_value_needed', HINT = 'Write for example ''{"url": "https://example.com/events"}''.';
    ELSIF NEW.options ->> 'url' ~ '^[^/?#]*//[^/?#@]*:[^/?#@]*@' THEN
        RAISE EXCEPTION 'a password in a URL would be readable by others'
            USING ERRCODE = 'fdw_invalid_attribute_value',
                  HINT = 'Put it into the credentials of outbox-relay.';
    END IF;
    SELECT o.key INTO wrong
      FROM jsonb_object_keys(NEW.options) AS o(key)
     WHERE o.key <> 'credentials'
       AND EXISTS (SELECT FROM outbox.destination_options() AS d WHERE d.option = o.key AND d.set_in = 'user mapping')
       AND NOT EXISTS (SELECT FROM outbox.destination_options() AS d WHERE d.option = o.key AND d.set_in = 'server')
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'option "%" is a credential, and not kept in the database', wrong
            USING ERRCODE = 'fdw_invalid_option_name',
                  HINT = 'Put it into the credentials of outbox-relay.';
    END IF;
    IF NEW.options ->> 'url' ~* '^\s*pull:' AND NEW.options ->> 'url' <> 'pull:' THEN
        RAISE EXCEPTION 'the URL of a pull destination is "pull:", and nothing else'
            USING ERRCODE = 'invalid_parameter_value', HINT = 'Write "pull:".';
    END IF;
    sink_here := CASE NEW.options ->> 'url' WHEN 'pull:' THEN 'pull' WHEN 'null:' THEN 'null' END;
    SELECT o.key INTO wrong
      FROM jsonb_object_keys(NEW.options) AS o(key)
     WHERE o.key <> 'credentials'
       AND NOT EXISTS (SELECT FROM outbox.destination_options() AS d
                        WHERE d.option = o.key AND d.set_in = 'server' AND d.sink = coalesce(sink_here, d.sink))
     LIMIT 1;
    IF FOUND THEN
        RAISE EXCEPTION 'invalid option "%"', wrong
            USING ERRCODE = 'fdw_invalid_option_name',
                  HINT = coalesce('Valid options are: ' || (SELECT string_agg(d.option, ', ') FROM outbox.destination_options() AS d
                                                             WHERE d.sink = sink_here AND d.set_in = 'server') || '.',
                                  'outbox.destination_options() lists the options.');
    END IF;
    PERFORM outbox_internal.check_option(d.option, d.type, d.range, NEW.options ->> d.option)
       FROM outbox.destination_options() AS d
      WHERE d.sink = coalesce(sink_here, 'null') AND d.set_in = 'server' AND NEW.options ? d.option;
    SELECT o.option INTO wrong FROM unnest(ARRAY['filter', 'payload']) AS o(option) WHERE NEW.options ? o.option LIMIT 1;
    IF FOUND AND sink_here = 'pull' THEN
        RAISE EXCEPTION 'option "%" is not valid for a pull destination', wrong
            USING ERRCODE = 'fdw_invalid_option_name', HINT = 'Filter and change events where they are fetched.';
    END IF;
    IF TG_OP = 'INSERT' OR OLD.options IS DISTINCT FROM NEW.options THEN
        PERFORM outbox_internal.check_expression(o.option, NEW.options ->> o.option)
           FROM unnest(ARRAY['filter', 'payload']) AS o(option) WHERE NEW.options ? o.option;
    END IF;
    RETURN NEW;
END $$;

CREATE TRIGGER check_destination_config BEFORE INSERT OR UPDATE ON outbox.destination_config
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.check_destination_config();
COMMENT ON TRIGGER check_destination_config ON outbox.destination_config IS 'refuses destinations that are wrong at first sight';

-- The cursor is ahead of the events in batches. So they move to outbox.delivery, where the relay
-- finds them.
CREATE FUNCTION outbox_internal.leave_pull(left_behind name)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    -- Locked before batches are looked for, because a fetcher may be making the first ones.
    PERFORM outbox_internal.keep_fetchers_out(left_behind);
    IF NOT EXISTS (SELECT FROM outbox.batch AS b WHERE b.destination = left_behind) THEN
        RETURN;
    END IF;
    PERFORM outbox_internal.find_restored_batches(left_behind);
    PERFORM outbox_internal.park_events(left_behind, b.xids, b.positions) FROM outbox.batch AS b WHERE b.destination = left_behind;
    PERFORM outbox_internal.drop_batches(left_behind);
    UPDATE outbox.delivery AS w SET next_retry_at = clock_timestamp()
     WHERE w.destination = left_behind AND w.ordering_key = '' AND w.state = 'PENDING' AND w.next_retry_at IS NULL;
    PERFORM outbox_internal.promote(left_behind, ARRAY(SELECT DISTINCT w.ordering_key FROM outbox.delivery AS w
                                          WHERE w.destination = left_behind AND w.state = 'PENDING'));
END $$;
COMMENT ON FUNCTION outbox_internal.leave_pull(name) IS 'hands events that fetchers have not settled to a relay';

-- As the event triggers of the extension do: a destination has a cursor from its creation, a renamed
-- one keeps its rows, a dropped one loses them. A dump creates the triggers after the rows, so a
-- restored destination keeps its restored cursor.
CREATE FUNCTION outbox_internal.follow_destination()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    new_number integer;
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NOT EXISTS (SELECT FROM outbox.cursor AS c WHERE c.destination = NEW.name) THEN
            new_number := nextval('outbox.destination_number');
            INSERT INTO outbox.cursor (destination, number, server, done, position, system_identifier, lease, saved_at)
            SELECT NEW.name, new_number, new_number::oid,
                   CASE WHEN NEW.options ->> 'start' = 'end' THEN pg_current_snapshot() ELSE '1:1:' END, 0,
                   c.system_identifier, 0, clock_timestamp()
              FROM pg_control_system() AS c;
        END IF;
    ELSIF TG_OP = 'DELETE' THEN
        DELETE FROM outbox.cursor AS c WHERE c.destination = OLD.name;
        DELETE FROM outbox.delivery AS d WHERE d.destination = OLD.name;
        DELETE FROM outbox.batch AS b WHERE b.destination = OLD.name;
        DELETE FROM outbox.transaction AS t WHERE t.destination = OLD.name;
        DELETE FROM outbox.fetcher AS f WHERE f.destination = OLD.name;
        DELETE FROM outbox.endpoint AS e WHERE e.server = OLD.name;
    ELSE
        IF NEW.name <> OLD.name THEN
            PERFORM outbox_internal.keep_fetchers_out(OLD.name);
            UPDATE outbox.cursor AS c SET destination = NEW.name, lease = c.lease + 1 WHERE c.destination = OLD.name;
            UPDATE outbox.delivery AS d SET destination = NEW.name WHERE d.destination = OLD.name;
            UPDATE outbox.batch AS b SET destination = NEW.name WHERE b.destination = OLD.name;
            UPDATE outbox.transaction AS t SET destination = NEW.name WHERE t.destination = OLD.name;
            UPDATE outbox.fetcher AS f SET destination = NEW.name WHERE f.destination = OLD.name;
            UPDATE outbox.operation AS o SET destination = NEW.name WHERE o.destination = OLD.name;
            PERFORM outbox_internal.rename_endpoints(OLD.name, NEW.name);
        END IF;
        PERFORM outbox_internal.check_keeps_endpoints(NEW.name);
        IF OLD.options ->> 'url' = 'pull:' AND NEW.options ->> 'url' <> 'pull:' THEN
            PERFORM outbox_internal.leave_pull(NEW.name);
        END IF;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM outbox_internal.warn_of_unknown_topics(NEW.name);
    END IF;
    PERFORM outbox_internal.wake_relays();
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.follow_destination() IS 'makes, renames and removes the rows of a destination';

CREATE TRIGGER follow_destination AFTER INSERT OR UPDATE OR DELETE ON outbox.destination_config
    FOR EACH ROW EXECUTE FUNCTION outbox_internal.follow_destination();
COMMENT ON TRIGGER follow_destination ON outbox.destination_config IS 'makes, renames and removes the rows of a destination';

-- Makes relays read settings again.
CREATE FUNCTION outbox_internal.follow_setting()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.wake_relays();
    RETURN NULL;
END $$;

CREATE TRIGGER follow_setting AFTER INSERT OR UPDATE OR DELETE ON outbox.setting
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.follow_setting();
COMMENT ON TRIGGER follow_setting ON outbox.setting IS 'makes relays read settings again';

-- Refuses TRUNCATE, which would keep the rows of destinations.
CREATE FUNCTION outbox_internal.refuse_truncate()
RETURNS trigger
LANGUAGE plpgsql
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'cannot truncate table outbox.destination_config'
        USING ERRCODE = 'feature_not_supported', HINT = 'Use DELETE.';
END $$;

CREATE TRIGGER refuse_truncate BEFORE TRUNCATE ON outbox.destination_config
    FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.refuse_truncate();
COMMENT ON TRIGGER refuse_truncate ON outbox.destination_config IS 'refuses TRUNCATE, which would keep the rows of destinations';
