// Prints the code of SQL files for an upgrade script: functions, views, triggers, event triggers and
// comments, each as a statement that replaces what is there. Tables, sequences and types hold data,
// and an upgrade changes them by hand.
//
//     list_code FILE...
//
// A DO block is code if it has CREATE OR REPLACE in it. A statement of an unknown kind is an error,
// so that none is left out by accident.
#include <array>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

namespace {

bool is_part_of_word(char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
}

// Splits a script into statements. Semicolons within strings, comments and BEGIN ATOMIC … END do not
// end a statement.
class Statements {
  public:
    explicit Statements(std::string_view text) : text_(text) {}

    // Reads the next statement; false at the end of the script. `comment` is what stands before it.
    bool next(std::string_view& comment, std::string_view& statement) {
        const std::size_t begin = at_;
        while (at_ < text_.size() &&
               (std::isspace(static_cast<unsigned char>(text_[at_])) != 0 || is_comment()))
            skip_token();
        if (at_ == text_.size())
            return false;
        comment = text_.substr(begin, at_ - begin);
        const std::size_t first = at_;
        int depth = 0;
        while (at_ < text_.size()) {
            const std::string_view token = skip_token();
            if (token == "ATOMIC" || token == "CASE")
                ++depth;
            else if (token == "END")
                --depth;
            else if (token == ";" && depth <= 0)
                break;
        }
        statement = text_.substr(first, at_ - first);
        return true;
    }

  private:
    bool is_comment() const { return text_.substr(at_, 2) == "--"; }

    std::string_view skip_token() {
        const std::size_t begin = at_;
        if (is_comment())
            skip_to("\n");
        else if (text_[at_] == '\'' || text_[at_] == '"')
            skip_to(std::string(1, text_[at_]));
        else if (const std::string tag = dollar_quote(); !tag.empty())
            skip_to(tag);
        else if (is_part_of_word(text_[at_]))
            while (at_ < text_.size() && is_part_of_word(text_[at_]))
                ++at_;
        else
            ++at_;
        return text_.substr(begin, at_ - begin);
    }

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

constexpr std::array replaceable{"FUNCTION ", "VIEW ", "TRIGGER "};
constexpr std::array data{"CREATE TABLE ",    "CREATE UNLOGGED TABLE ",
                          "CREATE INDEX ",    "CREATE UNIQUE INDEX ",
                          "CREATE SEQUENCE ", "CREATE TYPE ",
                          "CREATE DOMAIN ",   "CREATE POLICY ",
                          "CREATE SCHEMA ",   "CREATE FOREIGN DATA WRAPPER ",
                          "INSERT ",          "SELECT ",
                          "SET LOCAL ",       "GRANT ",
                          "REVOKE ",          "DO "};

bool has(std::string_view text, std::string_view part) {
    return text.find(part) != std::string_view::npos;
}

// Returns the statement for an upgrade; empty if it is not code.
std::string code_of(std::string_view statement) {
    constexpr std::string_view create = "CREATE ";
    constexpr std::string_view event_trigger = "CREATE EVENT TRIGGER ";
    const std::string text{statement};
    for (const std::string_view kind : replaceable)
        if (statement.starts_with(std::string(create).append(kind)))
            return "CREATE OR REPLACE " + text.substr(create.size());
    if (statement.starts_with(event_trigger) || statement.starts_with("COMMENT ON ") ||
        statement.starts_with("ALTER EVENT TRIGGER ") ||
        (statement.starts_with("ALTER TABLE ") && has(statement, "ABLE ") &&
         has(statement, " TRIGGER ")) ||
        (statement.starts_with("DO ") && has(statement, "CREATE OR REPLACE ")))
        return text;
    if (statement.starts_with("ALTER TABLE ") && has(statement, " ROW LEVEL SECURITY"))
        return {};
    for (const std::string_view kind : data)
        if (statement.starts_with(kind))
            return {};
    std::fprintf(stderr, "list_code: is this data or code? %s\n", text.c_str());
    std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        std::ifstream file{argv[i]};
        if (!file) {
            std::fprintf(stderr, "list_code: cannot read %s\n", argv[i]);
            return 1;
        }
        const std::string script{std::istreambuf_iterator<char>(file), {}};
        Statements statements{script};
        std::string_view comment;
        std::string_view statement;
        while (statements.next(comment, statement)) {
            const std::string code = code_of(statement);
            if (!code.empty())
                std::printf("%.*s%s", static_cast<int>(comment.size()), comment.data(),
                            code.c_str());
        }
        std::puts("");
    }
}
