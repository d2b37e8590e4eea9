// Characters as the services of AWS count them in their limits.
#pragma once

#include <cstddef>
#include <string_view>

namespace outbox {

// A character outside of the basic plane of Unicode counts twice.
inline std::size_t character_count(std::string_view text) noexcept {
    std::size_t count = 0;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        count += (byte & 0xc0) != 0x80;
        count += byte >= 0xf0;
    }
    return count;
}

}  // namespace outbox
