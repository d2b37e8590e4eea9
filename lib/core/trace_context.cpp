#include "core/trace_context.hpp"

#include <algorithm>

#include "core/percent.hpp"

namespace outbox {

static constexpr std::size_t max_comment_length = 4096;
static constexpr std::string_view blanks = " \t\r\n\f";

static bool is_hex(std::string_view text) {
    return std::all_of(text.begin(), text.end(),
                       [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

static bool is_zero(std::string_view text) {
    return text.find_first_not_of('0') == std::string_view::npos;
}

bool is_traceparent(std::string_view text) noexcept {
    if (text.size() != traceparent_length || text[2] != '-' || text[35] != '-' || text[52] != '-')
        return false;
    const std::string_view version = text.substr(0, 2), trace = text.substr(3, 32),
                           parent = text.substr(36, 16), flags = text.substr(53);
    return is_hex(version) && is_hex(trace) && is_hex(parent) && is_hex(flags) && version != "ff" &&
           !is_zero(trace) && !is_zero(parent);
}

bool is_tracestate(std::string_view text) noexcept {
    return text.size() <= max_tracestate_length &&
           std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// ---------------------------------------------------------------------------------------------
// Comments
// ---------------------------------------------------------------------------------------------

// Returns what is between the last "/*" and the "*/" that the statement ends with.
static std::string_view comment_at_end(std::string_view statement) {
    const std::size_t last = statement.find_last_not_of(" \t\r\n\f;");
    statement = statement.substr(0, last + 1);
    if (!statement.ends_with("*/"))
        return {};
    statement.remove_suffix(2);
    if (statement.size() > max_comment_length)
        statement.remove_prefix(statement.size() - max_comment_length);
    const std::size_t begin = statement.rfind("/*");
    return begin == std::string_view::npos ? std::string_view{} : statement.substr(begin + 2);
}

static std::string_view comment_at_start(std::string_view statement) {
    statement.remove_prefix(std::min(statement.find_first_not_of(blanks), statement.size()));
    if (!statement.starts_with("/*"))
        return {};
    statement = statement.substr(2, max_comment_length);
    const std::size_t end = statement.find("*/");
    return end == std::string_view::npos ? std::string_view{} : statement.substr(0, end);
}

struct Member {
    std::string_view name;
    std::string_view value;  // still encoded
};

// Takes name='value' off the front of a comment.
static std::optional<Member> take_member(std::string_view& rest) {
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n\f,"), rest.size()));
    const std::size_t equals = rest.find("='");
    if (equals == std::string_view::npos)
        return std::nullopt;
    const std::string_view name = rest.substr(0, equals);
    rest.remove_prefix(equals + 2);
    for (std::size_t i = 0; i < rest.size(); i++) {
        if (rest[i] == '\\') {
            i++;  // \' does not end the value
        } else if (rest[i] == '\'') {
            const std::string_view value = rest.substr(0, i);
            rest.remove_prefix(i + 1);
            return Member{name, value};
        }
    }
    return std::nullopt;
}

// Returns what was written into `to`, without the zero byte at its end; std::nullopt if the value
// is too long or malformed.
template <std::size_t size>
static std::optional<std::string_view> decode(std::string_view value, char (&to)[size]) {
    std::size_t length = 0;
    for (std::size_t i = 0; i < value.size(); i++) {
        char c = value[i];
        if (c == '%') {
            const std::optional<char> byte = percent_byte(value.substr(i));
            if (!byte)
                return std::nullopt;
            c = *byte;
            i += 2;
        } else if (c == '\\') {
            if (++i == value.size())
                return std::nullopt;
            c = value[i];
        }
        if (length == size - 1)
            return std::nullopt;
        to[length++] = c;
    }
    to[length] = '\0';
    return std::string_view{to, length};
}

static std::optional<TraceContext> parse_comment(std::string_view comment) {
    TraceContext context{};
    bool found = false;
    while (const std::optional<Member> member = take_member(comment)) {
        if (member->name == "traceparent") {
            const auto value = decode(member->value, context.traceparent);
            found = value && is_traceparent(*value);
        } else if (member->name == "tracestate") {
            const auto value = decode(member->value, context.tracestate);
            if (!value || !is_tracestate(*value))
                context.tracestate[0] = '\0';
        }
    }
    return found ? std::optional(context) : std::nullopt;
}

std::optional<TraceContext> trace_of_comment(std::string_view statement) noexcept {
    const std::optional<TraceContext> context = parse_comment(comment_at_end(statement));
    return context ? context : parse_comment(comment_at_start(statement));
}

}  // namespace outbox
