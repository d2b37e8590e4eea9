#include "relay/serve/destination_settings.hpp"

#include "core/text.hpp"

namespace outbox::relay {

static std::int64_t number_of(const std::string& value, std::int64_t otherwise) {
    const auto number = parse_integer(value);
    return number && *number > 0 ? *number : otherwise;
}

DatabaseSettings read_settings(const std::vector<calls::Setting>& settings) {
    DatabaseSettings read;
    const auto duration = [](const std::string& value, Micros otherwise) {
        return milliseconds(number_of(value, otherwise / 1000));
    };
    for (const auto& [name, value] : settings) {
        if (name == "edition")
            read.edition = value;
        else if (name == "version")
            read.version = value;
        else if (name == "database")
            read.database = value;
        else if (name == "system_identifier")
            read.system_identifier = value;
        else if (name == "notifies")
            read.notifies = value == "on";
        else if (name == "encoding")
            read.is_utf8 = value == "UTF8";
        else if (name == "allowed_hosts")
            read.defaults.allowed_hosts = value;
        else if (name == "connect_timeout")
            read.defaults.connect_timeout = duration(value, read.defaults.connect_timeout);
        else if (name == "request_timeout")
            read.defaults.request_timeout = duration(value, read.defaults.request_timeout);
        else if (name == "receipts")
            read.defaults.receipts = value == "on";
        else if (name == "backoff_min")
            read.limits.backoff_base = duration(value, read.limits.backoff_base);
        else if (name == "backoff_max")
            read.limits.backoff_cap = duration(value, read.limits.backoff_cap);
        else if (name == "cursor_flush_interval")
            read.save_interval = duration(value, read.save_interval);
        else if (name == "expression_timeout")
            read.expression_timeout = duration(value, read.expression_timeout);
        else if (name == "max_in_flight")
            read.limits.max_events = static_cast<std::size_t>(
                number_of(value, static_cast<std::int64_t>(read.limits.max_events)));
        else if (name == "max_in_flight_size")
            read.limits.max_bytes =
                1024 * static_cast<std::size_t>(number_of(
                           value, static_cast<std::int64_t>(read.limits.max_bytes / 1024)));
    }
    return read;
}

Result<Destination> make_destination(const calls::DestinationRow& row,
                                     const DatabaseSettings& settings,
                                     const DatabaseConfig& database, const RelayConfig& config) {
    Result<Destination> destination = make_destination(row, settings.defaults, database, config);
    if (!destination)
        return destination;
    destination.value().source = settings.database;
    destination.value().identity =
        settings.system_identifier + '.' + settings.database + '.' + std::to_string(row.number);
    return destination;
}

}  // namespace outbox::relay
