// The sinks and checks of this module.
#pragma once

#include <memory>

#include "core/check.hpp"
#include "core/sink.hpp"

namespace outbox {

std::unique_ptr<Sink> create_http_sink(const SinkContext& context);
std::unique_ptr<Check> create_http_check(const CheckContext& context);

// For destinations whose endpoints are rows of outbox.endpoint.
std::unique_ptr<Sink> create_endpoints_sink(const SinkContext& context);
std::unique_ptr<Check> create_endpoints_check(const CheckContext& context);

}  // namespace outbox
