-- What a node of a Citus cluster knows of its shards and positions: see native/citus/. On any other
-- server these tables are empty.

CREATE TABLE outbox.arriving_shard (
    shard      bigint      PRIMARY KEY,
    relation   oid         NOT NULL,
    from_group integer     NOT NULL,
    since      timestamptz NOT NULL DEFAULT clock_timestamp(),
    gone_since timestamptz,
    left_at    pg_snapshot,
    waits_for  name[],
    trouble    text
);
COMMENT ON TABLE outbox.arriving_shard IS 'shards that move to this node of a Citus cluster, until the other node has delivered their events';
COMMENT ON COLUMN outbox.arriving_shard.shard IS 'id of the shard';
COMMENT ON COLUMN outbox.arriving_shard.relation IS 'its table on this node';
COMMENT ON COLUMN outbox.arriving_shard.from_group IS 'group of the node from which it comes';
COMMENT ON COLUMN outbox.arriving_shard.since IS 'when Citus created it here';
COMMENT ON COLUMN outbox.arriving_shard.gone_since IS 'a time at which it had left the other node, by the clock of that node; null before';
COMMENT ON COLUMN outbox.arriving_shard.left_at IS 'snapshot of the other node after the shard had left; null before';
COMMENT ON COLUMN outbox.arriving_shard.waits_for IS 'destinations of the other node that have not settled what is visible in left_at; null while that is not known';
COMMENT ON COLUMN outbox.arriving_shard.trouble IS 'why the other node could not be asked the last time; null if it could';

CREATE TABLE outbox.arriving_key (
    destination name      NOT NULL,
    position    bigint    NOT NULL,
    from_group  integer   NOT NULL,
    through     integer[] NOT NULL,
    PRIMARY KEY (destination, position)
);
COMMENT ON TABLE outbox.arriving_key IS 'rows of outbox.delivery for events in trouble on a node from which a shard has moved; they hold the keys here';
COMMENT ON COLUMN outbox.arriving_key.destination IS 'as in outbox.delivery';
COMMENT ON COLUMN outbox.arriving_key.position IS 'as in outbox.delivery';
COMMENT ON COLUMN outbox.arriving_key.from_group IS 'group of that node';
COMMENT ON COLUMN outbox.arriving_key.through IS 'groups of the nodes that the row has come through: first the one whose event it is, last that node';

CREATE SEQUENCE outbox.position_era AS integer MAXVALUE 8388607;
COMMENT ON SEQUENCE outbox.position_era IS 'eras of positions that were begun in the cluster; the coordinator''s counts';

CREATE TABLE outbox.position_gap (
    after bigint PRIMARY KEY,
    size  bigint NOT NULL
);
COMMENT ON TABLE outbox.position_gap IS 'positions that no event has, because an era began';
COMMENT ON COLUMN outbox.position_gap.after IS 'the last position before the gap';
COMMENT ON COLUMN outbox.position_gap.size IS 'number of positions that were skipped';
