// Redirects to another server, by a node of a Redis cluster or by a Sentinel.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "net/resp.hpp"

namespace outbox {

// "MOVED 3999 127.0.0.1:6381", "ASK 3999 127.0.0.1:6381": the server that has the stream.
struct Redirect {
    bool ask = false;
    std::string host;  // if empty, the host of the server that answers
    std::string port;

    bool operator==(const Redirect&) const = default;
};
std::optional<Redirect> parse_redirect(std::string_view error);

// Returns the primary in an answer to SENTINEL get-master-addr-by-name, or std::nullopt.
std::optional<Redirect> parse_primary(const RespValue& answer);

}  // namespace outbox
