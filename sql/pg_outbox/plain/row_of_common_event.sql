VALUES (pg_catalog.nextval('outbox.event_position'), pg_catalog.pg_current_xact_id(), pg_catalog.clock_timestamp(), event_id,
                version, schema_version, NULL, coalesce(topic, aggregate_type OPERATOR(pg_catalog.||) @{topic_suffix}), aggregate_type,
                aggregate_id, event_type, coalesce(ordering_key, aggregate_id), 'application/json', NULL, body, NULL)
