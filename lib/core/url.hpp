// Parses a URL (RFC 3986) as far as destinations need it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/result.hpp"

namespace outbox {

struct Url {
    std::string scheme;               // lower case, without the colon
    std::optional<std::string> user;  // percent-decoded
    bool has_password = false;        // the password itself is never kept
    std::string host;                 // percent-decoded; an IPv6 address without its brackets
    std::string port;                 // digits, or empty
    // Hosts and ports after the first one, if the scheme allows a list.
    std::vector<std::pair<std::string, std::string>> further_hosts;
    std::string path;  // as written, with its leading slash, or empty
    std::vector<std::pair<std::string, std::string>> query;  // percent-decoded

    enum class Hosts { one, list };  // list: "host:port,host:port"

    // Returns an error for text that is not a URL, and for characters that could break out of a
    // request line.
    static Result<Url> parse(std::string_view text, Hosts hosts = Hosts::one);
};

// True for a name or an IP address: it can become a part of a URL, or of a list of servers, and
// brings nothing that ends it. An encoded host of a URL and the answer of a peer need not be one.
bool is_host_name(std::string_view host) noexcept;

}  // namespace outbox
