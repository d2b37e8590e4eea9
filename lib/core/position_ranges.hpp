// Positions of the log as the text of an int8multirange: positions of a transaction mostly follow each
// other, so a few ranges say all of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace outbox {

// Sorts the positions.
std::string ranges_of(std::vector<std::int64_t>& positions);

}  // namespace outbox
