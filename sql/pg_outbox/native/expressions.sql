-- Expressions of destinations: the options filter and payload of a foreign server. They are checked
-- by the statement that sets them, and run as the owner of the server, in a security-restricted
-- operation that only reads (extension/destinations/expressions.hpp).

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
