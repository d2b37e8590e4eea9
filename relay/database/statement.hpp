// A statement that is to be run, and its answer.
#pragma once

#include <functional>
#include <string>

#include "core/clock.hpp"
#include "relay/database/parameters.hpp"
#include "relay/database/rows.hpp"

namespace outbox::relay {

struct Answer {
    Rows rows{};
    bool ok = false;
    // If it is not ok.
    std::string error{};     // one line
    std::string sqlstate{};  // empty if the connection was lost: the statement may have taken effect

    bool connection_lost() const noexcept { return !ok && sqlstate.empty(); }
};

struct Statement {
    const char* text = "";
    Parameters parameters{};
    // A connection that takes longer is given up.
    Micros time_limit = seconds(30);
    // Called once, unless everything ends before. Must not be called after the owner is gone: an
    // owner outlives its statements.
    std::function<void(Answer)> done{};
};

}  // namespace outbox::relay
