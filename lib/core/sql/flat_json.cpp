#include "core/sql/flat_json.hpp"

#include <cctype>
#include <charconv>
#include <cstdint>
#include <optional>

#include "core/text.hpp"

namespace outbox::sql {

namespace {

class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}

    void skip_blanks() noexcept {
        while (!text_.empty() && (text_.front() == ' ' || text_.front() == '\t' ||
                                  text_.front() == '\n' || text_.front() == '\r'))
            text_.remove_prefix(1);
    }

    bool take(char c) noexcept {
        skip_blanks();
        if (text_.empty() || text_.front() != c)
            return false;
        text_.remove_prefix(1);
        return true;
    }

    bool starts_with(char c) noexcept {
        skip_blanks();
        return !text_.empty() && text_.front() == c;
    }

    bool at_end() noexcept {
        skip_blanks();
        return text_.empty();
    }

    // A string, without its quotes.
    std::optional<std::string_view> string() noexcept {
        if (!take('"'))
            return std::nullopt;
        for (std::size_t i = 0; i < text_.size(); i++) {
            if (text_[i] == '\\') {
                i++;
            } else if (text_[i] == '"') {
                const std::string_view found = text_.substr(0, i);
                text_.remove_prefix(i + 1);
                return found;
            }
        }
        return std::nullopt;
    }

    // A number, true, false or null.
    std::string_view literal() noexcept {
        skip_blanks();
        const std::size_t end = text_.find_first_of(",}] \t\r\n");
        const std::string_view found = text_.substr(0, end);
        text_.remove_prefix(found.size());
        return found;
    }

    bool skip_nested() noexcept {
        int depth = 0;
        do {
            skip_blanks();
            if (text_.empty())
                return false;
            if (text_.front() == '"') {
                if (!string())
                    return false;
                continue;
            }
            depth += text_.front() == '{' || text_.front() == '[';
            depth -= text_.front() == '}' || text_.front() == ']';
            text_.remove_prefix(1);
        } while (depth > 0);
        return true;
    }

  private:
    std::string_view text_;
};

bool read_value(Scanner& scanner, FlatMember& member) {
    if (scanner.starts_with('"')) {
        const auto value = scanner.string();
        member.value = value.value_or("");
        member.kind = Header::Kind::string;
        return value.has_value();
    }
    member.kind = Header::Kind::null;
    if (scanner.starts_with('{') || scanner.starts_with('['))
        return scanner.skip_nested();
    const std::string_view literal = scanner.literal();
    if (literal == "null")
        return true;
    member.value = literal;
    member.kind = Header::Kind::literal;
    return !literal.empty();
}

std::optional<std::uint32_t> hex4(std::string_view text) {
    std::uint32_t value = 0;
    if (text.size() < 4)
        return std::nullopt;
    const auto [end, error] = std::from_chars(text.data(), text.data() + 4, value, 16);
    if (error != std::errc{} || end != text.data() + 4)
        return std::nullopt;
    return value;
}

// `text` begins behind "\u". Returns the number of characters that were used.
std::size_t append_code(std::string& out, std::string_view text) {
    const auto first = hex4(text);
    if (!first)
        return 0;
    const bool high = *first >= 0xD800 && *first < 0xDC00;
    if (high && text.substr(4).starts_with("\\u"))
        if (const auto second = hex4(text.substr(6));
            second && *second >= 0xDC00 && *second < 0xE000) {
            append_utf8(out, 0x10000 + ((*first - 0xD800) << 10) + (*second - 0xDC00));
            return 10;
        }
    append_utf8(out, *first >= 0xD800 && *first < 0xE000 ? 0xFFFD : *first);
    return 4;
}

}  // namespace

bool read_flat_json(std::string_view text, std::vector<FlatMember>& members,
                    std::size_t max_members) {
    members.clear();
    Scanner scanner(text);
    if (!scanner.take('{'))
        return false;
    if (scanner.take('}'))
        return scanner.at_end();
    do {
        FlatMember member;
        const auto name = scanner.string();
        if (!name || !scanner.take(':') || !read_value(scanner, member))
            return false;
        member.name = *name;
        if (members.size() < max_members)
            members.push_back(member);
    } while (scanner.take(','));
    return scanner.take('}') && scanner.at_end();
}

void append_unescaped(std::string& out, std::string_view text) {
    while (!text.empty()) {
        const std::size_t plain = text.find('\\');
        out += text.substr(0, plain);
        if (plain == std::string_view::npos || plain + 1 == text.size())
            return;
        const char code = text[plain + 1];
        text.remove_prefix(plain + 2);
        static constexpr std::string_view codes = "bfnrt", meanings = "\b\f\n\r\t";
        if (const std::size_t i = codes.find(code); i != std::string_view::npos)
            out += meanings[i];
        else if (code != 'u')
            out += code;
        else
            text.remove_prefix(append_code(out, text));
    }
}

}  // namespace outbox::sql
