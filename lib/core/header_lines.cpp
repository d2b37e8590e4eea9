#include "core/header_lines.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/content_type.hpp"
#include "core/text.hpp"

namespace outbox {

static constexpr std::size_t max_length = 8192;  // common servers accept this

// Headers of HTTP (RFC 9110, section 7.6.1; RFC 9112) and of CloudEvents.
static constexpr std::array<std::string_view, 11> reserved{
    "connection", "content-length",    "content-type",     "expect",
    "host",       "keep-alive",        "proxy-connection", "te",
    "trailer",    "transfer-encoding", "upgrade"};

static bool is_reserved(std::string_view name) {
    return equal_ignoring_case(name.substr(0, 3), "ce-") ||
           std::any_of(reserved.begin(), reserved.end(),
                       [name](std::string_view one) { return equal_ignoring_case(name, one); });
}

static bool is_header_name(std::string_view name) {
    return !name.empty() && std::all_of(name.begin(), name.end(), is_token_character);
}

static bool is_header_value(std::string_view value) {
    return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) {
        return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
    });
}

static Error malformed(std::size_t line, const std::string& why) {
    return {ErrorKind::invalid_value, "Line " + std::to_string(line) + " " + why, "",
            "Write a line for each header, for example \"X-Api-Key: 5ecret\"."};
}

Result<std::vector<HeaderLine>> parse_header_lines(std::string_view text) {
    std::vector<HeaderLine> headers;
    if (text.size() > max_length)
        return malformed(
            1, "ends too late: headers may have " + std::to_string(max_length) + " bytes together");
    for (std::size_t line = 1; !text.empty(); line++) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        const std::string_view one = trim(text.substr(0, end));
        text.remove_prefix(std::min(end + 1, text.size()));
        if (one.empty())
            continue;
        const std::size_t colon = std::min(one.find(':'), one.size());
        const HeaderLine header{one.substr(0, colon),
                                trim(one.substr(std::min(colon + 1, one.size())))};
        if (!is_header_name(header.name) || !is_header_value(header.value))
            return malformed(line, "is not a header");
        if (is_reserved(header.name))
            return malformed(line, "sets a header that destinations set themselves");
        if (std::any_of(headers.begin(), headers.end(), [&](const HeaderLine& other) {
                return equal_ignoring_case(other.name, header.name);
            }))
            return malformed(line, "sets a header again");
        headers.push_back(header);
    }
    if (headers.empty())
        return malformed(1, "is not a header");
    return headers;
}

}  // namespace outbox
