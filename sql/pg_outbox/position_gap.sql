-- Positions that were skipped and belong to no event. Only nodes of a Citus cluster skip some: see
-- native/citus/era.sql.
CREATE TABLE outbox.position_gap (
    after bigint PRIMARY KEY,
    size  bigint NOT NULL
);
COMMENT ON TABLE outbox.position_gap IS 'positions that were skipped';
COMMENT ON COLUMN outbox.position_gap.after IS 'the last position before the gap';
COMMENT ON COLUMN outbox.position_gap.size IS 'number of positions that were skipped';

-- Returns how many positions were given from one, exclusive, to another. It has no SET clause, so that
-- it is inlined.
CREATE FUNCTION outbox_internal.positions_between(after bigint, upto bigint)
RETURNS bigint
LANGUAGE sql STABLE
BEGIN ATOMIC
    SELECT greatest(upto - after - coalesce((SELECT sum(g.size)::bigint FROM outbox.position_gap AS g
                                              WHERE g.after >= positions_between.after AND g.after < upto), 0), 0);
END;
COMMENT ON FUNCTION outbox_internal.positions_between(bigint, bigint) IS 'number of positions between two, without gaps';
