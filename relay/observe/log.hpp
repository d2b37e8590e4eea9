// Log lines on standard error: one line a message, as text or as JSON.
//
// Text from outside is made printable and cut. A line is written whole or not at all, and writing
// never waits: if nobody reads the pipe, lines are dropped and counted, and the relay goes on.
#pragma once

#include <atomic>
#include <cstdint>
#include <string_view>

#include "core/result.hpp"
#include "relay/configure/config.hpp"

namespace outbox::relay {

// The database and the destination of a message. Empty texts are left out.
struct LogPlace {
    std::string_view database{};
    std::string_view destination{};
};

class Log {
  public:
    Log(LogFormat format, LogLevel level, int descriptor = 2) noexcept
        : format_(format), level_(level), descriptor_(descriptor) {}

    bool shows(LogLevel level) const noexcept { return level <= level_; }

    // Any thread may write. Callers conceal secrets first (core/secrets.hpp).
    void write(LogLevel level, const LogPlace& place, std::string_view message,
               std::string_view detail = {}, std::string_view hint = {}) noexcept;

    void error(const LogPlace& place, const Error& error) noexcept {
        write(LogLevel::error, place, error.message, error.detail, error.hint);
    }
    void warning(const LogPlace& place, std::string_view message, std::string_view detail = {},
                 std::string_view hint = {}) noexcept {
        write(LogLevel::warning, place, message, detail, hint);
    }
    void info(const LogPlace& place, std::string_view message,
              std::string_view detail = {}) noexcept {
        write(LogLevel::info, place, message, detail);
    }
    void debug(const LogPlace& place, std::string_view message,
               std::string_view detail = {}) noexcept {
        write(LogLevel::debug, place, message, detail);
    }

    std::uint64_t dropped() const noexcept { return dropped_.load(std::memory_order_relaxed); }

  private:
    bool put(std::string_view line) noexcept;
    void drop() noexcept;
    void report_dropped();

    LogFormat format_;
    LogLevel level_;
    int descriptor_;
    std::atomic<std::uint64_t> dropped_{0};
    std::atomic<std::uint64_t> unreported_{0};  // of dropped_
};

}  // namespace outbox::relay
