// A destination: the values that all destinations have, and the options that its sink reads.
//
// The same code validates an option when the statement that sets it runs, and reads it when the
// relay starts, so that the two cannot disagree. See lib/sinks/registry.hpp.
#pragma once

#include <string>
#include <string_view>

#include "core/allowed_hosts.hpp"
#include "core/clock.hpp"
#include "core/option.hpp"
#include "core/sink_declaration.hpp"
#include "core/topic_filter.hpp"
#include "core/url.hpp"

namespace outbox {

inline constexpr std::string_view owner_is_no_superuser =
    "the owner of the destination is not a superuser";

// Defaults of options: settings of the server process.
struct DestinationDefaults {
    Micros connect_timeout = seconds(10);
    Micros request_timeout = seconds(30);
    bool receipts = false;
    // Used if the URL names neither a role nor a host: the role to connect as, and the address at
    // which this server listens.
    std::string user;
    std::string local_host;
    std::string local_port;
    std::string allowed_hosts;

    bool operator==(const DestinationDefaults&) const = default;
};

// The parsed options of a server and its user mapping. It is handed to the module of the sink.
struct Destination {
    std::string name;
    std::string source;  // the database events come from
    // Relays only: names the destination among those of all clusters, and never changes.
    std::string identity;
    const SinkDeclaration* sink = nullptr;  // of pg_outbox.so; a module has its own
    Url url;
    std::string url_text;
    TopicFilter topics;
    bool receipts = false;
    AllowedHosts allowed_hosts;
    OptionValues options;  // of server and user mapping; never shown and never logged
    DestinationDefaults defaults;
    // If not empty, the destination must have credentials of its own, so that its owner cannot
    // borrow those of this process (as in postgres_fdw). The text says why.
    std::string needs_credentials_because;
};

struct TimeLimits {
    Micros connect = 0;
    Micros request = 0;
};
TimeLimits time_limits(const Destination& destination);

// -------------------------------------------------------------------------------------------------
// Declarations
// -------------------------------------------------------------------------------------------------

// Options of every destination. Those without a member in Destination are read in SQL, by
// outbox_internal.destination_option().
inline constexpr OptionSpec url_option{.name = "url",
                                       .type = OptionType::url,
                                       .default_value = "",
                                       .description = "URL of the destination; required"};
inline constexpr OptionSpec topics_option{
    .name = "topics",
    .type = OptionType::topics,
    .range = "patterns, separated by commas",
    .default_value = "*",
    .description = "topics that the destination takes; * stands for any run of characters"};
inline constexpr OptionSpec filter_option{
    .name = "filter",
    .type = OptionType::expression,
    .range = "a boolean expression of SQL",
    .description = "of the events of these topics, those that the destination takes"};
inline constexpr OptionSpec payload_option{
    .name = "payload",
    .type = OptionType::expression,
    .range = "an expression of SQL: jsonb, json, text or bytea",
    .description = "payload that the destination gets in place of that of the event"};
inline constexpr OptionSpec start_option{
    .name = "start",
    .type = OptionType::choice,
    .choices = {"beginning", "end"},
    .default_value = "beginning",
    .description =
        "first events of a new destination: all in the log, or those that commit after CREATE "
        "SERVER"};
inline constexpr OptionSpec max_attempts_option{
    .name = "max_attempts",
    .type = OptionType::number,
    .max = 1'000'000,
    .unit = "attempts",
    .default_value = "outbox.max_attempts",
    .description = "failed attempts after which an event becomes a dead letter"};
inline constexpr OptionSpec retry_base_option{
    .name = "retry_base",
    .type = OptionType::duration,
    .default_value = "outbox.retry_base",
    .description =
        "pause before the second attempt to deliver an event; it doubles with each attempt"};
inline constexpr OptionSpec retry_max_option{.name = "retry_max",
                                             .type = OptionType::duration,
                                             .default_value = "outbox.retry_max",
                                             .description = "longest pause between two attempts"};
inline constexpr OptionSpec on_dead_letter_option{
    .name = "on_dead_letter",
    .type = OptionType::choice,
    .choices = {"release", "block"},
    .default_value = "outbox.on_dead_letter",
    .description =
        "whether later events of the ordering key of a dead letter are sent, or wait for an "
        "operator"};
inline constexpr OptionSpec receipts_option{
    .name = "receipts",
    .type = OptionType::toggle,
    .default_value = "outbox.receipts",
    .description =
        "whether a receipt of each confirmed event is kept, at the cost of a row per event"};
inline constexpr OptionSpec relay_option{
    .name = "relay",
    .type = OptionType::choice,
    .choices = {"internal", "external"},
    .default_value = "internal",
    .description =
        "whether a worker of the server delivers its events, or the program outbox-relay"};
inline constexpr std::array common_options{
    url_option,        topics_option,    filter_option,
    payload_option,    start_option,     max_attempts_option,
    retry_base_option, retry_max_option, on_dead_letter_option,
    receipts_option,   relay_option};

// True if an expression is evaluated for each event.
inline bool has_expressions(const OptionValues& options) noexcept {
    return options.has(filter_option) || options.has(payload_option);
}

// Options of destinations that the server connects to.
inline constexpr OptionSpec connect_timeout_option{.name = "connect_timeout",
                                                   .type = OptionType::duration,
                                                   .default_value = "outbox.connect_timeout",
                                                   .description = "longest wait for a connection"};
inline constexpr OptionSpec request_timeout_option{.name = "request_timeout",
                                                   .type = OptionType::duration,
                                                   .default_value = "outbox.request_timeout",
                                                   .description = "longest wait for an answer"};

// Each sink has a default and a description of its own.
constexpr OptionSpec batch_size_option(std::string_view default_value,
                                       std::string_view description) {
    return {.name = "batch_size",
            .type = OptionType::number,
            .max = 10'000,
            .unit = "events",
            .default_value = default_value,
            .description = description};
}

}  // namespace outbox
