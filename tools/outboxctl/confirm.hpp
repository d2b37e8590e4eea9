// Asks before something that cannot be undone.
#pragma once

#include <string>

namespace outboxctl {

// Asks the question on the terminal, unless `yes`. Throws Refused if the answer is no, or if there is
// no terminal.
void confirm(const std::string& question, bool yes);

}  // namespace outboxctl
