-- A batch of events that are handled at once: which of them are new.
SET client_min_messages = warning;
CREATE EXTENSION pg_inbox;
CREATE SCHEMA begin_events;
SET search_path = begin_events;

CREATE FUNCTION ids(VARIADIC numbers int[]) RETURNS uuid[] LANGUAGE sql AS $$
    SELECT array_agg(('00000000-0000-7000-8000-' || lpad(n::text, 12, '0'))::uuid ORDER BY place) FROM unnest(numbers) WITH ORDINALITY AS given (n, place) $$;

SELECT inbox.begin_events('b', ids(3, 1, 2));
-- some were applied before, first, in the middle, last
SELECT inbox.begin_events('b', ids(1, 4, 5));
SELECT inbox.begin_events('b', ids(6, 5, 7));
SELECT inbox.begin_events('b', ids(9, 8, 3));
-- all
SELECT inbox.begin_events('b', ids(1, 2, 3));
-- an id that occurs twice is new once
SELECT inbox.begin_events('b', ids(10, 11, 10)), inbox.begin_events('b', ids(12, 1, 12, 1));
-- ids that are not of version 7
SELECT inbox.begin_events('b', ARRAY['00000000-0000-4000-8000-000000000001', '00000000-0000-4000-8000-000000000001']::uuid[]);
-- another consumer, and what is stored
SELECT inbox.begin_events('other', ids(1, 13), 'shop');
SELECT c.name, right(p.event_id::text, 2) AS id, p.source FROM inbox.processed AS p JOIN inbox.consumer AS c ON c.id = p.consumer_id ORDER BY 1, 2, bucket;
\set VERBOSITY terse
-- none, and none that could be stored
SELECT inbox.begin_events('b', '{}'), inbox.begin_events('b', NULL);
SELECT inbox.begin_events('b', ids(14) || NULL::uuid);
-- the caller's transaction decides
BEGIN;
SELECT inbox.begin_events('b', ids(1, 15, 16));
SELECT inbox.begin_events('b', ids(15, 17));
ROLLBACK;
SELECT inbox.begin_events('b', ids(15, 16, 17));

RESET client_min_messages;
DROP FUNCTION ids;
DROP SCHEMA begin_events;
DROP EXTENSION pg_inbox;
