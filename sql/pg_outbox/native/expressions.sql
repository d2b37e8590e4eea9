-- Expressions of destinations: the options filter and payload of a foreign server. They are checked
-- by the statement that sets them, and run as its owner, in a sandbox that only reads
-- (extension/base/sandbox.hpp, extension/destinations/expression_role.hpp).

-- The owner of a destination when an expression was set. Rows are not dumped, because a restore sets the
-- options.
CREATE TABLE outbox.expression (
    destination name NOT NULL,
    option      text NOT NULL,
    owner       oid  NOT NULL,
    PRIMARY KEY (destination, option)
);
COMMENT ON TABLE outbox.expression IS 'owners of expressions of destinations; after a change of owner these wait';
COMMENT ON COLUMN outbox.expression.destination IS 'the destination';
COMMENT ON COLUMN outbox.expression.option IS 'filter or payload';
COMMENT ON COLUMN outbox.expression.owner IS 'the role that owned the destination when the option was set';

-- Checks an expression that a statement sets, and notes whose it is.
CREATE FUNCTION outbox_internal.note_expressions()
RETURNS event_trigger
LANGUAGE c SECURITY DEFINER
SET search_path = pg_catalog, pg_temp
AS 'MODULE_PATHNAME', 'outbox_note_expressions';

CREATE EVENT TRIGGER outbox_note_expressions ON ddl_command_end WHEN tag IN ('CREATE SERVER', 'ALTER SERVER')
    EXECUTE FUNCTION outbox_internal.note_expressions();
ALTER EVENT TRIGGER outbox_note_expressions ENABLE ALWAYS;
COMMENT ON EVENT TRIGGER outbox_note_expressions IS 'checks expressions of destinations, and notes whose they are';

-- Returns those of the events that the filter selects, in their order, with what the option payload
-- makes of them. An event with a `fault` cannot be sent: that is the error of an expression. An error
-- that concerns all events, such as a function that is gone, is raised.
CREATE FUNCTION outbox_internal.apply_expressions(destination name, events outbox.event[], OUT event outbox.event, OUT fault text)
RETURNS SETOF record
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_apply_expressions';

-- Returns why the expressions of a destination cannot be evaluated; NULL if they can.
CREATE FUNCTION outbox_internal.expression_trouble(destination name)
RETURNS text
LANGUAGE c VOLATILE STRICT
AS 'MODULE_PATHNAME', 'outbox_expression_trouble';

-- Returns whether expressions of a destination may run in a session of this role.
CREATE FUNCTION outbox_internal.may_evaluate(destination name, role name)
RETURNS boolean
LANGUAGE c STABLE STRICT
AS 'MODULE_PATHNAME', 'outbox_may_evaluate';
