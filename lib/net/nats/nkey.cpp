#include "net/nats/nkey.hpp"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>

#include "core/base64.hpp"
#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view base32 = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567";
static constexpr std::uint8_t seed_prefix = 18 << 3;  // 'S'
static constexpr std::uint8_t user_prefix = 20 << 3;  // 'U'
static constexpr std::size_t key_size = 32;

static std::optional<std::string> base32_decoded(std::string_view text) {
    std::string bytes;
    std::uint32_t bits = 0;
    int count = 0;
    for (const char c : text) {
        const std::size_t value = base32.find(c);
        if (value == std::string_view::npos)
            return std::nullopt;
        bits = (bits << 5 | static_cast<std::uint32_t>(value)) & 0xfff;
        count += 5;
        if (count >= 8) {
            count -= 8;
            bytes += static_cast<char>(bits >> count & 0xff);
        }
    }
    return bytes;
}

static std::string base32_encoded(std::string_view bytes) {
    std::string text;
    std::uint32_t bits = 0;
    int count = 0;
    for (const char c : bytes) {
        bits = (bits << 8 | static_cast<std::uint8_t>(c)) & 0xfff;
        count += 8;
        while (count >= 5) {
            count -= 5;
            text += base32[bits >> count & 31];
        }
    }
    if (count > 0)
        text += base32[bits << (5 - count) & 31];
    return text;
}

// CRC-16 of XMODEM.
static std::uint16_t checksum(std::string_view bytes) {
    std::uint16_t crc = 0;
    for (const char c : bytes) {
        crc = static_cast<std::uint16_t>(crc ^ static_cast<std::uint8_t>(c) << 8);
        for (int bit = 0; bit < 8; bit++)
            crc = static_cast<std::uint16_t>(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
    }
    return crc;
}

namespace {

struct Free {
    void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
    void operator()(EVP_MD_CTX* context) const noexcept { EVP_MD_CTX_free(context); }
};

std::unique_ptr<EVP_PKEY, Free> ed25519(const std::string& seed) {
    return std::unique_ptr<EVP_PKEY, Free>(EVP_PKEY_new_raw_private_key(
        EVP_PKEY_ED25519, nullptr, reinterpret_cast<const unsigned char*>(seed.data()),
        seed.size()));
}

}  // namespace

static std::string public_key_of(const std::string& seed) {
    const auto key = ed25519(seed);
    std::array<unsigned char, key_size> bytes{};
    std::size_t size = bytes.size();
    if (key == nullptr || EVP_PKEY_get_raw_public_key(key.get(), bytes.data(), &size) != 1)
        return "";
    std::string text(1, static_cast<char>(user_prefix));
    text.append(bytes.begin(), bytes.end());
    const std::uint16_t crc = checksum(text);
    text += static_cast<char>(crc & 0xff);
    text += static_cast<char>(crc >> 8);
    return base32_encoded(text);
}

std::optional<NatsKey> NatsKey::parse(std::string_view text) {
    constexpr std::size_t text_size = 58;
    const std::optional<std::string> bytes = base32_decoded(trim(text));
    if (!bytes || bytes->size() != key_size + 4 || trim(text).size() != text_size)
        return std::nullopt;
    const std::string_view checked = std::string_view(*bytes).substr(0, key_size + 2);
    const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>((*bytes)[i]); };
    // The two prefixes share the first two bytes.
    const std::uint8_t of_seed = byte(0) & 0xf8;
    const auto of_user = static_cast<std::uint8_t>((byte(0) & 7) << 5 | byte(1) >> 3);
    if (checksum(checked) != (byte(key_size + 2) | byte(key_size + 3) << 8) ||
        of_seed != seed_prefix || of_user != user_prefix)
        return std::nullopt;
    NatsKey key{.seed = std::string(checked.substr(2)), .public_key = {}};
    key.public_key = public_key_of(key.seed);
    if (key.public_key.empty())
        return std::nullopt;
    return key;
}

std::string NatsKey::sign(std::string_view nonce) const {
    const auto key = ed25519(seed);
    const std::unique_ptr<EVP_MD_CTX, Free> context(EVP_MD_CTX_new());
    std::array<unsigned char, 64> signature{};
    std::size_t size = signature.size();
    if (key == nullptr || context == nullptr ||
        EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key.get()) != 1 ||
        EVP_DigestSign(context.get(), signature.data(), &size,
                       reinterpret_cast<const unsigned char*>(nonce.data()), nonce.size()) != 1)
        return "";
    std::string text;
    append_base64(text, {reinterpret_cast<const char*>(signature.data()), size});
    for (char& c : text)
        c = c == '+' ? '-' : c == '/' ? '_' : c;
    while (text.ends_with('='))
        text.pop_back();
    return text;
}

// Returns the lines between "-----BEGIN <name>-----" and the next line of dashes, joined.
static std::string block(std::string_view text, std::string_view name) {
    const std::size_t begin = text.find("BEGIN " + std::string(name));
    if (begin == std::string_view::npos)
        return "";
    text.remove_prefix(begin);
    text.remove_prefix(std::min(text.size(), text.find('\n')));
    std::string joined;
    for (const char c : text.substr(0, text.find("\n-")))
        if (c != '\n' && c != '\r' && c != ' ' && c != '\t')
            joined += c;
    return joined;
}

std::optional<NatsCredentials> NatsCredentials::parse(std::string_view text) {
    std::string jwt = block(text, "NATS USER JWT");
    std::optional<NatsKey> key = NatsKey::parse(block(text, "USER NKEY SEED"));
    if (jwt.empty() || !key)
        return std::nullopt;
    return NatsCredentials{std::move(jwt), std::move(*key)};
}

}  // namespace outbox
