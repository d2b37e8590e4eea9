// A statement that is to be run, and its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "core/clock.hpp"
#include "relay/database/parameters.hpp"
#include "relay/database/rows.hpp"

namespace outbox::relay {

inline constexpr std::string_view query_canceled = "57014";

struct Answer {
    Rows rows{};
    bool ok = false;
    // If it is not ok.
    std::string error{};  // one line
    std::string
        sqlstate{};  // empty if the connection was lost: the statement may have taken effect

    bool connection_lost() const noexcept { return !ok && sqlstate.empty(); }
};

struct Statement {
    static constexpr std::uint64_t usual_answer = 64 * 1024 * 1024;
    // Room for one event of any size.
    static constexpr std::uint64_t long_answer = 1200ULL * 1024 * 1024;

    const char* text = "";
    Parameters parameters{};
    // A connection that takes longer is given up.
    Micros time_limit = seconds(30);
    // After this the server cancels the statement; 0 if it does not.
    Micros server_time_limit = 0;
    // An answer with more bytes than this is not read to its end, and the connection is given up.
    std::uint64_t max_answer = usual_answer;
    // Called once, unless everything ends before. Must not be called after the owner is gone: an
    // owner outlives its statements.
    std::function<void(Answer)> done{};
};

}  // namespace outbox::relay
