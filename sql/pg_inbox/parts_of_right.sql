-- Returns the objects that a right includes: names of functions, and of views with the functions
-- they need, in the schemas inbox and inbox_internal. A new object that other roles may use is
-- added here and to tests/system/test_privileges.py. `read` includes what a processor calls,
-- because it runs as the reader.
CREATE FUNCTION inbox_internal.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'send' THEN ARRAY['receive']
             WHEN 'read' THEN ARRAY['subscribe', 'add_subscription', 'unsubscribe', 'confirm', 'own_subscriptions',
                                    'save_confirmation', 'wake', 'lock_subscriptions', 'confirmed_subscriptions', 'json', 'waiting_keys',
                                    'is_own', 'next_messages', 'next_attempt', 'process', 'take', 'changes_trace', 'record_failure',
                                    'record_end', 'save_progress', 'set_policy', 'dead_letter', 'event_status', 'payload_text', 'payload_jsonb',
                                    'for_client', 'has_form']
             WHEN 'consume' THEN ARRAY['version', 'create_consumer', 'begin_event', 'begin_events', 'was_applied',
                                       'save_offset', 'load_offset', 'confirm_reset', 'report_gap',
                                       'report_progress', 'fail_event', 'end_failure', 'claim', 'complete', 'fail', 'extend', 'release',
                                       'set_policy', 'dead_letter', 'waiting_keys', 'is_own', 'event_status', 'payload_text', 'payload_jsonb',
                                       'for_client', 'has_form']
             WHEN 'operate' THEN ARRAY['redrive', 'discard', 'reset_offset', 'accept_gap', 'forget', 'set_window', 'prune', 'give_consumer',
                                       'drop_consumer',
                                       'dead_letter', 'waiting_keys', 'is_own', 'operation', 'operations', 'event_status', 'payload_text',
                                       'payload_jsonb', 'for_client', 'has_form']
             WHEN 'monitor' THEN ARRAY['version', 'status', 'is_own', 'lag', 'health', 'metrics', 'offsets', 'gaps', 'event_status', 'for_client', 'has_form']
           END
           -- For roles that apply events, in the server or in their own processes.
           || CASE WHEN right_to IN ('read', 'consume')
                THEN ARRAY['apply', 'remove', 'columns_of', 'type_of_column', 'row_parts', 'key_parts', 'without_domain', 'operator_in', 'operator_of',
                           'has_hash', 'portable_text', 'check_row', 'check_key', 'run', 'tombstones', 'lock_insert', 'lock_removal',
                           'leave_tombstone', 'wait_for', 'wait_until', 'wait_on', 'prune', 'continue_trace', 'is_traceparent', 'is_tracestate']
              END;
END;

-- Two transactions cannot change privileges of one object at the same time: the second one would
-- fail.
CREATE FUNCTION inbox_internal.lock_rights()
RETURNS void
LANGUAGE sql VOLATILE
SET search_path = pg_catalog, pg_temp
AS 'LOCK TABLE inbox.setting IN SHARE UPDATE EXCLUSIVE MODE';
COMMENT ON FUNCTION inbox_internal.lock_rights() IS 'lets one transaction at a time change rights';
