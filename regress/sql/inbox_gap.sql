-- Gaps: events that can no longer be received, and sources that were made again.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
\set SHOW_CONTEXT never

SELECT inbox.save_offset('catalog', 'videos', '3', '2024-01-01', incarnation => '2 first');
SELECT message_id, incarnation FROM inbox.load_offset('catalog', 'videos');
SELECT inbox.save_offset('catalog', 'videos', '4', '2024-01-02', incarnation => NULL);
SELECT message_id, incarnation FROM inbox.offsets;

SELECT inbox.report_gap('catalog', 'videos', '5 messages were deleted', 5);
SELECT inbox.report_gap('catalog', 'videos', '2 messages were deleted', skipped => 2);
-- two processes see the same new incarnation
SELECT inbox.report_gap('catalog', 'videos', 'was made again', recreated => true, incarnation => 'b');
SELECT inbox.report_gap('catalog', 'videos', 'was made again', recreated => true, incarnation => 'b');
SELECT inbox.report_gap('catalog', 'users', 'was made again', recreated => true);
SELECT consumer, subscription, skipped, recreated, incarnation, why, accepted_at FROM inbox.gaps ORDER BY 2;
SELECT severity, object, what, why, what_to_do FROM inbox.health() WHERE what <> 'offset behind' ORDER BY what;
SELECT line FROM regexp_split_to_table(inbox.metrics(), '\n') AS line WHERE line ~ '^inbox_(skipped|recreated)';

SELECT inbox.accept_gap('catalog', 'videos', 'they were sent again');
SELECT inbox.accept_gap('catalog', 'videos', 'they were sent again');
SELECT inbox.accept_gap('catalog', 'nothing', 'why not');
SELECT operation, details, why FROM inbox.operation;
SELECT what FROM inbox.health() WHERE what <> 'offset behind';
-- a new one is shown again, and the counts go on
SELECT inbox.report_gap('catalog', 'videos', 'one was deleted', 1);
SELECT skipped, recreated, why, since = noted_at AS new FROM inbox.gaps WHERE subscription = 'videos';
SELECT inbox.report_gap('catalog', 'videos', 'all were deleted', 9223372036854775807);
SELECT skipped FROM inbox.gaps WHERE subscription = 'videos';

SELECT inbox.report_gap('catalog', 'videos', ' ', 1);
SELECT inbox.report_gap('catalog', 'videos', 'why', -1);
SELECT inbox.report_gap('catalog', 'videos', 'why', NULL);
SELECT inbox.accept_gap('catalog', 'videos', NULL);
SELECT inbox.accept_gap('nobody', 'videos', 'why');

-- consumers belong to somebody
CREATE ROLE regress_gap LOGIN;
SELECT inbox.grant_consume('regress_gap');
SET SESSION AUTHORIZATION regress_gap;
SELECT inbox.report_gap('catalog', 'videos', 'mischief', 1);
SELECT inbox.accept_gap('catalog', 'videos', 'mischief');
SELECT inbox.report_gap('mine', 'videos', 'one was deleted', 1);
RESET SESSION AUTHORIZATION;
DROP OWNED BY regress_gap;
DROP ROLE regress_gap;

DROP EXTENSION pg_inbox;
