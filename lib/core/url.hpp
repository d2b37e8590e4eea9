// A URL taken apart (RFC 3986), as far as destinations need it.
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
    std::string port;                 // digits; empty: none given
    std::string path;                 // as written, with its leading slash; empty: none
    std::vector<std::pair<std::string, std::string>> query;  // percent-decoded

    // Refuses what is no URL, and characters that could break out of a request line.
    static Result<Url> parse(std::string_view text);
};

}  // namespace outbox
