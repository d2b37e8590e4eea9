// Where spans go.
#pragma once

#include <string>

namespace outbox {

struct Tracing {
    std::string
        endpoint;  // URL for OTLP/HTTP, such as http://127.0.0.1:4318/v1/traces; empty: none
    // Has headers of requests, a line "name: value" each. A file, because they may be secret, and
    // the server logs settings that change. Empty: none.
    std::string headers_file;

    bool operator==(const Tracing&) const = default;
};

}  // namespace outbox
