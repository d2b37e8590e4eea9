-- Limits of the endpoints of a destination, which its relay keeps in memory (lib/core/limits.hpp). They are counted
-- when they change, so that a row costs the same however many there are. The row of a total is
-- locked until the transaction ends: sessions cannot pass a limit together, and one with an older snapshot
-- fails with a serialization error.
CREATE TABLE outbox.endpoint_total (
    server    name   PRIMARY KEY,
    endpoints bigint NOT NULL,
    bytes     bigint NOT NULL
);
COMMENT ON TABLE outbox.endpoint_total IS 'how many endpoints a destination has';
COMMENT ON COLUMN outbox.endpoint_total.server IS 'name of the destination; follows a rename';
COMMENT ON COLUMN outbox.endpoint_total.endpoints IS 'number of its rows in outbox.endpoint';
COMMENT ON COLUMN outbox.endpoint_total.bytes IS 'what these count, by outbox_internal.endpoint_bytes()';

-- Returns what an endpoint counts. EndpointDirectory counts the same, but for the tenant.
CREATE FUNCTION outbox_internal.endpoint_bytes(url text, topics text, secret_name text, tenant text)
RETURNS bigint
LANGUAGE sql IMMUTABLE
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT octet_length(url) + octet_length(topics) + coalesce(octet_length(secret_name), 0) + coalesce(octet_length(tenant), 0)
           + @{endpoint_topic_size} * (1 + octet_length(topics) - octet_length(replace(topics, ',', '')));
END;

-- Adds to the total of a destination, and refuses what makes it pass a limit.
-- Errors: 54000 a limit is exceeded.
CREATE FUNCTION outbox_internal.add_to_total(server name, endpoints bigint, bytes bigint)
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    max_endpoints CONSTANT bigint := @{max_endpoints};
    max_bytes     CONSTANT bigint := @{max_endpoint_text_size};
    total         outbox.endpoint_total;
BEGIN
    INSERT INTO outbox.endpoint_total AS t VALUES ($1, $2, $3)
        ON CONFLICT ON CONSTRAINT endpoint_total_pkey DO UPDATE
       SET endpoints = t.endpoints + excluded.endpoints, bytes = t.bytes + excluded.bytes
    RETURNING t.* INTO total;
    IF $2 > 0 AND total.endpoints > max_endpoints THEN
        RAISE EXCEPTION 'destination "%" cannot have more than % endpoints', server, max_endpoints
            USING ERRCODE = 'program_limit_exceeded', HINT = 'Create another destination for the others.';
    ELSIF $3 > 0 AND total.bytes > max_bytes THEN
        RAISE EXCEPTION 'the endpoints of destination "%" have more than % bytes of text', server, max_bytes
            USING ERRCODE = 'program_limit_exceeded',
                  DETAIL = 'These are url, topics, secret_name and tenant, and @{endpoint_topic_size} bytes for each of the topics.',
                  HINT = 'Shorten them, or create another destination for the others.';
    ELSIF total.endpoints <= 0 THEN
        DELETE FROM outbox.endpoint_total AS t WHERE t.server = $1;
    END IF;
END $$;

-- Counts the endpoints that a statement inserts, updates or deletes. Most updates change no total, and
-- then wait for no other session.
CREATE FUNCTION outbox_internal.count_endpoints()
RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM outbox_internal.add_to_total(c.server, c.endpoints, c.bytes)
           FROM (SELECT a.server, count(*) AS endpoints,
                        sum(outbox_internal.endpoint_bytes(a.url, a.topics, a.secret_name, a.tenant))::bigint AS bytes
                   FROM added AS a GROUP BY a.server ORDER BY a.server) AS c;
    ELSIF TG_OP = 'DELETE' THEN
        PERFORM outbox_internal.add_to_total(c.server, -c.endpoints, -c.bytes)
           FROM (SELECT r.server, count(*) AS endpoints,
                        sum(outbox_internal.endpoint_bytes(r.url, r.topics, r.secret_name, r.tenant))::bigint AS bytes
                   FROM removed AS r GROUP BY r.server ORDER BY r.server) AS c;
    ELSE
        PERFORM outbox_internal.add_to_total(c.server, c.endpoints, c.bytes)
           FROM (SELECT u.server, sum(u.endpoints)::bigint AS endpoints, sum(u.bytes)::bigint AS bytes
                   FROM (SELECT a.server, 1 AS endpoints, outbox_internal.endpoint_bytes(a.url, a.topics, a.secret_name, a.tenant) AS bytes
                           FROM added AS a
                          UNION ALL
                         SELECT r.server, -1, -outbox_internal.endpoint_bytes(r.url, r.topics, r.secret_name, r.tenant)
                           FROM removed AS r) AS u
                  GROUP BY u.server
                 HAVING sum(u.endpoints) <> 0 OR sum(u.bytes) <> 0
                  ORDER BY u.server) AS c;
    END IF;
    RETURN NULL;
END $$;
COMMENT ON FUNCTION outbox_internal.count_endpoints() IS 'counts endpoints, and refuses more of a destination than a relay should keep in memory';

-- By their names they come before remove_endpoints, which locks the cursor of the destination: a relay
-- must not wait for a session that waits here.
CREATE TRIGGER count_added AFTER INSERT ON outbox.endpoint
    REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.count_endpoints();
ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER count_added;
COMMENT ON TRIGGER count_added ON outbox.endpoint IS 'refuses too many endpoints';

CREATE TRIGGER count_changed AFTER UPDATE ON outbox.endpoint
    REFERENCING OLD TABLE AS removed NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.count_endpoints();
ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER count_changed;
COMMENT ON TRIGGER count_changed ON outbox.endpoint IS 'refuses endpoints that grow too large';

CREATE TRIGGER count_removed AFTER DELETE ON outbox.endpoint
    REFERENCING OLD TABLE AS removed FOR EACH STATEMENT EXECUTE FUNCTION outbox_internal.count_endpoints();
ALTER TABLE outbox.endpoint ENABLE ALWAYS TRIGGER count_removed;
COMMENT ON TRIGGER count_removed ON outbox.endpoint IS 'counts endpoints that are gone';
