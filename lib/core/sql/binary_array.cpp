#include "core/sql/binary_array.hpp"

#include <bit>
#include <cstring>

#include "core/sql/types.hpp"

namespace outbox::sql {

namespace {

// Number of dimensions, whether there are nulls, element type; then length and lower bound of the
// one dimension.
constexpr std::size_t header_size = 20;

template <class Integer>
void put_big_endian(char* to, Integer value) {
    for (std::size_t i = 0; i < sizeof value; i++)
        to[i] = static_cast<char>(value >> (8 * (sizeof value - 1 - i)));
}

}  // namespace

void BinaryArray::clear() {
    buffer_.assign(header_size, '\0');
    count_ = 0;
    has_null_ = false;
}

void BinaryArray::put_size(std::uint32_t size) {
    char bytes[4];
    put_big_endian(bytes, size);
    buffer_.append(bytes, sizeof bytes);
    count_++;
}

void BinaryArray::add_null() {
    put_size(UINT32_MAX);
    has_null_ = true;
}

void BinaryArray::add(std::string_view bytes) {
    put_size(static_cast<std::uint32_t>(bytes.size()));
    buffer_ += bytes;
}

void BinaryArray::add(std::int32_t value) {
    char bytes[4];
    put_big_endian(bytes, static_cast<std::uint32_t>(value));
    add(std::string_view{bytes, sizeof bytes});
}

void BinaryArray::add(std::int64_t value) {
    char bytes[8];
    put_big_endian(bytes, static_cast<std::uint64_t>(value));
    add(std::string_view{bytes, sizeof bytes});
}

void BinaryArray::add(const Uuid& value) {
    add(std::string_view{reinterpret_cast<const char*>(value.data()), value.size()});
}

void BinaryArray::add_boolean(bool value) {
    add(std::string_view{value ? "\1" : "\0", 1});
}

void BinaryArray::add_number(double value) {
    add(std::bit_cast<std::int64_t>(value));
}

void BinaryArray::add_timestamp(std::int64_t unix_micros) {
    add(unix_micros - postgres_epoch);
}

void BinaryArray::add_json(std::string_view text) {
    put_size(static_cast<std::uint32_t>(text.size() + 1));
    buffer_ += '\1';  // version of the jsonb format
    buffer_ += text;
}

std::string_view BinaryArray::bytes() {
    put_big_endian(buffer_.data(), std::uint32_t{1});
    put_big_endian(buffer_.data() + 4, std::uint32_t{has_null_});
    put_big_endian(buffer_.data() + 8, static_cast<std::uint32_t>(type_));
    put_big_endian(buffer_.data() + 12, count_);
    put_big_endian(buffer_.data() + 16, std::uint32_t{1});
    return buffer_;
}

}  // namespace outbox::sql
