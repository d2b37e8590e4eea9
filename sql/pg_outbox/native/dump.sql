-- Tells pg_dump which rows to save. Without an extension pg_dump saves everything anyway.
DO $$
BEGIN
    FOR number IN 0..3 LOOP
        PERFORM pg_extension_config_dump(format('outbox.event_%s', number)::regclass, '');
    END LOOP;
END
$$;
SELECT pg_extension_config_dump('outbox.event_position', '');
SELECT pg_extension_config_dump('outbox.position_gap', '');
SELECT pg_extension_config_dump('outbox.position_era', '');
SELECT pg_extension_config_dump('outbox.source_event', '');
-- Rows of dropped roles would name no role, or another one in another cluster.
SELECT pg_extension_config_dump('outbox.producer', 'WHERE role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_extension_config_dump('outbox.captured', 'WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class)');
SELECT pg_extension_config_dump('outbox.destination_number', '');
SELECT pg_extension_config_dump('outbox.cursor', '');
SELECT pg_extension_config_dump('outbox.endpoint', '');
SELECT pg_extension_config_dump('outbox.endpoint_state', '');
SELECT pg_extension_config_dump('outbox.delivery', '');
SELECT pg_extension_config_dump('outbox.batch', '');
SELECT pg_extension_config_dump('outbox.receipt_0', '');
SELECT pg_extension_config_dump('outbox.receipt_1', '');
SELECT pg_extension_config_dump('outbox.installation', '');
SELECT pg_extension_config_dump('outbox.operation', '');
SELECT pg_extension_config_dump('outbox.operation_id', '');
SELECT pg_extension_config_dump('outbox.backfill_task', 'WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class) AND role::oid IN (SELECT oid FROM pg_catalog.pg_roles)');
SELECT pg_extension_config_dump('outbox.backfill_row',
    'WHERE part::oid IN (SELECT oid FROM pg_catalog.pg_class) AND task IN (SELECT id FROM outbox.backfill_task WHERE relation::oid IN (SELECT oid FROM pg_catalog.pg_class) AND role::oid IN (SELECT oid FROM pg_catalog.pg_roles))');
