// Judges errors of Redis: what they mean for the events of a batch.
#pragma once

#include <string_view>

#include "core/sink.hpp"

namespace outbox {

struct Verdict {
    Fate fate = Fate::failed;
    Scope scope = Scope::destination;
    bool permanent = false;
    bool ask_elsewhere = false;  // this server cannot take events; another one may
};

// Judges an error such as "OOM command not allowed when used memory > 'maxmemory'.", after which
// no event of the batch has been taken.
Verdict verdict_of(std::string_view error) noexcept;

// Returns true if Redis refused the id of an entry because it is not above the top of the stream.
bool is_id_refused(std::string_view error) noexcept;
// Returns true if the server closes the connection because an argument is too long.
bool is_too_long(std::string_view error) noexcept;

}  // namespace outbox
