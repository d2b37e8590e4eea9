// A statement that calls a function of the database.
#pragma once

#include <cstdint>

#include "core/clock.hpp"
#include "core/sql/parameters.hpp"

namespace outbox::sql {

struct Call {
    static constexpr std::uint64_t usual_answer = 64 * 1024 * 1024;
    // Room for one event of any size.
    static constexpr std::uint64_t long_answer = 1200ULL * 1024 * 1024;

    // For statements that read a large window, or all keys that are held.
    static constexpr Micros long_time_limit = seconds(300);

    const char* text = "";
    Parameters parameters{};
    // Over a network: a connection that takes longer is given up.
    Micros time_limit = seconds(30);
    // After this the server cancels the statement; 0 if it does not.
    Micros server_time_limit = 0;
    // Over a network: an answer with more bytes than this is not read to its end, and the connection
    // is given up.
    std::uint64_t max_answer = usual_answer;
};

}  // namespace outbox::sql
