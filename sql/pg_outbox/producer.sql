-- Topics that roles may produce. A role may use the topics of its own rows, and of the rows of
-- roles whose rights it has; without any row it may use none. Rows with the right 'capture' are for
-- its captured tables only. extension/produce/producer.cpp names the columns in this order. Roles
-- are stored as regrole, so a rename changes nothing, and a dump contains their names.

CREATE TABLE outbox.producer (
    role       regrole     NOT NULL,
    topics     text        NOT NULL CHECK (outbox_internal.check_topics(topics)),
    granted_by name        NOT NULL DEFAULT CURRENT_USER,
    granted_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    right_to   text        NOT NULL DEFAULT 'produce' CHECK (right_to IN ('produce', 'capture')),
    follows    boolean     NOT NULL DEFAULT false,
    PRIMARY KEY (role, right_to)
);
COMMENT ON TABLE outbox.producer IS 'topics that roles may produce; see outbox.grant_produce(), outbox.grant_capture()';
COMMENT ON COLUMN outbox.producer.role IS 'the role, for itself and for its members';
COMMENT ON COLUMN outbox.producer.topics IS 'patterns separated by commas, in which * matches any number of characters';
COMMENT ON COLUMN outbox.producer.granted_by IS 'the role that granted it';
COMMENT ON COLUMN outbox.producer.granted_at IS 'when it was granted';
COMMENT ON COLUMN outbox.producer.right_to IS 'produce for outbox.enqueue(), views of the log and captured tables, or capture for captured tables only';
COMMENT ON COLUMN outbox.producer.follows IS 'true for capture without topics, whose topics follow a later outbox.grant_produce()';
