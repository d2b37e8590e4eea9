#include "net/nats/nats_parser.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view line_end = "\r\n";
static constexpr std::string_view version_line = "NATS/1.0";

static bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

static NatsInput malformed(std::string_view what) {
    return {.kind = NatsInput::Kind::malformed, .text = what};
}

static std::optional<std::size_t> number_in(std::string_view text) {
    std::size_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (text.empty() || error != std::errc{} || end != text.data() + text.size())
        return std::nullopt;
    return value;
}

namespace {

struct Words {
    std::array<std::string_view, 5> all;
    std::size_t count = 0;
    bool too_many = false;
};

Words words_of(std::string_view text) {
    Words words;
    while (true) {
        const auto begin = std::find_if_not(text.begin(), text.end(), is_blank);
        text.remove_prefix(static_cast<std::size_t>(begin - text.begin()));
        if (text.empty())
            return words;
        const auto end = std::find_if(text.begin(), text.end(), is_blank);
        const auto size = static_cast<std::size_t>(end - text.begin());
        if (words.count == words.all.size()) {
            words.too_many = true;
            return words;
        }
        words.all[words.count++] = text.substr(0, size);
        text.remove_prefix(size);
    }
}

}  // namespace

// "MSG <subject> <subscription> [reply] <size>", or "HMSG" with the size of the headers before the last.
static NatsInput read_message(std::string_view bytes, std::string_view arguments,
                              std::size_t line_size, bool has_headers,
                              const NatsLimits& limits) noexcept {
    const Words words = words_of(arguments);
    const std::size_t least = has_headers ? 4 : 3;
    if (words.too_many || (words.count != least && words.count != least + 1))
        return malformed("a message with a malformed first line");
    const auto subscription = number_in(words.all[1]);
    const auto size = number_in(words.all[words.count - 1]);
    const auto headers = has_headers ? number_in(words.all[words.count - 2]) : std::size_t{0};
    if (!subscription || !size || !headers || *headers > *size)
        return malformed("a message with a malformed first line");
    if (*size > limits.message)
        return malformed("a message that is too large");
    const std::size_t all = line_size + *size + line_end.size();
    if (bytes.size() < all)
        return {};
    if (bytes.substr(all - line_end.size(), line_end.size()) != line_end)
        return malformed("a message that does not end where it should");
    return {.kind = NatsInput::Kind::message,
            .size = all,
            .subject = words.all[0],
            .reply = words.count > least ? words.all[2] : std::string_view(),
            .headers = bytes.substr(line_size, *headers),
            .payload = bytes.substr(line_size + *headers, *size - *headers),
            .subscription = *subscription};
}

static std::string_view unquoted(std::string_view text) {
    text = trim(text);
    if (text.size() >= 2 && text.front() == '\'' && text.back() == '\'')
        return text.substr(1, text.size() - 2);
    return text;
}

NatsInput read_nats(std::string_view bytes, const NatsLimits& limits) noexcept {
    const std::size_t end = bytes.substr(0, limits.line).find(line_end);
    if (end == std::string_view::npos)
        return bytes.size() < limits.line ? NatsInput{} : malformed("a line that is too long");
    const std::string_view line = bytes.substr(0, end);
    const std::size_t line_size = end + line_end.size();
    const std::size_t name_size =
        static_cast<std::size_t>(std::find_if(line.begin(), line.end(), is_blank) - line.begin());
    const std::string_view name = line.substr(0, name_size), rest = line.substr(name_size);
    const auto is = [&](std::string_view operation) {
        return equal_ignoring_case(name, operation);
    };
    using Kind = NatsInput::Kind;
    if (is("MSG") || is("HMSG"))
        return read_message(bytes, rest, line_size, is("HMSG"), limits);
    if (is("PING"))
        return {.kind = Kind::ping, .size = line_size};
    if (is("PONG"))
        return {.kind = Kind::pong, .size = line_size};
    if (is("+OK"))
        return {.kind = Kind::ok, .size = line_size};
    if (is("INFO"))
        return {.kind = Kind::info, .size = line_size, .text = trim(rest)};
    if (is("-ERR"))
        return {.kind = Kind::error, .size = line_size, .text = unquoted(rest)};
    return malformed("a line that is not of the NATS protocol");
}

// -------------------------------------------------------------------------------------------------
// Headers
// -------------------------------------------------------------------------------------------------

static std::string_view first_line(std::string_view headers) noexcept {
    if (!headers.starts_with(version_line))
        return {};
    headers.remove_prefix(version_line.size());
    return trim(headers.substr(0, headers.find(line_end)));
}

int nats_status(std::string_view headers) noexcept {
    const auto code = number_in(first_line(headers).substr(0, 3));
    return code ? static_cast<int>(*code) : 0;
}

std::string_view nats_status_text(std::string_view headers) noexcept {
    const std::string_view line = first_line(headers);
    return line.size() > 3 ? trim(line.substr(3)) : std::string_view();
}

std::string_view nats_header(std::string_view headers, std::string_view name) noexcept {
    std::size_t end = headers.find(line_end);
    while (end != std::string_view::npos) {
        headers.remove_prefix(end + line_end.size());
        end = headers.find(line_end);
        const std::string_view line = headers.substr(0, end);
        const std::size_t colon = line.find(':');
        if (colon != std::string_view::npos && equal_ignoring_case(line.substr(0, colon), name))
            return trim(line.substr(colon + 1));
    }
    return {};
}

}  // namespace outbox
