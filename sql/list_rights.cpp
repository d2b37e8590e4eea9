// Prints parts_of_right() of a schema: the lines of objects.txt as arrays of names.
//
//     list_rights objects.txt SCHEMA
#include <cstdio>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "statements.hpp"

namespace {

std::vector<std::string_view> split(std::string_view text, char separator) {
    std::vector<std::string_view> parts;
    while (true) {
        const std::size_t end = text.find(separator);
        parts.push_back(trimmed(text.substr(0, end)));
        if (end == std::string_view::npos)
            return parts;
        text.remove_prefix(end + 1);
    }
}

// The names that each right includes, in the order of the file.
class Rights {
  public:
    void add(std::string_view right, std::string_view name) {
        if (right.empty() || right == "owner" || right == "everybody")
            return;
        std::string& names = of(right);
        names.append(names.empty() ? "'" : ", '").append(name).append("'");
    }
    void print() const {
        for (const auto& [right, names] : rights_)
            std::printf("             WHEN '%s' THEN ARRAY[%s]\n", right.c_str(), names.c_str());
    }

  private:
    std::string& of(std::string_view right) {
        for (auto& [known, names] : rights_)
            if (known == right)
                return names;
        return rights_.emplace_back(right, "").second;
    }

    std::vector<std::pair<std::string, std::string>> rights_;
};

}  // namespace

int main(int argc, char** argv) {
    std::ifstream file{argc == 3 ? argv[1] : ""};
    if (!file) {
        std::fputs("list_rights: cannot read the file\n", stderr);
        return 1;
    }
    const std::string schema = argv[2];
    Rights rights;
    for (std::string line; std::getline(file, line);) {
        const std::vector<std::string_view> columns = split(line, '|');
        const std::string_view object = columns[0];
        const std::size_t dot = object.find('.');
        const std::string_view schema_of = object.substr(0, dot);
        if (columns.size() < 2 || (schema_of != schema && schema_of != schema + "_internal"))
            continue;
        for (const std::string_view right : split(columns[1], ','))
            rights.add(right, object.substr(dot + 1, object.find('(') - dot - 1));
    }
    std::printf(
        "-- Returns the objects that a right includes: names of functions, views and types. They "
        "come "
        "from\n"
        "-- sql/objects.txt.\n"
        "CREATE FUNCTION %s_internal.parts_of_right(right_to text)\n"
        "RETURNS text[]\n"
        "LANGUAGE sql IMMUTABLE STRICT\n"
        "SET search_path = pg_catalog, pg_temp\n"
        "BEGIN ATOMIC\n"
        "    SELECT CASE right_to\n",
        schema.c_str());
    rights.print();
    std::puts("           END;\nEND;");
}
