#include "core/content_type.hpp"

namespace outbox {

// Each of these takes a piece off the front of `text`.

static std::string_view take_token(std::string_view& text) noexcept {
    std::size_t length = 0;
    while (length < text.size() && is_token_character(text[length]))
        length++;
    const std::string_view token = text.substr(0, length);
    text.remove_prefix(length);
    return token;
}

static bool take_character(std::string_view& text, char c) noexcept {
    if (!text.starts_with(c))
        return false;
    text.remove_prefix(1);
    return true;
}

static void take_blanks(std::string_view& text) noexcept {
    while (take_character(text, ' ') || take_character(text, '\t')) {
    }
}

// `text` begins after the opening quote.
static bool take_quoted(std::string_view& text) noexcept {
    while (!text.empty()) {
        const char c = text.front();
        text.remove_prefix(1);
        if (c == '"')
            return true;
        if (c == '\\') {
            if (text.empty() || static_cast<unsigned char>(text.front()) < ' ')
                return false;
            text.remove_prefix(1);
        } else if ((static_cast<unsigned char>(c) < ' ' && c != '\t') || c == 0x7f) {
            return false;
        }
    }
    return false;
}

static bool take_parameter(std::string_view& text) noexcept {
    if (take_token(text).empty() || !take_character(text, '='))
        return false;
    return take_character(text, '"') ? take_quoted(text) : !take_token(text).empty();
}

std::optional<ContentType> ContentType::parse(std::string_view text) noexcept {
    ContentType result;
    result.type = take_token(text);
    if (result.type.empty() || !take_character(text, '/'))
        return std::nullopt;
    result.subtype = take_token(text);
    if (result.subtype.empty())
        return std::nullopt;
    while (!text.empty()) {
        take_blanks(text);
        if (!take_character(text, ';'))
            return std::nullopt;
        take_blanks(text);
        if (!take_parameter(text))
            return std::nullopt;
    }
    return result;
}

bool ContentType::is_json() const noexcept {
    constexpr std::string_view suffix = "+json";
    if (equal_ignoring_case(type, "application") && equal_ignoring_case(subtype, "json"))
        return true;
    return subtype.size() > suffix.size() &&
           equal_ignoring_case(subtype.substr(subtype.size() - suffix.size()), suffix);
}

}  // namespace outbox
