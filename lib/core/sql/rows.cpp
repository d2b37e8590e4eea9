#include "core/sql/rows.hpp"

#include <bit>

namespace outbox::sql {

namespace {

// Number of dimensions, whether there are nulls, type of the elements; then length and lower bound
// of the one dimension.
constexpr std::size_t array_header = 20;
constexpr std::size_t empty_array = 12;

}  // namespace

std::optional<std::vector<ArrayElement>> array_elements(std::string_view bytes, Oid element_type) {
    std::vector<ArrayElement> elements;
    if (bytes.size() < empty_array)
        return std::nullopt;
    const auto dimensions = big_endian_at<std::uint32_t>(bytes.data());
    if (dimensions == 0)
        return elements;
    if (dimensions != 1 || bytes.size() < array_header ||
        big_endian_at<std::uint32_t>(bytes.data() + 8) != element_type)
        return std::nullopt;
    const std::size_t count = big_endian_at<std::uint32_t>(bytes.data() + 12);
    bytes.remove_prefix(array_header);
    if (count > bytes.size() / 4)  // each has a length
        return std::nullopt;
    elements.reserve(count);
    for (std::size_t i = 0; i < count; i++) {
        if (bytes.size() < 4)
            return std::nullopt;
        const auto size = static_cast<std::int32_t>(big_endian_at<std::uint32_t>(bytes.data()));
        bytes.remove_prefix(4);
        if (size < 0) {
            elements.push_back({});
            continue;
        }
        if (static_cast<std::size_t>(size) > bytes.size())
            return std::nullopt;
        elements.push_back({bytes.data(), static_cast<std::size_t>(size)});
        bytes.remove_prefix(static_cast<std::size_t>(size));
    }
    return elements;
}

// Calls `add` for each element of this size, or of any size if it is 0.
template <class Add>
static void for_each_element(std::string_view bytes, Oid type, std::size_t size, const Add& add) {
    const auto elements = array_elements(bytes, type);
    if (!elements)
        return;
    for (const ArrayElement& element : *elements)
        if (element.data != nullptr && (size == 0 || element.size == size))
            add(element);
}

int Rows::column(const char* name) const noexcept {
    return source_ == nullptr ? -1 : source_->column(name);
}

Oid Rows::type_of(int column) const noexcept {
    return column < 0 ? 0 : source_->type_of(column);
}

bool Rows::is_null(int row, int column) const noexcept {
    return column < 0 || row >= size() || source_->is_null(row, column);
}

std::string_view Rows::bytes(int row, int column) const noexcept {
    return is_null(row, column) ? std::string_view() : source_->bytes(row, column);
}

bool Rows::boolean(int row, int column) const noexcept {
    const std::string_view value = bytes(row, column);
    return value.size() == 1 && value.front() != '\0';
}

std::optional<std::int32_t> Rows::integer(int row, int column) const noexcept {
    const std::string_view value = bytes(row, column);
    if (value.size() != 4)
        return std::nullopt;
    return static_cast<std::int32_t>(big_endian_at<std::uint32_t>(value.data()));
}

std::optional<std::int64_t> Rows::bigint(int row, int column) const noexcept {
    const std::string_view value = bytes(row, column);
    if (value.size() != 8)
        return std::nullopt;
    return static_cast<std::int64_t>(big_endian_at<std::uint64_t>(value.data()));
}

std::optional<double> Rows::number(int row, int column) const noexcept {
    const std::optional<std::int64_t> bits = bigint(row, column);
    if (!bits || type_of(column) != type::float8)
        return std::nullopt;
    return std::bit_cast<double>(*bits);
}

std::optional<std::string> Rows::text(int row, int column) const {
    if (is_null(row, column))
        return std::nullopt;
    return std::string(bytes(row, column));
}

std::vector<std::int32_t> Rows::integers(int row, int column) const {
    std::vector<std::int32_t> values;
    for_each_element(bytes(row, column), type::int4, 4, [&](const ArrayElement& element) {
        values.push_back(static_cast<std::int32_t>(big_endian_at<std::uint32_t>(element.data)));
    });
    return values;
}

std::vector<std::int64_t> Rows::bigints(int row, int column) const {
    std::vector<std::int64_t> values;
    for_each_element(bytes(row, column), type::int8, 8, [&](const ArrayElement& element) {
        values.push_back(static_cast<std::int64_t>(big_endian_at<std::uint64_t>(element.data)));
    });
    return values;
}

std::vector<std::string> Rows::texts(int row, int column) const {
    std::vector<std::string> values;
    for_each_element(bytes(row, column), type::text, 0, [&](const ArrayElement& element) {
        values.emplace_back(element.data, element.size);
    });
    return values;
}

std::vector<std::uint16_t> Rows::smallints(int row, int column) const {
    std::vector<std::uint16_t> values;
    for_each_element(bytes(row, column), type::int2, 2, [&](const ArrayElement& element) {
        values.push_back(big_endian_at<std::uint16_t>(element.data));
    });
    return values;
}

std::vector<Place> Rows::places(int row, int column) const {
    std::vector<Place> values;
    for_each_element(bytes(row, column), type::tid, 6, [&](const ArrayElement& element) {
        values.push_back({big_endian_at<std::uint32_t>(element.data),
                          big_endian_at<std::uint16_t>(element.data + 4)});
    });
    return values;
}

}  // namespace outbox::sql
