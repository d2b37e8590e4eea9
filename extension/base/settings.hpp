// The settings (GUCs) of pg_outbox. docs/settings.md is generated from what is registered here.
#pragma once

#include "core/pipeline/pipeline.hpp"

namespace outbox::settings {

enum OnFullLog { OnFullLogWarn, OnFullLogDetach };

// In alphabetical order; units as in the names of the accessors below or in the comments.
extern char* allowed_hosts;        // list; empty: see docs/security.md
extern int backoff_max;            // ms
extern int backoff_min;            // ms
extern int connect_timeout;        // ms
extern int cursor_flush_interval;  // ms
extern char* default_destination;  // URL; empty: none
extern int max_attempts;
extern int max_in_flight;       // events
extern int max_in_flight_size;  // kB
extern int max_log_size;        // MB; 0: no limit
extern int max_payload_size;    // bytes
extern int max_workers;
extern int max_workers_per_database;  // 0: no limit
extern int max_workers_per_role;      // 0: no limit
extern int on_dead_letter;            // release, block
extern int on_full_log;               // an OnFullLog
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
extern int source_event_retention;  // s

// Registers them. Those that shape shared memory exist only in the postmaster's configuration, and
// only when the library is preloaded.
void define(bool preloading);

Pipeline::Limits pipeline_limits();

}  // namespace outbox::settings
