-- The pause between attempts: in its range however many attempts there were.
SET client_min_messages = warning;
CREATE EXTENSION pg_outbox;

CREATE SERVER slow FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', retry_base '24h', retry_max '24h');
CREATE SERVER quick FOREIGN DATA WRAPPER pg_outbox OPTIONS (url 'null:', retry_base '3', retry_max '1min');
SELECT destination, attempts, outbox_internal.retry_delay(destination, attempts) BETWEEN '0' AND longest AS in_range
  FROM (VALUES ('slow', '24 h'::interval), ('quick', '1 min')) AS d (destination, longest),
       unnest(ARRAY[1, 27, 28, 31, 1000000, 2147483647]) AS attempts
 ORDER BY destination, attempts;
SELECT max(outbox_internal.retry_delay('quick', 3)) BETWEEN '6 ms' AND '12 ms' AS doubles FROM generate_series(1, 100);
DROP EXTENSION pg_outbox CASCADE;
