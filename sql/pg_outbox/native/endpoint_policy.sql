-- A row makes the server connect to an address, as an option of a foreign server does. So a role may
-- read and write the endpoints of servers that it owns, and no others. Not owner and superusers only:
-- they may always. The right to operate has the privileges on the table.
CREATE POLICY owner_of_server ON outbox.endpoint
    USING (server IN (SELECT s.srvname
                        FROM pg_catalog.pg_foreign_server AS s
                        JOIN pg_catalog.pg_foreign_data_wrapper AS w ON w.oid = s.srvfdw
                       WHERE w.fdwname = 'pg_outbox' AND pg_catalog.pg_has_role(s.srvowner, 'USAGE')));
COMMENT ON POLICY owner_of_server ON outbox.endpoint IS 'a role has the endpoints of its own servers';
