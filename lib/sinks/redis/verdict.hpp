// What an error of Redis means for the events that it answers.
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

// Of an error, such as "OOM command not allowed when used memory > 'maxmemory'.". Nothing of the batch
// has been taken.
Verdict verdict_of(std::string_view error) noexcept;

// The id of an entry is not above the top of the stream.
bool is_id_refused(std::string_view error) noexcept;
// The server has closed the connection because an argument is too long.
bool is_too_long(std::string_view error) noexcept;

}  // namespace outbox
