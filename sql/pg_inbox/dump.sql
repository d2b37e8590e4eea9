-- Tells pg_dump which rows to save. Where pg_inbox is installed without CREATE EXTENSION, pg_dump
-- saves everything anyway and this file is left out.
SELECT pg_extension_config_dump('inbox.consumer', '');
SELECT pg_extension_config_dump('inbox.consumer_id_seq', '');
SELECT pg_extension_config_dump('inbox.subscription', '');
SELECT pg_extension_config_dump('inbox.subscription_number_seq', '');
SELECT pg_extension_config_dump('inbox.message', '');
SELECT pg_extension_config_dump('inbox.message_seq_seq', '');
DO $$
BEGIN
    FOR bucket IN 0..32 LOOP
        PERFORM pg_extension_config_dump(format('inbox.processed_%s', bucket)::regclass, '');
    END LOOP;
END $$;
SELECT pg_extension_config_dump('inbox.setting', '');
SELECT pg_extension_config_dump('inbox.waiting', '');
SELECT pg_extension_config_dump('inbox.dead_message', '');
SELECT pg_extension_config_dump('inbox.claimed', '');
SELECT pg_extension_config_dump('inbox.tombstone', '');
SELECT pg_extension_config_dump('inbox.consumer_offset', '');
SELECT pg_extension_config_dump('inbox.offset_reset', '');
SELECT pg_extension_config_dump('inbox.gap', '');
SELECT pg_extension_config_dump('inbox.operation', '');
SELECT pg_extension_config_dump('inbox.operation_id_seq', '');
SELECT pg_extension_config_dump('inbox.progress', '');
SELECT pg_extension_config_dump('inbox.progress_change', '');
SELECT pg_extension_config_dump('inbox.instance', '');
