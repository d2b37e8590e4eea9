// Finds the log in the current database.
//
// The log is a ring of segments: tables of one form, children of outbox.event. Enqueues go to the
// current segment. The keeper moves them on to the next, and empties segments that every
// destination is done with (bgworker/keeper/segments.cpp). Readers read all segments. A session
// that has not noticed the move yet writes into the segment it knows; no event is lost by that.
#pragma once

#include "extension/base/pg.hpp"

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
    LogOnlyTo,
    LogColumns
};

// Columns of outbox.ring (zero-based).
enum RingColumn { RingNumber, RingCurrent, RingSince };

constexpr int segment_count = 4;

struct LogRelations {
    Oid segments[segment_count];
    int current;    // index of the segment that enqueues go to
    Oid ring;       // the table outbox.ring
    Oid positions;  // the sequence of positions
};

// Looked up once per session, and again after the ring turned or the extension was created again.
// Raises an error if the extension is missing or of a version that does not fit.
const LogRelations& log_relations();

// Does the same, but returns nullptr if the extension is missing, or is just being dropped.
const LogRelations* find_log_relations();

// Raises an error if the segment, which must be locked, does not have the columns of the log.
// Dropped columns are ignored.
void check_segment(int number, Relation segment);

// Does the same for rows that begin with the columns of the log.
void check_event_columns(const char* name, TupleDesc form);

// Returns the name of a segment that was opened in this session; nullptr if it is not a segment.
// Looks nothing up.
const char* segment_name(Oid segment);

// Returns whether it is the index on (xid, position) that each segment comes with.
bool is_order_index(Relation index);

// Opens a segment for reading; nullptr if the log is gone.
Relation try_open_segment(int number);

}  // namespace outbox
