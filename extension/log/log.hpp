// Where the log is in the current database.
//
// The log is a ring of segments: tables of one form, children of outbox.event. Enqueues go to the
// current one; the keeper moves them on to the next and empties those that every destination is
// done with (bgworker/keeper/segments.cpp). Readers read all of them. An enqueue that does not know
// yet that the ring has turned puts its event into the segment it knows, which is as good.
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
    int current;    // which of them enqueues go to
    Oid ring;       // the table that says so
    Oid positions;  // the sequence of positions
};

// Looked up once per session, and again after the ring turned or the extension was created anew.
// Raises an error when the extension is not there, or of a version that does not fit.
const LogRelations& log_relations();

// The same, or nullptr.
const LogRelations* find_log_relations();

// Raises an error if somebody has given the segment, which is locked, other columns than the log
// has. Dropped ones do not matter.
void check_segment(int number, Relation segment);

// The same for rows that begin with the columns of the log.
void check_event_columns(const char* name, TupleDesc form);

// Of a segment that was opened in this session; looks nothing up. nullptr: it is not a segment.
const char* segment_name(Oid segment);

// The index that each segment comes with, on (xid, position).
bool is_order_index(Relation index);

// A segment, to be read; nullptr: the log is gone.
Relation try_open_segment(int number);

}  // namespace outbox
