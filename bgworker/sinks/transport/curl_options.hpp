// How libcurl connects, whatever goes over the connection.
#pragma once

#include <curl/curl.h>

#include "sinks/transport/transport.hpp"

namespace outbox {

void set_connection_options(CURL* easy, const TransportConfig& config);

}  // namespace outbox
