// Prints a SQL file as scripts have it: with the values of constants (constants.hpp), and with a COMMENT ON
// behind each function. That is the first sentence of the comment above the function, in the form of
// comments in the catalog: with a small letter in front and without a full stop.
//
//     prepare_sql FILE
//
// If the file has a COMMENT ON FUNCTION for a name, functions of this name keep it: what is above them
// is for readers of the source only.
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "constants.hpp"
#include "statements.hpp"

namespace {

constexpr std::string_view create_function = "CREATE FUNCTION ";

// Returns the first paragraph of the comment that ends right above a statement, as one line. An empty
// line ends a comment, and `--` alone a paragraph.
std::string paragraph_above(std::string_view comment) {
    std::string paragraph;
    bool more = true;
    while (!comment.empty()) {
        const std::size_t end = comment.find('\n');
        std::string_view line = trimmed(comment.substr(0, end));
        comment.remove_prefix(end == std::string_view::npos ? comment.size() : end + 1);
        if (line.empty()) {
            paragraph.clear();
            more = true;
            continue;
        }
        line = trimmed(line.substr(2));
        more = more && !line.empty();
        if (more)
            paragraph.append(paragraph.empty() ? "" : " ").append(line);
    }
    return paragraph;
}

// Returns the comment for the catalog; empty if there is no sentence above the statement.
std::string catalog_comment(std::string_view comment) {
    std::string text = paragraph_above(comment);
    std::size_t end = text.find(". ");
    if (end == std::string::npos)
        end = text.ends_with('.') ? text.size() - 1 : 0;
    text.resize(end);
    if (text.size() > 1 && std::isupper(static_cast<unsigned char>(text[1])) == 0)  // JSON stays
        text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
    return text;
}

// Returns the name and the arguments of a function without their defaults.
std::string signature_of(std::string_view statement) {
    std::string signature;
    int depth = 0;
    bool in_default = false;
    bool space = false;
    for (Tokens tokens{statement.substr(create_function.size())}; !tokens.at_end();) {
        const bool is_comment = tokens.at_comment();
        const std::string_view token = tokens.next();
        if (token == "(")
            ++depth;
        else if (token == ")")
            --depth;
        if (depth == 0 || (depth == 1 && token == ","))
            in_default = false;
        else if (depth == 1 && token == "DEFAULT")
            in_default = true;
        if (is_space(token.front())) {
            space = true;
        } else if (!in_default && !is_comment) {
            if (space && token != "," && token != ")" && !signature.ends_with('('))
                signature += ' ';
            signature += token;
            space = false;
        }
        if (depth == 0 && token == ")")
            break;
    }
    return signature;
}

std::string quoted(std::string_view text) {
    std::string result = "'";
    for (const char c : text)
        result.append(c == '\'' ? 2 : 1, c);
    return result + "'";
}

// Returns the COMMENT ON of a statement; empty if it needs none, or the script has one.
std::string comment_on(std::string_view script, std::string_view comment,
                       std::string_view statement) {
    if (!statement.starts_with(create_function))
        return {};
    const std::string signature = signature_of(statement);
    const std::string name = signature.substr(0, signature.find('(') + 1);
    if (script.find("COMMENT ON FUNCTION " + name) != std::string_view::npos)
        return {};
    const std::string text = catalog_comment(comment);
    if (text.empty()) {
        std::fprintf(stderr, "prepare_sql: no sentence above %s)\n", name.c_str());
        std::exit(1);
    }
    return "\nCOMMENT ON FUNCTION " + signature + " IS " + quoted(text) + ";";
}

}  // namespace

int main(int argc, char** argv) {
    std::ifstream file{argc == 2 ? argv[1] : ""};
    if (!file) {
        std::fputs("prepare_sql: cannot read the file\n", stderr);
        return 1;
    }
    const std::string script =
        with_constants(std::string(std::istreambuf_iterator<char>(file), {}));
    Statements statements{script};
    std::string_view comment;
    std::string_view statement;
    std::string result;
    while (statements.next(comment, statement))
        result.append(comment).append(statement).append(comment_on(script, comment, statement));
    result.append(comment);
    std::fwrite(result.data(), 1, result.size(), stdout);
}
