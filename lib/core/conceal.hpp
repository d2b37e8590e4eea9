// Removes one secret from a text.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outbox {

constexpr std::size_t shortest_secret = 4;

// Replaces each occurrence of a secret, and a part of it that is cut off at the end of the text.
// Secrets of fewer than 4 bytes are left, and so are cut parts of fewer than 8.
void conceal(std::string& text, std::string_view secret) noexcept;

}  // namespace outbox
