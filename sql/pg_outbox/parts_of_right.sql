-- What each right consists of: functions, views and types of the schemas outbox and outbox_internal, by name. A new
-- one that is not for its owner alone is added here, and to tests/system/test_privileges.py.
CREATE FUNCTION outbox_internal.parts_of_right(right_to text)
RETURNS text[]
LANGUAGE sql IMMUTABLE STRICT
SET search_path = pg_catalog, pg_temp
BEGIN ATOMIC
    SELECT CASE right_to
             WHEN 'produce' THEN ARRAY['enqueue', 'new_event']
             WHEN 'capture' THEN ARRAY['capture', 'uncapture', 'captures', 'capture_condition', -- and what these call
                                       'refuse_restricted', 'save_captured', 'forget_captured', 'check_captured',
                                       'check_capturable', 'check_choice', 'check_moves', 'add_capture_triggers',
                                       'drop_capture_triggers', 'captured_tree', 'event_type_of', 'row_key_of', 'columns_of',
                                       'set_capture_fire', 'trigger_state', 'has_capture_triggers',
                                       'backfill', 'add_backfill', 'pause_backfill', 'resume_backfill', 'cancel_backfill',
                                       'backfill_progress', 'backfill_waits_for']
             WHEN 'operate' THEN ARRAY['pause', 'resume', 'seek', 'replay', 'cancel_replay', 'redrive', 'discard',
                                       'event_status', 'receipt', 'operation', 'replay_progress', 'dead_letter', 'blocked_key',
                                       'held_keys', 'first_of_key', 'check_destination', 'destination_options', 'pause_backfill', 'resume_backfill',
                                       'cancel_backfill', 'backfill_progress', 'backfill_waits_for']
             WHEN 'fetch' THEN ARRAY['fetch', 'ack', 'nack', 'extend', 'release']
             -- the views, and the functions they call on behalf of whoever reads them
             WHEN 'monitor' THEN ARRAY['status', 'segment', 'lease', 'health', 'metrics', 'destination_options',
                                       'workers', 'absent_workers', 'oldest_after', 'segment_held_by',
                                       'backfill_progress', 'backfill_waits_for']
             WHEN 'fetch default' THEN ARRAY['may_fetch_default']
           END;
END;
COMMENT ON FUNCTION outbox_internal.parts_of_right(text) IS 'the objects that a right gives the use of';

-- Privileges of one object cannot be changed by two transactions at the same time: the second one would fail.
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
