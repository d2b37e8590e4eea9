// URLs of endpoints: http or https, a host, and no credentials.
#pragma once

#include <string>

namespace outbox {

// Returns why no request can be sent there, or an empty string.
std::string wrong_endpoint_url(const std::string& url);

}  // namespace outbox
