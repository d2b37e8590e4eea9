#include "relay/configure/settings.hpp"

#include <algorithm>
#include <numeric>
#include <regex>

#include "core/allowed_hosts.hpp"
#include "core/text.hpp"
#include "sinks/span_exporter.hpp"

namespace outbox::relay {

namespace {

// -------------------------------------------------------------------------------------------------
// Checks
// -------------------------------------------------------------------------------------------------

constexpr Micros shortest_lease = seconds(2);
constexpr Micros max_lease = seconds(600);
constexpr std::size_t max_name = 63;

std::optional<Error> check_lease(const OptionSpec& spec, std::string_view value) {
    const Result<Micros> lease = parse_duration(value);
    if (lease && lease.value() >= shortest_lease && lease.value() <= max_lease)
        return std::nullopt;
    return invalid_option_value(spec.name, "Write a duration from 2s to 10min.");
}

std::optional<Error> check_memory(const OptionSpec& spec, std::string_view value) {
    if (parse_memory(value))
        return std::nullopt;
    return invalid_option_value(spec.name,
                                "Write a number of bytes with a unit, from 16MB to 64GB; units are "
                                "kB, MB and GB.");
}

std::optional<Error> check_short_name(const OptionSpec& spec, std::string_view value) {
    if (!value.empty() && value.size() <= max_name && printable(value) == value)
        return std::nullopt;
    return invalid_option_value(spec.name,
                                "Write at most 63 bytes of UTF-8 without control characters.");
}

std::optional<Error> check_listen(const OptionSpec& spec, std::string_view value) {
    const Result<ListenAddress> address = parse_listen_address(value);
    if (address)
        return std::nullopt;
    return invalid_option_value(spec.name, address.error().hint);
}

std::optional<Error> check_otlp_endpoint(const OptionSpec& spec, std::string_view value) {
    const std::optional<Error> error = value.empty() ? std::nullopt : check_endpoint(value);
    return error ? std::optional(invalid_option_value(spec.name, error->hint)) : std::nullopt;
}

std::optional<Error> check_hosts(const OptionSpec& spec, std::string_view value) {
    const Result<HostList> hosts = HostList::parse(value);
    if (hosts)
        return std::nullopt;
    Error error = invalid_option_value(spec.name, hosts.error().hint);
    error.detail = hosts.error().message + '.';
    return error;
}

std::optional<Error> check_patterns(const OptionSpec& spec, std::string_view value) {
    OptionSpec topics = spec;
    topics.check = nullptr;
    if (!check_value(topics, value))
        return std::nullopt;
    return invalid_option_value(spec.name, "Write names or patterns, separated by commas.");
}

// -------------------------------------------------------------------------------------------------
// Declarations
// -------------------------------------------------------------------------------------------------

constexpr std::array of_process{
    Setting{{.name = "name",
             .range = "text of at most 63 bytes",
             .default_value = "host name and process id",
             .description = "Name of this process in `outbox.relay` and in logs.",
             .check = check_short_name}},
    Setting{{.name = "lease",
             .type = OptionType::duration,
             .range = "2s … 10min",
             .default_value = "15s",
             .description = "Time after which another process takes over the destinations of one "
                            "that hangs or is cut off.",
             .check = check_lease}},
    Setting{{.name = "shutdown_timeout",
             .type = OptionType::duration,
             .default_value = "8s",
             .description = "Longest time to finish what is in flight after SIGTERM."}},
    Setting{{.name = "memory",
             .range = "16MB … 64GB",
             .default_value = "48MB",
             .description =
                 "[Memory](#memory) for events that are read and not yet settled, of all "
                 "destinations together.",
             .check = check_memory}},
    Setting{{.name = "listen",
             .range = "`host:port`",
             .default_value = "",
             .description = "Address of the HTTP server. If empty, there is none.",
             .check = check_listen}},
    Setting{{.name = "otlp_endpoint",
             .range = "URL",
             .default_value = "",
             .description =
                 "Where [spans](tracing.md#spans) are sent, as OTLP/HTTP. If empty, none "
                 "are.",
             .check = check_otlp_endpoint}},
    Setting{
        {.name = "otlp_headers_file",
         .range = "path",
         .default_value = "",
         .description = "File with headers of requests with spans, a line `name: value` each."}},
    Setting{{.name = "log_format",
             .type = OptionType::choice,
             .choices = {"text", "json"},
             .default_value = "text",
             .description = "Form of log lines."}},
    Setting{{.name = "log_level",
             .type = OptionType::choice,
             .choices = {"error", "warning", "info", "debug"},
             .default_value = "info",
             .description = "Least important messages that are logged."}},
};

constexpr std::array of_database{
    Setting{{.name = "url",
             .range = "connection string or URI",
             .default_value = "",
             .description =
                 "The database; required. Missing parts come from a service that it names "
                 "and from the environment, as for `psql`: `PGHOST`, `PGPASSFILE`, …",
             .secret = true}},
    Setting{{.name = "password",
             .default_value = "",
             .description = "Password of the role.",
             .secret = true},
            false},
    Setting{{.name = "destinations",
             .type = OptionType::topics,
             .range = "patterns",
             .default_value = "`*`",
             .description =
                 "Names of destinations that this process may serve; `*` stands for any run of "
                 "characters.",
             .check = check_patterns}},
    Setting{{.name = "session",
             .type = OptionType::choice,
             .choices = {"auto", "direct", "pooled"},
             .default_value = "auto",
             .description = "Whether connections are direct or go through a pooler. `auto` finds "
                            "out."}},
    Setting{{.name = "connections",
             .type = OptionType::number,
             .max = 64,
             .unit = "connections",
             .default_value = "2",
             .description = "Most connections for destinations, besides one for leases."}},
    Setting{{.name = "poll_min",
             .type = OptionType::duration,
             .default_value = "50ms through a pooler, 1ms direct",
             .description = "First pause after a look that found nothing; it doubles."}},
    Setting{{.name = "poll_max",
             .type = OptionType::duration,
             .default_value = "1s through a pooler, 25ms direct",
             .description =
                 "Longest pause between two looks. Without a pooler, the process soon waits "
                 "for a notification instead."}},
    Setting{{.name = "allowed_hosts",
             .range = "hosts, addresses, networks",
             .default_value = "those of the database; see [trust](#trust)",
             .description = "Hosts that destinations may use. The database's own setting, "
                            "`outbox.allowed_hosts`, can only narrow it.",
             .check = check_hosts}},
    Setting{{.name = "identity",
             .range = "text of at most 63 bytes",
             .default_value = "that of the server",
             .description =
                 "The installation that this database belongs to. A copy of a database that "
                 "relays with another identity have served is not served; see "
                 "[copies](operations.md#copies).",
             .check = check_short_name}},
    Setting{{.name = "trusted",
             .type = OptionType::toggle,
             .default_value = "off",
             .description = "Whether the owner of the database may use the files and the identity "
                            "of this machine; see [trust](#trust)."}},
};

// -------------------------------------------------------------------------------------------------
// Names
// -------------------------------------------------------------------------------------------------

// The name of a setting of a database outside of its section.
std::string full_name(std::string_view setting, bool of_database) {
    const bool needs_more = of_database && (setting == "url" || setting == "password");
    return (needs_more ? "database_" : "") + std::string(setting);
}

// Number of insertions, removals and replacements that make `b` of `a`.
std::size_t distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 0; i < a.size(); i++) {
        std::size_t diagonal = std::exchange(row[0], i + 1);
        for (std::size_t j = 0; j < b.size(); j++) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

constexpr std::size_t max_compared = 64;

std::string row_of(const Setting& setting, bool of_database) {
    const OptionSpec& spec = setting.spec;
    std::string range(spec.range);
    if (range.empty() && spec.type == OptionType::duration)
        range = "duration";
    if (range.empty() && spec.type == OptionType::number)
        range = "1 … " + std::to_string(spec.max);
    for (std::string_view choice : spec.choices)
        if (!choice.empty())
            range += (range.empty() ? "`" : ", `") + std::string(choice) + '`';
    const std::string flag =
        setting.has_flag ? '`' + flag_of(spec.name, of_database) + '`' : std::string();
    return "| `" + std::string(spec.name) + "` | " + flag + " | `" +
           variable_of(spec.name, of_database) + "` | " + std::string(spec.default_value) + " | " +
           range + " | " + std::string(spec.description) + " |\n";
}

}  // namespace

std::span<const Setting> process_settings() noexcept {
    return of_process;
}

std::span<const Setting> database_settings() noexcept {
    return of_database;
}

std::string flag_of(std::string_view setting, bool of_database) {
    std::string flag = "--" + full_name(setting, of_database);
    std::replace(flag.begin(), flag.end(), '_', '-');
    return flag;
}

std::string variable_of(std::string_view setting, bool of_database) {
    std::string variable = "OUTBOX_" + full_name(setting, of_database);
    for (char& c : variable)
        if (c >= 'a' && c <= 'z')
            c = static_cast<char>(c - ('a' - 'A'));
    return variable;
}

std::string plain_text(std::string_view markdown) {
    static const std::regex marks("`|\\[([^\\]]*)\\]\\([^)]*\\)");
    return std::regex_replace(std::string(markdown), marks, "$1");
}

std::string hint_for_unknown(std::string_view name, std::string_view what,
                             const std::vector<std::string_view>& valid) {
    std::string hint;
    const auto closest =
        std::min_element(valid.begin(), valid.end(), [&](std::string_view a, std::string_view b) {
            return distance(a, name.substr(0, max_compared)) <
                   distance(b, name.substr(0, max_compared));
        });
    if (closest != valid.end() && distance(*closest, name.substr(0, max_compared)) <= 2)
        hint = "Did you mean \"" + std::string(*closest) + "\"? ";
    return hint + "Valid " + std::string(what) + " are: " + comma_separated(valid) + ".";
}

std::optional<std::size_t> parse_memory(std::string_view text) {
    constexpr std::int64_t kilobyte = 1024, least = 16 * kilobyte * kilobyte;
    constexpr std::int64_t most = 64 * kilobyte * kilobyte * kilobyte;
    std::int64_t unit = kilobyte;
    for (const std::string_view name : {"kB", "MB", "GB"}) {
        if (text.ends_with(name)) {
            const auto number = parse_integer(text.substr(0, text.size() - name.size()));
            if (!number || *number < 1 || *number > most / unit || *number * unit < least)
                return std::nullopt;
            return static_cast<std::size_t>(*number * unit);
        }
        unit *= kilobyte;
    }
    return std::nullopt;
}

Result<ListenAddress> parse_listen_address(std::string_view text) {
    const Error invalid{ErrorKind::invalid_value, "invalid address \"" + printable(text) + "\"", "",
                        "Write an address and a port, such as 127.0.0.1:8080, [::1]:8080, or :8080 "
                        "for all addresses of the machine."};
    const std::size_t colon = text.rfind(':');
    if (colon == std::string_view::npos || printable(text) != text)
        return invalid;
    std::string_view host = text.substr(0, colon);
    const auto port = parse_integer(text.substr(colon + 1));
    if (!port || *port < 0 || *port > 65535)
        return invalid;
    const bool in_brackets = host.starts_with('[') && host.ends_with(']');
    if (in_brackets)
        host = host.substr(1, host.size() - 2);
    if (in_brackets != (host.find(':') != std::string_view::npos))
        return invalid;
    return ListenAddress{std::string(host), static_cast<int>(*port)};
}

std::string settings_table() {
    std::string table =
        "| key | flag | environment | default | values |  |\n| -- | -- | -- | -- | -- | -- |\n";
    for (const Setting& setting : of_process)
        table += row_of(setting, false);
    for (const Setting& setting : of_database)
        table += row_of(setting, true);
    return table;
}

}  // namespace outbox::relay
