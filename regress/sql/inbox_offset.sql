-- Offsets: saved forward only, per consumer and subscription; reset by people, carried out by the consumer.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
\set SHOW_CONTEXT never
SET timezone = 'UTC';

SELECT * FROM inbox.load_offset('catalog', 'videos');
SELECT inbox.save_offset('catalog', 'videos', 'm1', '2024-01-01 10:00:00', 'one');
SELECT inbox.save_offset('catalog', 'videos', 'm2', '2024-01-01 10:00:02', 'one');
-- the same and older times are not written, whoever saves them
SELECT inbox.save_offset('catalog', 'videos', 'm2 again', '2024-01-01 10:00:02', 'one');
SELECT inbox.save_offset('catalog', 'videos', 'm1', '2024-01-01 10:00:01', 'one');
SELECT inbox.save_offset('catalog', 'videos', 'm1', '2024-01-01 10:00:01', 'two');
SELECT inbox.save_offset('catalog', 'videos', 'm3', '2024-01-01 10:00:03', 'two');
SELECT inbox.save_offset('catalog', 'users', 'u1', '2023-01-01');
SELECT inbox.save_offset('search', 'videos', 's1', '2023-01-01');
SELECT message_id, publish_time, lag_ms > 0 AS lags, updated_at > now() - interval '1 hour' AS now, updated_by, reset_id
  FROM inbox.load_offset('catalog', 'videos');
SELECT updated_by = current_setting('application_name') || ' ' || pg_backend_pid() AS default_name FROM inbox.load_offset('catalog', 'users');
SELECT consumer, subscription, message_id, publish_time, lag_ms > 0 AS lags, idle < '1 hour' AS idle, reset_pending FROM inbox.offsets ORDER BY 1, 2;
-- a publisher whose clock is ahead
SELECT inbox.save_offset('ahead', 'videos', 'm1', now() + interval '1 day');
SELECT lag_ms FROM inbox.load_offset('ahead', 'videos');
-- with the effects or not at all
BEGIN;
SELECT inbox.save_offset('catalog', 'videos', 'm9', '2024-01-01 10:00:09', 'one');
ROLLBACK;
SELECT message_id FROM inbox.load_offset('catalog', 'videos');
SELECT inbox.save_offset('catalog', 'videos', 'm9', NULL);
SELECT inbox.save_offset('catalog', 'videos', 'm9', 'infinity');

-- a reset: back, or forward
SELECT inbox.reset_offset('catalog', 'videos', '2023-06-01', 'projection was wrong') AS first \gset
SELECT message_id, publish_time, updated_by, reset_id = :first AS first FROM inbox.load_offset('catalog', 'videos');
SELECT inbox.save_offset('catalog', 'videos', 'm10', '2024-01-01 10:00:10', 'one');
SELECT subscription, message_id, publish_time, reset_pending FROM inbox.offsets WHERE consumer = 'catalog' ORDER BY 1;
SELECT inbox.reset_offset('catalog', 'videos', '2023-07-01', 'rather there', 'm0') AS second \gset
SELECT inbox.confirm_reset('catalog', 'videos', :first);
SELECT inbox.confirm_reset('search', 'videos', :second);
SELECT inbox.confirm_reset('catalog', 'videos', :second, 'one');
SELECT inbox.confirm_reset('catalog', 'videos', :second, 'one');
SELECT message_id, publish_time, updated_by, reset_id FROM inbox.load_offset('catalog', 'videos');
SELECT inbox.save_offset('catalog', 'videos', 'm1', '2023-07-02', 'two');
SELECT role = session_user AS me, consumer, operation, details, why FROM inbox.operation ORDER BY id;
-- of what was never saved
SELECT inbox.reset_offset('catalog', 'new', '2023-06-01', 'start there') AS third \gset
SELECT message_id, publish_time, reset_id = :third AS third FROM inbox.load_offset('catalog', 'new');
SELECT subscription, message_id, publish_time, reset_pending FROM inbox.offsets WHERE consumer = 'catalog' ORDER BY 1;
SELECT inbox.confirm_reset('catalog', 'new', :third, 'one');

SELECT inbox.reset_offset('catalog', 'videos', '2023-06-01', '  ');
SELECT inbox.reset_offset('catalog', 'videos', '2023-06-01', NULL);
SELECT inbox.reset_offset('catalog', 'videos', NULL, 'why not');
SELECT inbox.reset_offset('nobody', 'videos', '2023-06-01', 'why not');

-- was_applied
SELECT inbox.was_applied('catalog', '00000000-0000-7000-8000-000000000001');
SELECT inbox.begin_event('catalog', '00000000-0000-7000-8000-000000000001');
SELECT inbox.begin_event('catalog', '00000000-0000-4000-8000-000000000001');
SELECT inbox.was_applied('catalog', '00000000-0000-7000-8000-000000000001'), inbox.was_applied('catalog', '00000000-0000-4000-8000-000000000001'),
       inbox.was_applied('search', '00000000-0000-7000-8000-000000000001');

-- consumers belong to somebody
CREATE ROLE regress_offset LOGIN;
SELECT inbox.grant_consume('regress_offset');
SET SESSION AUTHORIZATION regress_offset;
SELECT inbox.save_offset('catalog', 'videos', 'm', now());
SELECT * FROM inbox.load_offset('catalog', 'videos');
SELECT inbox.confirm_reset('catalog', 'videos', 1);
SELECT inbox.was_applied('catalog', '00000000-0000-7000-8000-000000000001');
SELECT inbox.reset_offset('catalog', 'videos', '2023-06-01', 'mischief');
SELECT inbox.save_offset('mine', 'videos', 'm', '2024-01-01');
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_offset;
DROP ROLE regress_offset;

DROP EXTENSION pg_inbox;
