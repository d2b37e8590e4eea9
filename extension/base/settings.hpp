// Settings (GUCs) of pg_outbox. docs/settings.md is generated from the definitions in settings.cpp.
#pragma once

#include "core/pipeline/pipeline.hpp"
#include "telemetry/tracing.hpp"

namespace outbox::settings {

enum OnFullLog { OnFullLogWarn, OnFullLogDetach };
enum OnStaleVersion { OnStaleVersionWarn, OnStaleVersionError };
enum TraceComments { TraceCommentsOff, TraceCommentsOn, TraceCommentsAlways };

// In alphabetical order. Units are in the comments.
extern bool allow_drop_with_undelivered;
extern char* allowed_hosts;        // list; see docs/security.md for what an empty one allows
extern int backoff_max;            // ms
extern int backoff_min;            // ms
extern int connect_timeout;        // ms
extern int cursor_flush_interval;  // ms
extern char* default_destination;  // URL; empty if none
extern int expression_timeout;
extern char* identity_file;  // empty if none
extern int max_attempts;
extern int max_in_flight;       // events
extern int max_in_flight_size;  // kB
extern int max_log_size;        // MB; 0 for no limit
extern int max_payload_size;    // bytes
extern int max_workers;
extern int max_workers_per_database;  // 0 for no limit
extern int max_workers_per_role;      // 0 for no limit
extern int on_dead_letter;            // release, block
extern int on_full_log;               // an OnFullLog
extern int on_stale_version;          // an OnStaleVersion
extern char* otlp_endpoint;           // URL; empty if none
extern char* otlp_headers_file;       // empty if none
extern int poll_max;                  // ms
extern int poll_min;                  // ms
extern bool receipts;
extern int receipt_retention;       // s
extern int request_timeout;         // ms
extern int retention;               // s
extern int retry_base;              // ms
extern int retry_max;               // ms
extern int segment_age;             // s
extern int segment_size;            // kB
extern int shared_read_size;        // kB; 0 for none
extern int source_event_retention;  // s
extern int trace_comments;          // a TraceComments
extern char* traceparent;           // valid or empty, and so is tracestate
extern char* tracestate;

extern char* inbox_traceparent;  // any text, and so is inbox_tracestate
extern char* inbox_tracestate;

// Registers the settings. Those that shape shared memory can only be set at server start, and exist
// only when the library is preloaded.
void define(bool preloading);

Pipeline::Limits pipeline_limits();
Tracing tracing();

}  // namespace outbox::settings
