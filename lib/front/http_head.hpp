// Reading the head of an HTTP request, and refusing one.
#pragma once

#include <strings.h>

#include <algorithm>
#include <string>
#include <string_view>

namespace outbox {

// A whole response without a body. `status` is as in "404 Not Found".
inline std::string refusal(std::string_view status) {
    return "HTTP/1.1 " + std::string(status) + "\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
}

inline bool is_called(std::string_view name, std::string_view known) {
    return name.size() == known.size() && strncasecmp(name.data(), known.data(), name.size()) == 0;
}

// Calls `visit(name, value)` for each field of a head.
template <class Visit>
void visit_fields(std::string_view head, Visit&& visit) {
    for (std::size_t begin = head.find("\r\n"); begin != head.npos;) {
        begin += 2;
        const std::size_t end = head.find("\r\n", begin);
        const std::string_view line = head.substr(begin, end == head.npos ? end : end - begin);
        if (const std::size_t colon = line.find(':'); colon != line.npos) {
            std::string_view value = line.substr(colon + 1);
            value.remove_prefix(std::min(value.find_first_not_of(" \t"), value.size()));
            value = value.substr(0, value.find_last_not_of(" \t") + 1);
            visit(line.substr(0, colon), value);
        }
        begin = end;
    }
}

}  // namespace outbox
