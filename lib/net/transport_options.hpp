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
    std::string certificate{};         // of the client, as PEM; empty if it has none
    std::string private_key{};         // its key
    std::size_t max_connections = 1;   // requests at the same time
    std::size_t more_connections = 0;  // further requests while some of these hang
};

inline constexpr OptionSpec ca_file_option{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for https",
    .names_file = NamesFile::yes};

// For a client that proves its identity with a certificate. The two options need each other.
std::optional<Error> check_pem(const OptionSpec& spec, std::string_view value);
inline constexpr OptionSpec certificate_option{.name = "certificate",
                                               .place = OptionPlace::user_mapping,
                                               .range = "PEM",
                                               .description = "client certificate, for TLS",
                                               .check = check_pem};
inline constexpr OptionSpec private_key_option{.name = "private_key",
                                               .place = OptionPlace::user_mapping,
                                               .range = "PEM",
                                               .description = "its key",
                                               .secret = true,
                                               .check = check_pem};
// Returns why there can be no client with these: one of both is missing, or `tls` is false. May throw
// std::bad_alloc.
std::optional<std::string> wrong_client_certificate(const std::string& certificate,
                                                    const std::string& private_key, bool tls);

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
