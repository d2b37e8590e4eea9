// SHA-256 as lower-case hex digits.
#pragma once

#include <openssl/evp.h>

#include <array>
#include <new>
#include <span>
#include <string>
#include <string_view>

namespace outbox {

inline void append_hex(std::string& out, std::span<const unsigned char> bytes) {
    static constexpr char hex[] = "0123456789abcdef";
    for (unsigned char byte : bytes) {
        out += hex[byte >> 4];
        out += hex[byte & 0xf];
    }
}

inline std::string sha256_hex(std::string_view text) {
    std::array<unsigned char, 32> digest;
    if (EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1)
        throw std::bad_alloc();
    std::string out;
    append_hex(out, digest);
    return out;
}

}  // namespace outbox
