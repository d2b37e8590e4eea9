// A destination: what all of them have in common, and the options that its sink reads.
//
// The same code validates an option when the statement that sets it runs, and reads it when the
// relay starts, so that the two cannot disagree: lib/sinks/registry.hpp.
#pragma once

#include <string>

#include "core/allowed_hosts.hpp"
#include "core/clock.hpp"
#include "core/option.hpp"
#include "core/sink_declaration.hpp"
#include "core/topic_filter.hpp"
#include "core/url.hpp"

namespace outbox {

// Fallbacks of options: the settings of the server process.
struct DestinationDefaults {
    Micros connect_timeout = seconds(10);
    Micros request_timeout = seconds(30);
    bool receipts = false;
    // For a URL that names neither a role nor a host: the role to connect as, and where this server
    // listens.
    std::string user;
    std::string local_host;
    std::string local_port;
    std::string allowed_hosts;

    bool operator==(const DestinationDefaults&) const = default;
};

// Crosses the border to the module of a sink.
struct Destination {
    std::string name;
    std::string source;                     // the database events come from
    const SinkDeclaration* sink = nullptr;  // for pg_outbox.so; a module has its own
    Url url;
    std::string url_text;
    TopicFilter topics;
    bool receipts = false;
    AllowedHosts allowed_hosts;
    OptionValues options;  // of server and user mapping. They are never shown and never logged.
    DestinationDefaults defaults;
    // The owner of the server is not a superuser. The destination must be shown credentials of the
    // user mapping, so that nobody borrows the identity of the server process (as in postgres_fdw).
    bool password_required = false;
};

struct TimeLimits {
    Micros connect = 0;
    Micros request = 0;
};
TimeLimits time_limits(const Destination& destination);

// -------------------------------------------------------------------------------------------------
// Declarations
// -------------------------------------------------------------------------------------------------

// The options of every destination. Those that are not members of Destination are read in SQL, by
// outbox_internal.destination_option().
inline constexpr OptionSpec url_option{.name = "url",
                                       .type = OptionType::url,
                                       .default_value = "",
                                       .description = "where events go; required"};
inline constexpr OptionSpec topics_option{
    .name = "topics",
    .type = OptionType::topics,
    .range = "patterns, separated by commas",
    .default_value = "*",
    .description = "topics that the destination takes; * stands for any run of characters"};
inline constexpr OptionSpec start_option{
    .name = "start",
    .type = OptionType::choice,
    .choices = {"beginning", "end"},
    .default_value = "beginning",
    .description =
        "what a new destination gets: all events in the log, or those that commit after "
        "CREATE SERVER"};
inline constexpr OptionSpec max_attempts_option{
    .name = "max_attempts",
    .type = OptionType::number,
    .max = 1'000'000,
    .unit = "attempts",
    .default_value = "outbox.max_attempts",
    .description = "attempts after which an event that is refused becomes a dead letter"};
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
        "what a dead letter does to later events of its ordering key: they go, or wait for "
        "an operator"};
inline constexpr OptionSpec receipts_option{
    .name = "receipts",
    .type = OptionType::toggle,
    .default_value = "outbox.receipts",
    .description =
        "whether a receipt of each confirmed event is kept, which costs a row per event"};
inline constexpr std::array common_options{
    url_option,        topics_option,    start_option,          max_attempts_option,
    retry_base_option, retry_max_option, on_dead_letter_option, receipts_option};

// The options of destinations that the server connects to.
inline constexpr OptionSpec connect_timeout_option{.name = "connect_timeout",
                                                   .type = OptionType::duration,
                                                   .default_value = "outbox.connect_timeout",
                                                   .description = "longest wait for a connection"};
inline constexpr OptionSpec request_timeout_option{.name = "request_timeout",
                                                   .type = OptionType::duration,
                                                   .default_value = "outbox.request_timeout",
                                                   .description = "longest wait for an answer"};

// Each sink has its own default, and its own word for what a batch is.
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
