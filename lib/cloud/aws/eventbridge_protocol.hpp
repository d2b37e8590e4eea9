// The request of EventBridge that looks at an event bus.
#pragma once

#include <string>
#include <string_view>

#include "core/text.hpp"

namespace outbox {

// Makes the request DescribeEventBus. `address` is the ARN of the bus or its name.
inline std::string event_bus_request(std::string_view address) {
    std::string body = "{";
    append_json_member(body, "Name", address);
    body += '}';
    return body;
}

}  // namespace outbox
