// How many seeds or random inputs a property test tries.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace outbox {

// Returns `count`, or a tenth of it in the short run of scripts/test.sh.
inline std::uint64_t many(std::uint64_t count) {
    return std::getenv("OUTBOX_TEST_SHORT") == nullptr ? count : (count + 9) / 10;
}

}  // namespace outbox
