VALUES (place, own_xid, coalesce(occurred_at, clock_timestamp()), event_id, version, coalesce(schema_version, 1),
                source_event_id, topic, aggregate_type, aggregate_id, event_type, coalesce(ordering_key, aggregate_id),
                content_type, headers, payload, only_to)
