#include "session_use.hpp"

#include <algorithm>
#include <array>

namespace inbox {

static bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static char lower(char c) {
    return is_letter(c) ? static_cast<char>(c | 0x20) : c;
}

static bool equal(char a, char b) {
    return lower(a) == b;
}

// Removes what may be before the first word: space, comments and parentheses.
static std::string_view from_first_word(std::string_view text) {
    for (;;) {
        text.remove_prefix(std::min(text.find_first_not_of(" \t\r\n\f\v("), text.size()));
        std::size_t end = 0;
        if (text.starts_with("--"))
            end = text.find('\n');
        else if (text.starts_with("/*"))
            end = text.find("*/");
        else
            return text;
        text.remove_prefix(end == text.npos ? text.size() : end + (text[end] == '*' ? 2 : 1));
    }
}

bool may_change_session(std::string_view statement) {
    static constexpr std::array<std::string_view, 8> changes_rows = {
        "select", "insert", "update", "delete", "merge", "with", "values", "table"};
    static constexpr std::array<std::string_view, 3> functions = {"set_config", "_advisory_",
                                                                  "into temp"};
    const std::string_view text = from_first_word(statement);
    const std::string_view word(text.begin(), std::ranges::find_if_not(text, is_letter));
    const auto is_word = [&](std::string_view known) {
        return std::ranges::equal(word, known, equal);
    };
    if (std::ranges::none_of(changes_rows, is_word))
        return true;
    return std::ranges::any_of(functions, [&](std::string_view name) {
        return !std::ranges::search(text, name, equal).empty();
    });
}

}  // namespace inbox
