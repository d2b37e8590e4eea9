// Wraps every sink and check, and cleans the texts from their peers.
//
// Sinks put answers of their peers into outcomes and findings. Here, and nowhere else, credentials
// are removed and the text is made printable, so that no sink can forget it.
#pragma once

#include <memory>

#include "core/check.hpp"
#include "core/destination.hpp"
#include "core/sink.hpp"

namespace outbox {

std::unique_ptr<Sink> clean(std::unique_ptr<Sink> sink, const Destination& destination);
std::unique_ptr<Check> clean(std::unique_ptr<Check> check, const Destination& destination);

}  // namespace outbox
