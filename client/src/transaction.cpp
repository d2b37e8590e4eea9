#include "inbox/transaction.hpp"

#include <charconv>
#include <stdexcept>

#include "text.hpp"

namespace inbox {

Parameter bytes(std::string_view data) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text = "\\x";
    text.reserve(2 + 2 * data.size());
    for (const unsigned char byte : data) {
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

static void check_place(PGresult* result, int row, int column) {
    if (row < 0 || row >= PQntuples(result) || column < 0 || column >= PQnfields(result))
        throw std::out_of_range("the result has no row " + std::to_string(row) + ", column " +
                                std::to_string(column));
}

bool Result::is_null(int row, int column) const {
    check_place(result_.get(), row, column);
    return PQgetisnull(result_.get(), row, column) != 0;
}

std::string_view Result::text(int row, int column) const {
    check_place(result_.get(), row, column);
    return {PQgetvalue(result_.get(), row, column),
            static_cast<std::size_t>(PQgetlength(result_.get(), row, column))};
}

std::int64_t Result::affected() const {
    const std::string_view text = PQcmdTuples(result_.get());
    std::int64_t number = 0;
    std::from_chars(text.data(), text.data() + text.size(), number);
    return number;
}

void Transaction::apply(const std::string& projection, const std::vector<std::string>& key_columns,
                        const std::string& version_column, const std::string& row_json) {
    queue("SELECT inbox.apply($1::regclass, $2::text[], $3, $4::jsonb)",
          {projection, array_literal(key_columns), version_column, row_json});
}

void Transaction::remove(const std::string& projection, const std::vector<std::string>& key_columns,
                         const std::string& version_column, const std::string& row_json) {
    queue("SELECT inbox.remove($1::regclass, $2::text[], $3, $4::jsonb)",
          {projection, array_literal(key_columns), version_column, row_json});
}

}  // namespace inbox
