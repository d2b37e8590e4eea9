#include "net/nats/nats_inbox.hpp"

#include <openssl/rand.h>

#include <array>
#include <charconv>
#include <new>
#include <string_view>

namespace outbox {

NatsInbox::NatsInbox(const std::string& prefix) {
    std::array<unsigned char, 16> secret{};
    if (RAND_bytes(secret.data(), static_cast<int>(secret.size())) != 1)
        throw std::bad_alloc();
    static constexpr char hex[] = "0123456789abcdef";
    prefix_ = prefix + '.';
    for (const unsigned char byte : secret) {
        prefix_ += hex[byte >> 4];
        prefix_ += hex[byte & 15];
    }
    prefix_ += '.';
}

std::string NatsInbox::subscription() const {
    return "SUB " + prefix_ + "* " + std::to_string(id) + "\r\n";
}

std::string NatsInbox::end() {
    return "UNSUB " + std::to_string(id) + "\r\n";
}

void NatsInbox::append_reply(std::string& out, std::uint64_t request) const {
    char digits[20];
    const auto [end, error] = std::to_chars(digits, digits + sizeof digits, request, 36);
    static_cast<void>(error);  // 13 digits hold every number
    out.append(prefix_).append(digits, end);
}

std::optional<std::uint64_t> NatsInbox::request_of(const NatsInput& message) const noexcept {
    if (message.subscription != id || !message.subject.starts_with(prefix_))
        return std::nullopt;
    const std::string_view digits = message.subject.substr(prefix_.size());
    std::uint64_t request = 0;
    const auto [end, error] =
        std::from_chars(digits.data(), digits.data() + digits.size(), request, 36);
    if (error != std::errc{} || end != digits.data() + digits.size())
        return std::nullopt;
    return request;
}

}  // namespace outbox
