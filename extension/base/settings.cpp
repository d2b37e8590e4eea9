#include "extension/base/settings.hpp"

#include <climits>

#include "core/limits.hpp"
#include "core/trace_context.hpp"
#include "extension/base/boundary.hpp"
#include "extension/base/pg.hpp"
#include "extension/base/wakeup.hpp"
#include "sinks/registry.hpp"
#include "sinks/span_exporter.hpp"

namespace outbox::settings {

bool allow_drop_with_undelivered = false;
char* allowed_hosts = nullptr;
int backoff_max = 30'000;
int backoff_min = 100;
int connect_timeout = 10'000;
int cursor_flush_interval = 1'000;
char* default_destination = nullptr;
int expression_timeout = 1'000;
char* identity_file = nullptr;
int max_attempts = 16;
int max_in_flight = 10'000;
int max_in_flight_size = 16 * 1024;
int max_log_size = 10 * 1024;
int max_payload_size = 1024 * 1024;
int max_workers = 64;
int max_workers_per_database = 0;
int max_workers_per_role = 16;
int on_dead_letter = 0;
int on_full_log = OnFullLogWarn;
int on_stale_version = OnStaleVersionWarn;
char* otlp_endpoint = nullptr;
char* otlp_headers_file = nullptr;
int poll_max = 30'000;
int poll_min = 250;
int receipt_retention = 7 * 86'400;
bool receipts = false;
int request_timeout = 30'000;
int retention = 0;
int retry_base = 1'000;
int retry_max = 600'000;
int segment_age = 3'600;
int segment_size = 256 * 1024;
int shared_read_size = 16 * 1024;
int source_event_retention = 30 * 86'400;
int trace_comments = TraceCommentsOn;
char* traceparent = nullptr;
char* tracestate = nullptr;

char* inbox_traceparent = nullptr;
char* inbox_tracestate = nullptr;

static void define_integer(const char* name, const char* description, const char* detail,
                           int* variable, int min, int max, GucContext context, int flags) {
    DefineCustomIntVariable(name, description, detail, variable, *variable, min, max, context,
                            flags, nullptr, nullptr, nullptr);
}

// outbox_internal.destination_option() reads this setting by name.
static const config_enum_entry on_dead_letter_values[] = {
    {"release", 0, false}, {"block", 1, false}, {nullptr, 0, false}};

// Reports the error of a check hook.
static bool accepted(const CoreError& error) {
    if (!error.failed)
        return true;
    GUC_check_errdetail("%s", error.message);
    if (error.hint[0] != '\0')
        GUC_check_errhint("%s", error.hint);
    return false;
}

static bool check_allowed_hosts(char** value, void**, GucSource) {
    const char* list = *value;
    return accepted(call_core([list]() -> std::optional<Error> {
        const Result<HostList> hosts = HostList::parse(list);
        return hosts ? std::nullopt : std::optional(hosts.error());
    }));
}

static const config_enum_entry on_full_log_values[] = {
    {"warn", OnFullLogWarn, false}, {"detach", OnFullLogDetach, false}, {nullptr, 0, false}};

static const config_enum_entry on_stale_version_values[] = {{"warn", OnStaleVersionWarn, false},
                                                            {"error", OnStaleVersionError, false},
                                                            {nullptr, 0, false}};

// Applies the rules of CREATE SERVER when the value is set, so that a wrong value does not wait for
// the relay to start.
static bool check_default_destination(char** value, void**, GucSource) {
    if (**value == '\0')
        return true;
    const char* url = *value;
    return accepted(call_core([url] { return validate_server_options({{"url", url}}); }));
}

// A copy of the data directory would have a file below it as well.
static bool check_identity_file(char** value, void**, GucSource) {
    if (**value == '\0')
        return true;
    char path[MAXPGPATH];
    strlcpy(path, *value, sizeof path);
    canonicalize_path(path);
    if (is_absolute_path(path) && !path_is_prefix_of_path(DataDir, path))
        return true;
    GUC_check_errdetail("The path must be absolute, and not lead into the data directory.");
    return false;
}

static bool check_otlp_endpoint(char** value, void**, GucSource) {
    const char* url = *value;
    return *url == '\0' || accepted(call_core([url] { return check_endpoint(url); }));
}

// Only the SQL edition tells `always` and `on` apart (sql/pg_outbox/plain/trace.sql).
static const config_enum_entry trace_comments_values[] = {{"off", TraceCommentsOff, false},
                                                          {"on", TraceCommentsOn, false},
                                                          {"always", TraceCommentsAlways, false},
                                                          {nullptr, 0, false}};

// The SQL edition reports the same when an event is enqueued (sql/pg_outbox/plain/trace.sql).
static bool check_traceparent(char** value, void**, GucSource) {
    if (**value == '\0' || is_traceparent(*value))
        return true;
    GUC_check_errdetail(
        "A traceparent has a version, a trace id, a parent id and flags, in "
        "lower-case hexadecimal digits (W3C Trace Context).");
    GUC_check_errhint(
        "Write for example '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01', "
        "or an empty string for none.");
    return false;
}

static bool check_tracestate(char** value, void**, GucSource) {
    if (is_tracestate(*value))
        return true;
    GUC_check_errdetail("A tracestate has at most %d printable ASCII characters.",
                        static_cast<int>(max_tracestate_length));
    return false;
}

static void define_text_for_sessions(const char* name, const char* description, const char* detail,
                                     char** variable, int flags, GucStringCheckHook check) {
    DefineCustomStringVariable(name, description, detail, variable, "", PGC_USERSET,
                               GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE | flags, check, nullptr,
                               nullptr);
}

// pg_inbox is plain SQL. inbox_internal.wake() sets this to ask for a wake-up at commit, also in
// databases without pg_outbox. Where this library is not loaded, setting it has no effect.
static char* inbox_wake = nullptr;
static void assign_inbox_wake(const char* value, void*) {
    if (strcmp(value, "messages") == 0)
        wake_at_commit(WakeProcessors);
    else if (strcmp(value, "subscriptions") == 0)
        wake_at_commit(WakeConsumers);
}

// Names what may run with the rights of a role; it is kept per role and database
// (sql/pg_inbox/confirm.sql). It is defined here so that every role may set it for itself. The
// value in a session is not used.
static char* inbox_confirmed = nullptr;

void define(bool preloading) {
    DefineCustomBoolVariable("outbox.allow_drop_with_undelivered",
                             "Whether the extension can be dropped with events that are not "
                             "delivered.",
                             "If so, a warning says how many are lost.",
                             &allow_drop_with_undelivered, allow_drop_with_undelivered, PGC_SUSET,
                             0, nullptr, nullptr, nullptr);
    DefineCustomStringVariable(
        "outbox.allowed_hosts", "Host names, addresses and networks that destinations may use.",
        "If empty, all are allowed, except loopback, link-local and metadata addresses for http. "
        "The entry default stands for these.",
        &allowed_hosts, "", PGC_SIGHUP, GUC_LIST_INPUT, check_allowed_hosts, nullptr, nullptr);
    define_integer("outbox.backoff_max",
                   "Longest pause before the next attempt to reach a failing destination.", nullptr,
                   &backoff_max, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.backoff_min",
                   "First pause after a destination failed. It doubles with each further failure.",
                   "Each pause is random, between zero and this length.", &backoff_min, 1, INT_MAX,
                   PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.connect_timeout", "Longest wait for a connection to a destination.",
                   nullptr, &connect_timeout, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.cursor_flush_interval", "Time between saves of a relay's cursor.",
                   "After a crash, events delivered since the last save are delivered again.",
                   &cursor_flush_interval, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    DefineCustomStringVariable(
        "outbox.default_destination",
        "URL of the destination in databases that have no foreign server for one.",
        "If empty, events remain in the log.", &default_destination, "", PGC_SIGHUP, 0,
        check_default_destination, nullptr, nullptr);
    define_integer("outbox.expression_timeout",
                   "Longest time that the expressions of a destination may take for an event.",
                   "After that the event becomes a dead letter of the destination.",
                   &expression_timeout, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.max_attempts",
                   "Number of attempts after which a refused event becomes a dead letter.",
                   "Attempts that fail because of the destination do not count.", &max_attempts, 1,
                   1'000'000, PGC_SIGHUP, 0);
    define_integer("outbox.max_in_flight",
                   "Highest number of events of one destination that are read and not yet "
                   "settled.",
                   nullptr, &max_in_flight, 1, 1'000'000, PGC_SIGHUP, 0);
    define_integer("outbox.max_in_flight_size",
                   "Limit of memory for events of one destination that are read and not yet "
                   "settled.",
                   "A single event larger than this is delivered alone.", &max_in_flight_size, 1024,
                   1024 * 1024, PGC_SIGHUP, GUC_UNIT_KB);
    define_integer("outbox.max_log_size",
                   "Size of the log above which a warning is written to the server log.",
                   "0 turns the warning off.", &max_log_size, 0, INT_MAX, PGC_SIGHUP, GUC_UNIT_MB);
    define_integer("outbox.max_payload_size", "Size of the largest payload that can be enqueued.",
                   nullptr, &max_payload_size, min_payload_limit, 512 * 1024 * 1024, PGC_SUSET,
                   GUC_UNIT_BYTE);
    define_integer("outbox.max_workers_per_database",
                   "Highest number of relays, processors and backfills in one database.",
                   "0: no limit.", &max_workers_per_database, 0, 1024, PGC_SIGHUP, 0);
    define_integer("outbox.max_workers_per_role",
                   "Highest number of relays, processors, backfills and keepers of one role in "
                   "all databases. Others wait until one of them ends.",
                   "Never more than half of max_worker_processes, and half of that for "
                   "backfills and for keepers. Superusers have no limit. 0 means no limit.",
                   &max_workers_per_role, 0, 1024, PGC_SIGHUP, 0);
    DefineCustomEnumVariable("outbox.on_dead_letter",
                             "What happens to later events of the ordering key of a dead letter.",
                             "release delivers them; block keeps them until an operator decides.",
                             &on_dead_letter, on_dead_letter, on_dead_letter_values, PGC_SIGHUP, 0,
                             nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "outbox.on_full_log", "What happens when the log outgrows outbox.max_log_size.",
        "warn writes a warning to the server log; detach also pauses a destination whose own "
        "events "
        "hold much of the log, and that destination loses them.",
        &on_full_log, on_full_log, on_full_log_values, PGC_SIGHUP, 0, nullptr, nullptr, nullptr);
    DefineCustomEnumVariable(
        "outbox.on_stale_version",
        "What happens when a change of a captured row does not raise its version.",
        "warn writes one warning a statement; error refuses the change.", &on_stale_version,
        on_stale_version, on_stale_version_values, PGC_SUSET, 0, nullptr, nullptr, nullptr);
    DefineCustomStringVariable(
        "outbox.otlp_endpoint",
        "URL to which relays send spans of events with a sampled trace, as OTLP/HTTP.",
        "If empty, no spans are sent.", &otlp_endpoint, "", PGC_SIGHUP, 0, check_otlp_endpoint,
        nullptr, nullptr);
    DefineCustomStringVariable(
        "outbox.otlp_headers_file",
        "File with headers of requests with spans, a line \"name: value\" each.",
        "A path below the data directory may be relative.", &otlp_headers_file, "", PGC_SIGHUP, 0,
        nullptr, nullptr, nullptr);
    define_integer("outbox.poll_max",
                   "Longest pause between two polls of the log by an idle relay.",
                   "Commits wake relays. Polling covers prepared transactions and crashes.",
                   &poll_max, 10, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.poll_min",
                   "First pause of a relay that found nothing. It doubles each time.",
                   "Each pause is random, between zero and this length.", &poll_min, 10, INT_MAX,
                   PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.receipt_retention", "Shortest time that receipts are kept.",
                   "They are kept for at most twice this time.", &receipt_retention, 1, INT_MAX,
                   PGC_SIGHUP, GUC_UNIT_S);
    DefineCustomBoolVariable("outbox.receipts",
                             "Whether destinations keep a receipt of each event they confirmed.",
                             "This costs a row per event.", &receipts, receipts, PGC_SIGHUP, 0,
                             nullptr, nullptr, nullptr);
    define_integer("outbox.request_timeout", "Longest wait for the answer to a request.", nullptr,
                   &request_timeout, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.retention", "Shortest time that a segment of the log is kept.",
                   "The time starts when enqueues move on to the next segment.", &retention, 0,
                   INT_MAX, PGC_SIGHUP, GUC_UNIT_S);
    define_integer("outbox.retry_base",
                   "First pause before the next attempt of a refused event. It doubles with each "
                   "attempt.",
                   "Each pause is random, between zero and this length.", &retry_base, 1, INT_MAX,
                   PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.retry_max", "Longest pause before the next attempt of a refused event.",
                   nullptr, &retry_max, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_MS);
    define_integer("outbox.segment_age", "Age at which enqueues move on to the next segment.",
                   nullptr, &segment_age, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_S);
    define_integer("outbox.segment_size", "Size at which enqueues move on to the next segment.",
                   "Settled events keep their space in the log until then.", &segment_size, 64,
                   INT_MAX, PGC_SIGHUP, GUC_UNIT_KB);
    define_integer("outbox.source_event_retention",
                   "Time for which pg_outbox remembers the events enqueued for a source event.",
                   "A source event that is handled again after this time enqueues its events "
                   "again.",
                   &source_event_retention, 1, INT_MAX, PGC_SIGHUP, GUC_UNIT_S);
    DefineCustomEnumVariable(
        "outbox.trace_comments",
        "Whether the trace context of an event is taken from a comment of the client's statement.",
        "This is done if outbox.traceparent is empty. The comment has the form of sqlcommenter. "
        "The SQL edition reads comments only if the value is always.",
        &trace_comments, trace_comments, trace_comments_values, PGC_USERSET, 0, nullptr, nullptr,
        nullptr);
    define_text_for_sessions("outbox.traceparent", "Header traceparent of events enqueued.",
                             "Set it with SET LOCAL in the transaction (W3C Trace Context).",
                             &traceparent, 0, check_traceparent);
    define_text_for_sessions("outbox.tracestate", "Header tracestate of events enqueued.",
                             "It is used together with outbox.traceparent.", &tracestate, 0,
                             check_tracestate);
    define_text_for_sessions("inbox.traceparent", "traceparent of the event that is handled.",
                             nullptr, &inbox_traceparent, GUC_NO_SHOW_ALL, nullptr);
    define_text_for_sessions("inbox.tracestate", "tracestate of the event that is handled.",
                             nullptr, &inbox_tracestate, GUC_NO_SHOW_ALL, nullptr);
    DefineCustomStringVariable("inbox.wake", "Set by pg_inbox to wake its workers at commit.",
                               nullptr, &inbox_wake, "", PGC_USERSET,
                               GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, nullptr,
                               assign_inbox_wake, nullptr);
    DefineCustomStringVariable("inbox.confirmed",
                               "Handlers that may run with the rights of this role; see "
                               "inbox.confirm().",
                               nullptr, &inbox_confirmed, "", PGC_USERSET,
                               GUC_NO_SHOW_ALL | GUC_NOT_IN_SAMPLE | GUC_DISALLOW_IN_FILE, nullptr,
                               nullptr, nullptr);
    if (preloading) {
        DefineCustomStringVariable(
            "outbox.identity_file",
            "File outside the data directory with the identity of this installation.",
            "A copy of the data that starts where this file is missing or has other contents "
            "delivers nothing before outbox.claim_identity().",
            &identity_file, "", PGC_POSTMASTER, 0, check_identity_file, nullptr, nullptr);
        define_integer("outbox.max_workers",
                       "Highest number of keepers, relays, processors and backfills in all "
                       "databases.",
                       "Each of them also needs one of max_worker_processes. With 0, nothing is "
                       "delivered and no handler runs in the server.",
                       &max_workers, 0, 1024, PGC_POSTMASTER, 0);
        define_integer("outbox.shared_read_size",
                       "Shared memory for events that one relay has read and others of its "
                       "database need.",
                       "With 0, each relay reads the log by itself.", &shared_read_size, 0,
                       1024 * 1024, PGC_POSTMASTER, GUC_UNIT_KB);
    }
    MarkGUCPrefixReserved("outbox");
}

Tracing tracing() {
    return {.endpoint = otlp_endpoint, .headers_file = otlp_headers_file};
}

Pipeline::Limits pipeline_limits() {
    return {.max_events = static_cast<std::size_t>(max_in_flight),
            .max_bytes = static_cast<std::size_t>(max_in_flight_size) * 1024,
            .backoff_base = milliseconds(backoff_min),
            .backoff_cap = milliseconds(backoff_max)};
}

}  // namespace outbox::settings
