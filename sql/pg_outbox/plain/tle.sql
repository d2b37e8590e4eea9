-- For the trusted-language extension: tells pg_dump which other rows to save (see native/dump.sql).
SELECT pg_extension_config_dump('outbox.setting', '');
SELECT pg_extension_config_dump('outbox.destination_config', '');
SELECT pg_extension_config_dump('outbox.fetcher', 'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_extension_config_dump('outbox.home', '');
