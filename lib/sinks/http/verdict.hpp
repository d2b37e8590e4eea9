// Judges the events of a request by the answer of a web server.
#pragma once

#include "core/sink.hpp"
#include "net/exchange.hpp"

namespace outbox {

constexpr int gone_status = 410;

struct Verdict {
    Fate fate;
    bool permanent = false;
    Scope scope = Scope::destination;
};

Verdict verdict_of(const Exchange& exchange);

}  // namespace outbox
