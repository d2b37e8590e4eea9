#include "core/sql/parameters.hpp"

#include <bit>

namespace outbox::sql {

template <class Integer>
static std::string big_endian(Integer value) {
    std::string bytes(sizeof value, '\0');
    for (std::size_t i = 0; i < sizeof value; i++)
        bytes[i] = static_cast<char>(value >> (8 * (sizeof value - 1 - i)));
    return bytes;
}

Parameters& Parameters::add(Oid type, std::string_view bytes) {
    bytes_ += bytes;
    types_.push_back(type);
    ends_.push_back(bytes_.size());
    nulls_.push_back(false);
    return *this;
}

Parameters& Parameters::null(Oid type) {
    add(type, {});
    nulls_.back() = true;
    return *this;
}

Parameters& Parameters::boolean(bool value) {
    return add(type::boolean, std::string_view(value ? "\1" : "\0", 1));
}

Parameters& Parameters::integer(std::int32_t value) {
    return add(type::int4, big_endian(static_cast<std::uint32_t>(value)));
}

Parameters& Parameters::bigint(std::int64_t value) {
    return add(type::int8, big_endian(static_cast<std::uint64_t>(value)));
}

Parameters& Parameters::number(double value) {
    return add(type::float8, big_endian(std::bit_cast<std::uint64_t>(value)));
}

Parameters& Parameters::text(std::string_view value) {
    return add(type::text, value);
}

Parameters& Parameters::uuid(const Uuid& value) {
    return add(type::uuid, {reinterpret_cast<const char*>(value.data()), value.size()});
}

// Microseconds, days, months.
Parameters& Parameters::interval(Micros value) {
    return add(type::interval,
               big_endian(static_cast<std::uint64_t>(value)) + big_endian(std::uint64_t{0}));
}

Parameters& Parameters::jsonb(std::string_view value) {
    return add(type::jsonb, '\1' + std::string(value));  // version of the format
}

Parameters& Parameters::array(Oid type, std::string_view bytes) {
    return add(type, bytes);
}

std::string_view Parameters::bytes(std::size_t number) const noexcept {
    const std::size_t begin = number == 0 ? 0 : ends_[number - 1];
    return std::string_view(bytes_).substr(begin, ends_[number] - begin);
}

}  // namespace outbox::sql
