-- Secrets of endpoints. Each is derived from the master secret of its destination and a name, so
-- that none has to be kept; lib/sinks/http/endpoint_secret.hpp does the same.

-- Returns the HMAC-SHA256 of RFC 2104.
CREATE FUNCTION outbox_internal.hmac_sha256(key bytea, message bytea)
RETURNS bytea
LANGUAGE plpgsql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    padded CONSTANT bytea := CASE WHEN octet_length(key) > 64 THEN sha256(key) ELSE key END;
    inner_ bytea := decode(repeat('36', 64), 'hex');
    outer_ bytea := decode(repeat('5c', 64), 'hex');
BEGIN
    FOR i IN 0..octet_length(padded) - 1 LOOP
        inner_ := set_byte(inner_, i, get_byte(inner_, i) # get_byte(padded, i));
        outer_ := set_byte(outer_, i, get_byte(outer_, i) # get_byte(padded, i));
    END LOOP;
    RETURN sha256(outer_ || sha256(inner_ || message));
END $$;

-- Returns the master secrets of a destination, the present one first, from the user mapping that its relay
-- uses: see outbox_internal.relay_destinations().
-- Errors: 42704 there is none.
CREATE FUNCTION outbox_internal.master_secrets(destination name)
RETURNS text[]
LANGUAGE plpgsql STABLE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    secrets text[];
BEGIN
    SELECT ARRAY(SELECT o.option_value FROM pg_options_to_table(m.umoptions) AS o
                  WHERE o.option_name IN ('signing_secret', 'next_signing_secret') ORDER BY o.option_name DESC)
      INTO secrets
      FROM pg_foreign_server AS s
      JOIN pg_user_mapping AS m ON m.umserver = s.oid AND m.umuser IN (s.srvowner, 0)
     WHERE s.srvname = destination
     ORDER BY m.umuser DESC LIMIT 1;
    IF coalesce(secrets, '{}') = '{}' THEN
        RAISE EXCEPTION 'destination "%" has no master secret', destination
            USING ERRCODE = 'undefined_object',
                  HINT = format('CREATE USER MAPPING FOR ... SERVER %I OPTIONS (signing_secret ''whsec_...''); "openssl rand -base64 32" makes what follows whsec_.',
                                destination);
    END IF;
    RETURN secrets;
END $$;

-- Returns the secrets that sign requests to an endpoint, as Standard Webhooks writes them: one for each
-- name in secret_name, and the same of the next master secret while it is rotated. The owner of the
-- server may know them, because it may read the options of its user mapping.
-- Errors: 42704 there is no such endpoint, or no master secret; 42501 the role does not own the server.
CREATE FUNCTION outbox.endpoint_secret(server name, endpoint name, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    names text;
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    PERFORM outbox_internal.check_owns_destination(server, caller);
    SELECT coalesce(e.secret_name, e.name::text) INTO names
      FROM outbox.endpoint AS e WHERE e.server = endpoint_secret.server AND e.name = endpoint_secret.endpoint;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'endpoint "%/%" does not exist', server, endpoint
            USING ERRCODE = 'undefined_object', HINT = 'The view outbox.endpoint_status lists all endpoints.';
    END IF;
    RETURN QUERY
    SELECT 'whsec_' || encode(outbox_internal.hmac_sha256(decode(substr(m.secret, length('whsec_') + 1), 'base64'),
                                                          convert_to(btrim(n.name, E' \t\r\n'), 'UTF8')), 'base64')
      FROM unnest(outbox_internal.master_secrets(server)) WITH ORDINALITY AS m(secret, number)
     CROSS JOIN string_to_table(names, ',') WITH ORDINALITY AS n(name, number)
     WHERE btrim(n.name, E' \t\r\n') <> ''
     ORDER BY m.number, n.number;
END $$;
