// What the answer of a web server says about the events of the request.
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
