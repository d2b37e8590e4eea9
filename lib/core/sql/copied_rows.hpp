// Rows whose values were copied from where they were.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sql/rows.hpp"

namespace outbox::sql {

class CopiedRows final : public RowSource {
  public:
    void add_column(std::string_view name, Oid type) {
        columns_.push_back({std::string(name), type});
    }
    // Row by row, as many as there are columns in each.
    void add(std::optional<std::string_view> value);

    int size() const noexcept override;
    int column(const char* name) const noexcept override;
    Oid type_of(int column) const noexcept override;
    bool is_null(int row, int column) const noexcept override;
    std::string_view bytes(int row, int column) const noexcept override;
    std::size_t memory() const noexcept override;

  private:
    struct Column {
        std::string name;
        Oid type;
    };
    struct Value {
        std::size_t begin;
        std::size_t size;
        bool is_null;
    };

    const Value& at(int row, int column) const noexcept {
        return values_[static_cast<std::size_t>(row) * columns_.size() +
                       static_cast<std::size_t>(column)];
    }

    std::vector<Column> columns_;
    std::vector<Value> values_;
    std::string bytes_;
};

}  // namespace outbox::sql
