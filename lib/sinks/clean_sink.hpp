// Between every sink and the rest: what a destination said becomes text that can be shown.
//
// Sinks put answers of their peers into outcomes and findings. Here, and nowhere else, credentials
// are taken out of them and they are made printable, so that a sink cannot forget it.
#pragma once

#include <memory>

#include "core/check.hpp"
#include "core/destination.hpp"
#include "core/sink.hpp"

namespace outbox {

std::unique_ptr<Sink> clean(std::unique_ptr<Sink> sink, const Destination& destination);
std::unique_ptr<Check> clean(std::unique_ptr<Check> check, const Destination& destination);

}  // namespace outbox
