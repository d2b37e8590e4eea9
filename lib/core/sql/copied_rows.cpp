#include "core/sql/copied_rows.hpp"

namespace outbox::sql {

void CopiedRows::add(std::optional<std::string_view> value) {
    const std::string_view bytes = value.value_or(std::string_view());
    values_.push_back({.begin = bytes_.size(), .size = bytes.size(), .is_null = !value});
    bytes_ += bytes;
}

int CopiedRows::size() const noexcept {
    return columns_.empty() ? 0 : static_cast<int>(values_.size() / columns_.size());
}

int CopiedRows::column(const char* name) const noexcept {
    for (std::size_t i = 0; i < columns_.size(); i++)
        if (columns_[i].name == name)
            return static_cast<int>(i);
    return -1;
}

Oid CopiedRows::type_of(int column) const noexcept {
    return columns_[static_cast<std::size_t>(column)].type;
}

bool CopiedRows::is_null(int row, int column) const noexcept {
    return at(row, column).is_null;
}

std::string_view CopiedRows::bytes(int row, int column) const noexcept {
    const Value& value = at(row, column);
    return std::string_view(bytes_).substr(value.begin, value.size);
}

std::size_t CopiedRows::memory() const noexcept {
    return bytes_.capacity() + values_.capacity() * sizeof(Value);
}

}  // namespace outbox::sql
