#include "core/url.hpp"

#include <algorithm>

#include "core/percent.hpp"
#include "core/text.hpp"

namespace outbox {

// The text may contain a password, so an error names the mistake and does not quote the text.
static Error malformed(const char* why, const char* hint =
                                            "Write for example \"https://example.com:443/events\", "
                                            "with a port from 1 to 65535 and special characters "
                                            "percent-encoded.") {
    return {ErrorKind::invalid_value, std::string("invalid URL: ") + why, "", hint};
}

// Decoded text becomes part of a header line or a connection string.
static bool has_control_character(std::string_view text) {
    return std::any_of(text.begin(), text.end(),
                       [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; });
}

static bool is_scheme(std::string_view text) {
    auto letter = [](char c) { return ascii_lower(c) >= 'a' && ascii_lower(c) <= 'z'; };
    return !text.empty() && letter(text.front()) &&
           std::all_of(text.begin(), text.end(), [&](char c) {
               return letter(c) || (c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.';
           });
}

// Takes "host:port" apart. nullptr, or what is wrong with it.
static const char* parse_host(std::string_view text, std::string& host, std::string& port) {
    std::size_t end_of_host = text.find(':');
    if (!text.empty() && text.front() == '[') {
        const std::size_t bracket = text.find(']');
        if (bracket == std::string_view::npos)
            return "its IPv6 address is not closed";
        host = text.substr(1, bracket - 1);
        end_of_host = bracket + 1;
        if (end_of_host < text.size() && text[end_of_host] != ':')
            return "its host is malformed";
    } else {
        auto decoded = percent_decoded(text.substr(0, end_of_host));
        if (!decoded || has_control_character(*decoded))
            return "its host is badly encoded";
        host = *decoded;
    }
    if (end_of_host < text.size()) {
        const std::string_view digits = text.substr(end_of_host + 1);
        const auto number = parse_integer(digits);
        if (!number || *number < 1 || *number > 65535)
            return "its port is not a number from 1 to 65535";
        port = digits;
    }
    return nullptr;
}

Result<Url> Url::parse(std::string_view text, Hosts hosts) {
    for (char c : text)
        if (static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '"' || c == '<' || c == '>')
            return malformed("it contains blanks or control characters");
    if (text.find('#') != std::string_view::npos)
        return malformed("it has a fragment");

    Url url;
    const std::size_t colon = text.find(':');
    if (colon == std::string_view::npos || !is_scheme(text.substr(0, colon)))
        return malformed("it has no scheme", "A URL starts with a scheme, such as \"https://\".");
    for (char c : text.substr(0, colon))
        url.scheme += ascii_lower(c);
    text.remove_prefix(colon + 1);

    if (const std::size_t mark = text.find('?'); mark != std::string_view::npos) {
        std::string_view query = text.substr(mark + 1);
        text = text.substr(0, mark);
        while (!query.empty()) {
            const std::string_view pair = query.substr(0, query.find('&'));
            query.remove_prefix(std::min(query.size(), pair.size() + 1));
            const std::size_t equals = pair.find('=');
            auto name = percent_decoded(pair.substr(0, equals));
            auto value = percent_decoded(
                equals == std::string_view::npos ? std::string_view{} : pair.substr(equals + 1));
            if (!name || !value)
                return malformed("its query is badly encoded");
            url.query.emplace_back(*name, *value);
        }
    }

    if (text.substr(0, 2) != "//") {
        url.path = text;
        return url;
    }
    text.remove_prefix(2);
    std::string_view authority = text.substr(0, text.find('/'));
    url.path = text.substr(authority.size());

    if (const std::size_t at = authority.rfind('@'); at != std::string_view::npos) {
        const std::string_view userinfo = authority.substr(0, at);
        authority.remove_prefix(at + 1);
        const std::size_t separator = userinfo.find(':');
        url.has_password = separator != std::string_view::npos;
        url.user = percent_decoded(userinfo.substr(0, separator));
        if (!url.user || has_control_character(*url.user))
            return malformed("its user is badly encoded");
    }
    bool first = true;
    do {
        const std::string_view one =
            hosts == Hosts::list ? authority.substr(0, authority.find(',')) : authority;
        authority.remove_prefix(std::min(authority.size(), one.size() + 1));
        if (!first)
            url.further_hosts.emplace_back();
        auto& host = first ? url.host : url.further_hosts.back().first;
        auto& port = first ? url.port : url.further_hosts.back().second;
        if (const char* why = parse_host(one, host, port))
            return malformed(why);
        first = false;
    } while (!authority.empty());
    return url;
}

bool is_host_name(std::string_view host) noexcept {
    return !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
        const char lower = ascii_lower(c);
        return (lower >= 'a' && lower <= 'z') || (c >= '0' && c <= '9') || c == '.' || c == '-' ||
               c == '_' || c == ':';
    });
}

}  // namespace outbox
