// Reads SQL scripts: their statements, and the tokens of a statement.
#pragma once

#include <cctype>
#include <string>
#include <string_view>

inline bool is_space(char c) {
    return std::isspace(static_cast<unsigned char>(c)) != 0;
}

inline std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_space(text.front()))
        text.remove_prefix(1);
    while (!text.empty() && is_space(text.back()))
        text.remove_suffix(1);
    return text;
}

inline bool is_part_of_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Splits SQL into words, strings, comments, and single characters of all else, spaces included.
class Tokens {
  public:
    explicit Tokens(std::string_view text) : text_(text) {}

    bool at_end() const { return at_ == text_.size(); }
    bool at_space() const { return !at_end() && is_space(text_[at_]); }
    bool at_comment() const { return text_.substr(at_, 2) == "--"; }
    std::size_t position() const { return at_; }

    std::string_view next() {
        const std::size_t begin = at_;
        if (at_comment())
            skip_to("\n");
        else if (text_[at_] == '\'' || text_[at_] == '"')
            skip_to(std::string(1, text_[at_]));
        else if (const std::string tag = dollar_quote(); !tag.empty())
            skip_to(tag);
        else if (is_part_of_word(text_[at_]))
            while (!at_end() && is_part_of_word(text_[at_]))
                ++at_;
        else
            ++at_;
        return text_.substr(begin, at_ - begin);
    }

  private:
    // Returns the delimiter of a dollar-quoted string that begins here; empty for a parameter ($1).
    std::string dollar_quote() const {
        std::size_t end = at_ + 1;
        while (end < text_.size() && is_part_of_word(text_[end]))
            ++end;
        const bool is_quote = text_[at_] == '$' && end < text_.size() && text_[end] == '$' &&
                              std::isdigit(static_cast<unsigned char>(text_[at_ + 1])) == 0;
        return is_quote ? std::string(text_.substr(at_, end + 1 - at_)) : std::string();
    }

    // Skips the delimiter here, and everything up to the next one.
    void skip_to(const std::string& delimiter) {
        const std::size_t end = text_.find(delimiter, at_ + delimiter.size());
        at_ = end == std::string_view::npos ? text_.size() : end + delimiter.size();
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

// Splits a script into statements. Semicolons within strings, comments and BEGIN ATOMIC … END do not
// end a statement.
class Statements {
  public:
    explicit Statements(std::string_view text) : text_(text), tokens_(text) {}

    // Reads the next statement; false at the end of the script. `comment` is all text before the
    // statement, or at the end of the script.
    bool next(std::string_view& comment, std::string_view& statement) {
        const std::size_t begin = tokens_.position();
        while (tokens_.at_space() || tokens_.at_comment())
            tokens_.next();
        const std::size_t first = tokens_.position();
        comment = text_.substr(begin, first - begin);
        if (tokens_.at_end())
            return false;
        int depth = 0;
        while (!tokens_.at_end()) {
            const std::string_view token = tokens_.next();
            if (token == "ATOMIC" || token == "CASE")
                ++depth;
            else if (token == "END")
                --depth;
            else if (token == ";" && depth <= 0)
                break;
        }
        statement = text_.substr(first, tokens_.position() - first);
        return true;
    }

  private:
    std::string_view text_;
    Tokens tokens_;
};
