// Delivers until it is told to stop: the part of outbox-relay that main.cpp starts.
#pragma once

#include "relay/configure/config.hpp"
#include "relay/observe/figures.hpp"
#include "relay/observe/log.hpp"

namespace outbox::relay {

// Returns the exit code of the program. SIGTERM and SIGINT are blocked in all threads when it is
// called; it takes them with signalfd() or sigtimedwait(). With config.once it returns when all is
// delivered.
int serve(const RelayConfig& config, Log& log, Figures& figures);

}  // namespace outbox::relay
