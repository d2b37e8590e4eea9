#include "table.hpp"

#include <algorithm>
#include <cstdio>
#include <string_view>
#include <vector>

namespace outboxctl {

// Control characters are one byte, or in UTF-8 those from U+0080 to U+009F.
std::string printable(std::string_view text) {
    std::string out;
    const auto escape = [&](unsigned code) {
        char digits[8];
        std::snprintf(digits, sizeof digits, "\\x%02x", code);
        out += code == '\n' ? "\\n" : code == '\t' ? "\\t" : digits;
    };
    for (std::size_t i = 0; i < text.size(); i++) {
        const auto byte = static_cast<unsigned char>(text[i]);
        const auto next = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
        if (byte < 0x20 || byte == 0x7f)
            escape(byte);
        else if (byte == 0xc2 && next >= 0x80 && next < 0xa0)
            escape(static_cast<unsigned char>(text[++i]));
        else
            out += text[i];
    }
    return out;
}

namespace {

constexpr Oid number_types[] = {20, 21, 23, 26, 700, 701, 1700};  // int8, int2, int4, oid, ...

std::size_t width(std::string_view text) {
    return static_cast<std::size_t>(
        std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

struct Column {
    std::vector<std::string> cells;  // the name of the column first
    bool is_number;

    std::size_t widest() const {
        std::size_t most = 0;
        for (const std::string& cell : cells)
            most = std::max(most, width(cell));
        return most;
    }
};

Column column_of(const inbox::Result& rows, int number) {
    const Oid type = PQftype(rows.native(), number);
    Column column{{PQfname(rows.native(), number)},
                  std::find(std::begin(number_types), std::end(number_types), type) !=
                      std::end(number_types)};
    for (int row = 0; row < rows.rows(); row++)
        column.cells.push_back(printable(rows.text(row, number)));
    return column;
}

}  // namespace

std::string table_of(const inbox::Result& rows, int columns) {
    std::vector<std::string> lines(static_cast<std::size_t>(rows.rows()) + 1);
    for (int number = 0; number < columns; number++) {
        const Column column = column_of(rows, number);
        const std::size_t widest = column.widest();
        for (std::size_t i = 0; i < lines.size(); i++) {
            const std::string padding(widest - width(column.cells[i]), ' ');
            lines[i] += number > 0 ? "  " : "";
            lines[i] += column.is_number ? padding + column.cells[i] : column.cells[i] + padding;
        }
    }
    std::string text;
    for (std::string& line : lines) {
        line.erase(line.find_last_not_of(' ') + 1);
        text += (text.empty() ? "" : "\n") + line;
    }
    return rows.rows() == 0 ? text + "\n(none)" : text;
}

std::string record_of(const inbox::Result& rows, int row) {
    std::size_t widest = 0;
    for (int number = 0; number < rows.columns(); number++)
        widest = std::max(widest, width(PQfname(rows.native(), number)));
    std::string text;
    for (int number = 0; number < rows.columns(); number++) {
        if (PQgetisnull(rows.native(), row, number) != 0)
            continue;
        const std::string name = PQfname(rows.native(), number);
        text += (text.empty() ? "" : "\n") + name + std::string(widest - width(name) + 2, ' ') +
                printable(rows.text(row, number));
    }
    return text;
}

}  // namespace outboxctl
