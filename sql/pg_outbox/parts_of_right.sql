-- Returns the objects that a right includes: names of functions, views and types in the schemas
-- outbox and outbox_internal. A new object that other roles may use is added here and to
-- tests/system/test_privileges.py.
CREATE FUNCTION outbox_internal.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'produce' THEN ARRAY['enqueue', 'new_event', 'require_shard']
             WHEN 'capture' THEN ARRAY['capture', 'uncapture', 'captures', 'capture_condition', -- and functions they call
                                       'refuse_restricted', 'save_captured', 'forget_captured', 'check_captured',
                                       'check_capturable', 'check_choice', 'check_moves', 'check_identity', 'unique_keys', 'key_is_unique',
                                       'aggregate_type_of', 'warn_of_namesake', 'follow_names', 'add_capture_triggers', 'copy_capture_triggers',
                                       'drop_capture_triggers', 'captured_tree', 'event_type_of', 'row_key_of', 'columns_of',
                                       'set_capture_fire', 'trigger_state', 'has_capture_triggers', 'is_captured_shard', 'lock_captured',
                                       'check_owns_table', 'condition_about', 'is_capturing', -- in the SQL edition
                                       'backfill', 'add_backfill', 'pause_backfill', 'resume_backfill', 'cancel_backfill',
                                       'backfill_progress', 'backfill_waits_for', 'for_client', 'has_form']
             WHEN 'operate' THEN ARRAY['pause', 'resume', 'seek', 'replay', 'cancel_replay', 'redrive', 'discard',
                                       'event_status', 'version', 'payload_text', 'payload_jsonb', 'for_client', 'has_form', 'receipt', 'operation', 'operations',
                                       'replay_progress', 'dead_letter', 'blocked_key',
                                       'blocked_keys', 'first_of_key', 'check_destination', 'destination_options', 'pause_backfill', 'resume_backfill',
                                       'cancel_backfill', 'backfill_progress', 'backfill_waits_for',
                                       'endpoint', 'endpoint_secret', 'delete_endpoint', -- of servers that the role owns
                                       'endpoint_status', 'skip_shard']
             WHEN 'fetch' THEN ARRAY['fetch', 'ack', 'nack', 'extend', 'release']
             -- The views, and functions that they call with the rights of their readers.
             WHEN 'monitor' THEN ARRAY['version', 'status', 'destinations', 'list_destinations', 'backlog', 'segment', 'lease', 'health', 'metrics', 'destination_options',
                                       'selects_nothing', 'endpoint_status', 'refused_as_copy', 'for_client', 'has_form',
                                       'workers', 'absent_workers', 'oldest_after', 'oldest_unread_events', 'segment_held_by',
                                       'backfill_progress', 'backfill_waits_for',
                                       'cluster_status', 'ask_nodes', 'node_status'] -- of all nodes of a Citus cluster
             WHEN 'relay' THEN ARRAY['relay_settings', 'relay_destinations', 'relay_beat', 'relay_take', 'relay_begin',
                                     'relay_follow', 'relay_wake', 'relay_leave', 'relay_look', 'relay_probe', 'relay_entries', 'relay_rows',
                                     'relay_pause', 'relay_save', 'relay_record', 'relay_retries', 'relay_recover', 'relay_note',
                                     'relay_begin_expressions', 'relay_check_expressions', 'relay_look_expressions', 'relay_rows_expressions',
                                     'relay_retries_expressions', 'relay_endpoints', 'relay_report', 'relay_maintain']
             WHEN 'fetch default' THEN ARRAY['may_fetch_default']
           END;
END;

-- Two transactions cannot change privileges of one object at the same time: the second one would
-- fail.
CREATE FUNCTION outbox_internal.lock_rights()
RETURNS void
LANGUAGE plpgsql VOLATILE
SET search_path = pg_catalog, pg_temp
AS $$
BEGIN
    PERFORM outbox_internal.refuse_restricted();
    LOCK TABLE outbox.producer IN SHARE UPDATE EXCLUSIVE MODE;
END $$;
COMMENT ON FUNCTION outbox_internal.lock_rights() IS 'lets one transaction at a time change rights';
