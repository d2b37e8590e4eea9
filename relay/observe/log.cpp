#include "relay/observe/log.hpp"

#include <poll.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "core/text.hpp"

namespace outbox::relay {

namespace {

// A pipe takes a line of at most PIPE_BUF bytes whole, and poll() says whether it has room for it.
// JSON may double a text, and a message may come with both database and destination.
constexpr std::size_t max_message = 700;
constexpr std::size_t max_detail = 700;
constexpr std::size_t max_hint = 300;
constexpr std::size_t max_name = 64;
static_assert(2 * (max_message + max_detail + max_hint + 2 * max_name) + 200 <= PIPE_BUF);

std::string_view name_of(LogLevel level) {
    switch (level) {
        case LogLevel::error:
            return "error";
        case LogLevel::warning:
            return "warning";
        case LogLevel::info:
            return "info";
        case LogLevel::debug:
            return "debug";
    }
    return "";
}

std::string time_of_day() {
    std::string text;
    append_timestamp(text, SystemClock().unix_now());
    return text;
}

// All texts of a line, printable and cut.
struct Texts {
    std::string database, destination, message, detail, hint;
};

std::string as_json(LogLevel level, const Texts& texts) {
    std::string line = "{";
    append_json_member(line, "time", time_of_day());
    line += ',';
    append_json_member(line, "level", name_of(level));
    const auto add = [&line](std::string_view name, const std::string& text) {
        if (text.empty())
            return;
        line += ',';
        append_json_member(line, name, text);
    };
    add("database", texts.database);
    add("destination", texts.destination);
    add("message", texts.message);
    add("detail", texts.detail);
    add("hint", texts.hint);
    return line + "}\n";
}

// 2026-01-31T10:20:30.123456Z error [orders.search] could not connect; detail: ...; hint: ...
std::string as_text(LogLevel level, const Texts& texts) {
    std::string line = time_of_day() + ' ' + std::string(name_of(level)) + ' ';
    if (!texts.database.empty())
        line += '[' + texts.database + (texts.destination.empty() ? "" : ".") + texts.destination +
                "] ";
    line += texts.message;
    if (!texts.detail.empty())
        line += "; detail: " + texts.detail;
    if (!texts.hint.empty())
        line += "; hint: " + texts.hint;
    return line + '\n';
}

std::string line(LogFormat format, LogLevel level, const LogPlace& place, std::string_view message,
                 std::string_view detail, std::string_view hint) {
    const Texts texts{printable(place.database, max_name), printable(place.destination, max_name),
                      printable(message, max_message), printable(detail, max_detail),
                      printable(hint, max_hint)};
    return format == LogFormat::json ? as_json(level, texts) : as_text(level, texts);
}

}  // namespace

bool Log::put(std::string_view line) noexcept {
    pollfd room{descriptor_, POLLOUT, 0};
    if (poll(&room, 1, 0) != 1 || (room.revents & POLLOUT) == 0)
        return false;
    return ::write(descriptor_, line.data(), line.size()) == static_cast<ssize_t>(line.size());
}

void Log::drop() noexcept {
    dropped_++;
    unreported_++;
}

void Log::report_dropped() {
    const std::uint64_t count = unreported_.exchange(0);
    if (count > 0 &&
        !put(line(format_, LogLevel::warning, {}, std::to_string(count) + " log lines were dropped",
                  "Standard error was not read in time.", "")))
        unreported_ += count;
}

void Log::write(LogLevel level, const LogPlace& place, std::string_view message,
                std::string_view detail, std::string_view hint) noexcept try {
    if (!shows(level))
        return;
    report_dropped();
    if (!put(line(format_, level, place, message, detail, hint)))
        drop();
} catch (...) {  // out of memory
    drop();
}

}  // namespace outbox::relay
