// The parameters of a statement, in PostgreSQL's binary format.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/sql/types.hpp"
#include "core/text.hpp"

namespace outbox::sql {

class Parameters {
  public:
    Parameters& null(Oid type);
    Parameters& boolean(bool value);
    Parameters& integer(std::int32_t value);
    Parameters& bigint(std::int64_t value);
    Parameters& number(double value);
    Parameters& text(std::string_view value);
    Parameters& uuid(const Uuid& value);
    Parameters& interval(Micros value);
    Parameters& jsonb(std::string_view value);
    // `bytes` are those of an array, as BinaryArray makes them.
    Parameters& array(Oid type, std::string_view bytes);

    std::size_t size() const noexcept { return types_.size(); }
    const Oid* types() const noexcept { return types_.data(); }
    bool is_null(std::size_t number) const noexcept { return nulls_[number]; }
    // Valid until the next change.
    std::string_view bytes(std::size_t number) const noexcept;

  private:
    Parameters& add(Oid type, std::string_view bytes);

    std::string bytes_;
    std::vector<Oid> types_;
    std::vector<std::size_t> ends_;  // of each value in bytes_
    std::vector<bool> nulls_;
};

}  // namespace outbox::sql
