-- Secrets of endpoints are derived from the master secret of their destination, which is in the
-- credentials of outbox-relay and not in the database: "whsec_" and the HMAC-SHA256 of the endpoint's
-- secret_name, or else its name, in base64.
-- Errors: 0A000 always.
CREATE FUNCTION outbox.endpoint_secret(server name, endpoint name, caller outbox_internal.caller DEFAULT CURRENT_USER)
RETURNS SETOF text
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    RAISE EXCEPTION 'the SQL edition does not know secrets'
        USING ERRCODE = 'feature_not_supported',
              HINT = 'Derive it from the signing_secret in the credentials of outbox-relay; docs/destinations/endpoints.md says how.';
END $$;
COMMENT ON FUNCTION outbox.endpoint_secret(name, name, outbox_internal.caller) IS 'secrets by which an endpoint checks the signatures of its requests; refused here, where they are not known';
