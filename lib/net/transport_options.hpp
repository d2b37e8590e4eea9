// Options of destinations and sources that send requests over HTTP. Nothing here needs libcurl:
// pg_outbox.so declares these options without linking to it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "core/allowed_hosts.hpp"
#include "core/clock.hpp"
#include "core/destination.hpp"

namespace outbox {

struct TransportOptions {
    // Addresses that may be connected to. std::nullopt allows all, for URLs that come from the
    // server process itself, such as that of a metadata server.
    std::optional<AllowedHosts> allowed_hosts;
    Micros connect_timeout = seconds(10);
    Micros request_timeout = seconds(30);
    std::string ca_file;               // empty for the certificates of the system
    std::size_t max_connections = 1;   // requests at the same time
    std::size_t more_connections = 0;  // further requests while some of these hang
};

inline constexpr OptionSpec ca_file_option{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for https",
    .names_file = NamesFile::yes};
// Each sink has its own default.
constexpr OptionSpec max_connections_option(std::string_view default_value) {
    return {.name = "max_connections",
            .type = OptionType::number,
            .max = 256,
            .unit = "requests",
            .default_value = default_value,
            .description =
                "requests under way at the same time. If the option is not set, up to three "
                "times as many more are started while requests hang"};
}

// The options of a destination. Its sink declares `max_connections`.
TransportOptions transport_options(const Destination& destination,
                                   const OptionSpec& max_connections);

}  // namespace outbox
