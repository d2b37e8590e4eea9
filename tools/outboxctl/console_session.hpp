// Access to the console: the token, and the sessions of browsers that have presented it.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <mutex>
#include <optional>
#include <string>

namespace outboxctl {

// Returns 256 random bits as hexadecimal digits.
std::string new_secret();

// Returns the token in a file, without the end of its line. Throws Refused if it cannot be read or is too
// short to be one.
std::string token_in(const std::string& file);

// Safe to use from several threads.
class ConsoleSessions {
  public:
    using Clock = std::chrono::steady_clock;

    explicit ConsoleSessions(std::string token, std::function<Clock::time_point()> now = Clock::now)
        : token_(std::move(token)), now_(std::move(now)) {}

    // Returns the id of a new session, for its cookie; std::nullopt if the token is wrong.
    std::optional<std::string> log_in(const std::string& token);
    void log_out(const std::string& id);

    // Returns what a request of the session that changes something must contain; std::nullopt if there
    // is no such session.
    std::optional<std::string> csrf_token(const std::string& id);
    bool is_csrf_token(const std::string& id, const std::string& token);

  private:
    struct One {
        std::string id, csrf_token;
        Clock::time_point ends;
    };

    const std::string token_;
    const std::function<Clock::time_point()> now_;
    std::mutex mutex_;
    std::list<One> sessions_;  // the oldest first
};

}  // namespace outboxctl
