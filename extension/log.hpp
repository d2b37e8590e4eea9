// Where the log is in the current database: the OIDs of its table and sequence.
#pragma once

#include "pg.hpp"

namespace outbox {

// Columns of the log, in the order of sql/pg_outbox/event.sql (zero-based).
enum LogColumn {
    LogPosition,
    LogXid,
    LogOccurredAt,
    LogEventId,
    LogVersion,
    LogSchemaVersion,
    LogSourceEventId,
    LogTopic,
    LogAggregateType,
    LogAggregateId,
    LogEventType,
    LogOrderingKey,
    LogContentType,
    LogHeaders,
    LogPayload,
    LogColumns
};

struct LogRelations {
    Oid segment;    // the table enqueues go to
    Oid positions;  // the sequence of positions
};

// Looked up once per session, and again after the extension was dropped and created.
// Raises an error when the extension is not there.
const LogRelations& log_relations();

// The same, or nullptr.
const LogRelations* find_log_relations();

}  // namespace outbox
