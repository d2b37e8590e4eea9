// The rows that a statement returned, in PostgreSQL's binary format.
//
// The server is trusted to run our functions, not to send well-formed values: each one is checked
// for its length. A value of another length, or of another type than asked for, reads as null.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sql/types.hpp"
#include "core/text.hpp"

namespace outbox::sql {

// Holds the values of rows: an answer of libpq, or a copy of an answer of SPI.
struct RowSource {
    virtual ~RowSource() = default;
    virtual int size() const noexcept = 0;
    virtual int column(const char* name) const noexcept = 0;  // -1 if there is none
    virtual Oid type_of(int column) const noexcept = 0;
    virtual bool is_null(int row, int column) const noexcept = 0;
    virtual std::string_view bytes(int row, int column) const noexcept = 0;
    virtual std::size_t memory() const noexcept = 0;
};

// A row version: block, offset.
struct Place {
    std::uint32_t block = 0;
    std::uint16_t offset = 0;

    bool operator==(const Place&) const = default;
};

// Values are valid as long as the rows.
class Rows {
  public:
    Rows() = default;
    explicit Rows(std::unique_ptr<RowSource> source) : source_(std::move(source)) {}

    int size() const noexcept { return source_ == nullptr ? 0 : source_->size(); }
    // The number of a column, or -1. All functions below return null for column -1.
    int column(const char* name) const noexcept;
    Oid type_of(int column) const noexcept;

    bool is_null(int row, int column) const noexcept;
    std::string_view bytes(int row, int column) const noexcept;  // empty if null
    bool boolean(int row, int column) const noexcept;            // false if null
    std::optional<std::int32_t> integer(int row, int column) const noexcept;
    std::optional<std::int64_t> bigint(int row, int column) const noexcept;
    std::optional<double> number(int row, int column) const noexcept;
    std::optional<std::string> text(int row, int column) const;
    // Arrays. Elements that are null are left out.
    std::vector<std::int32_t> integers(int row, int column) const;
    std::vector<std::int64_t> bigints(int row, int column) const;
    std::vector<std::string> texts(int row, int column) const;
    std::vector<std::uint16_t> smallints(int row, int column) const;
    std::vector<Place> places(int row, int column) const;

    std::size_t memory() const noexcept { return source_ == nullptr ? 0 : source_->memory(); }

  private:
    std::unique_ptr<RowSource> source_;
};

// Reads a number in network byte order.
template <class Integer>
Integer big_endian_at(const char* bytes) noexcept {
    Integer value = 0;
    for (std::size_t i = 0; i < sizeof value; i++)
        value = static_cast<Integer>(value << 8 | static_cast<unsigned char>(bytes[i]));
    return value;
}

// The elements of an array in binary format (array_send in the server). Not an array, or not of
// this type: std::nullopt. An element that is null has no data.
struct ArrayElement {
    const char* data = nullptr;
    std::size_t size = 0;
};
std::optional<std::vector<ArrayElement>> array_elements(std::string_view bytes, Oid element_type);

}  // namespace outbox::sql
