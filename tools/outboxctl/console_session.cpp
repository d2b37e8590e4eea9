#include "console_session.hpp"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "session.hpp"

namespace outboxctl {

namespace {

constexpr std::size_t max_sessions = 64;
constexpr std::size_t shortest_token = 16;
constexpr std::size_t max_token = 4096;
constexpr auto length_of_session = std::chrono::hours(12);

// Its time depends on the lengths only, so that it does not tell how much of a guess is right.
bool equal(const std::string& guess, const std::string& secret) {
    if (guess.size() != secret.size())
        return false;
    volatile unsigned char difference = 0;
    for (std::size_t i = 0; i < secret.size(); i++)
        difference = static_cast<unsigned char>(difference | (guess[i] ^ secret[i]));
    return difference == 0;
}

}  // namespace

std::string new_secret() {
    std::array<unsigned char, 32> bytes{};
    if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size()))
        throw Refused("ERROR:  the system has no random numbers");
    std::string text;
    for (const unsigned char byte : bytes) {
        text += "0123456789abcdef"[byte >> 4];
        text += "0123456789abcdef"[byte & 15];
    }
    return text;
}

std::string token_in(const std::string& file) {
    errno = 0;
    std::ifstream stream(file);
    std::string token;
    if (!stream || !std::getline(stream, token))
        throw Refused("ERROR:  could not read a token from file \"" + file +
                      "\": " + (errno != 0 ? std::strerror(errno) : "it is empty"));
    while (!token.empty() && (token.back() == '\r' || token.back() == ' '))
        token.pop_back();
    if (token.size() < shortest_token || token.size() > max_token)
        throw Refused("ERROR:  the token in file \"" + file + "\" is too " +
                      (token.size() < shortest_token ? "short" : "long") +
                      "\nHINT:  Use 16 or more random characters, such as: openssl rand -hex 32");
    return token;
}

std::optional<std::string> ConsoleSessions::log_in(const std::string& token) {
    if (!equal(token, token_))
        return std::nullopt;
    const std::lock_guard lock(mutex_);
    if (sessions_.size() == max_sessions)
        sessions_.pop_front();
    sessions_.push_back({new_secret(), new_secret(), now_() + length_of_session});
    return sessions_.back().id;
}

void ConsoleSessions::log_out(const std::string& id) {
    const std::lock_guard lock(mutex_);
    sessions_.remove_if([&](const One& one) { return equal(id, one.id); });
}

std::optional<std::string> ConsoleSessions::csrf_token(const std::string& id) {
    const std::lock_guard lock(mutex_);
    sessions_.remove_if([now = now_()](const One& one) { return one.ends <= now; });
    for (const One& one : sessions_)
        if (equal(id, one.id))
            return one.csrf_token;
    return std::nullopt;
}

bool ConsoleSessions::is_csrf_token(const std::string& id, const std::string& token) {
    const std::optional<std::string> known = csrf_token(id);
    return known && equal(token, *known);
}

}  // namespace outboxctl
