#include "event_row.hpp"

#include <stdexcept>
#include <utility>

#include "inbox/error.hpp"
#include "text.hpp"

namespace inbox {

// ------------------------------------------------------------------------------------------------
// Binary formats
// ------------------------------------------------------------------------------------------------

static std::int64_t integer(std::string_view bytes) {
    std::uint64_t value = 0;
    for (const unsigned char byte : bytes)
        value = value << 8 | byte;
    return bytes.size() == 4 ? static_cast<std::int32_t>(value) : static_cast<std::int64_t>(value);
}

// Converts microseconds since 2000.
static Time timestamp(std::string_view bytes) {
    using namespace std::chrono;
    return Time{sys_days{2000y / January / 1}.time_since_epoch() + microseconds{integer(bytes)}};
}

static std::string uuid_text(std::string_view bytes) {
    static constexpr char digits[] = "0123456789abcdef";
    std::string text;
    text.reserve(36);
    for (std::size_t i = 0; i < bytes.size(); i++) {
        if (i == 4 || i == 6 || i == 8 || i == 10)
            text += '-';
        const auto byte = static_cast<unsigned char>(bytes[i]);
        text += digits[byte >> 4];
        text += digits[byte & 15];
    }
    return text;
}

// ------------------------------------------------------------------------------------------------
// Rows
// ------------------------------------------------------------------------------------------------

EventRows::EventRows(Result result)
    : result_(std::move(result)),
      position_(column("position")),
      occurred_at_(column("occurred_at")),
      event_id_(column("event_id")),
      version_(column("version")),
      schema_version_(column("schema_version")),
      source_event_id_(column("source_event_id")),
      topic_(column("topic")),
      aggregate_type_(column("aggregate_type")),
      aggregate_id_(column("aggregate_id")),
      event_type_(column("event_type")),
      ordering_key_(column("ordering_key")),
      content_type_(column("content_type")),
      headers_(column("headers")),
      payload_(column("payload")) {}

int EventRows::column(const char* name) const {
    const int number = PQfnumber(result_.native(), name);
    if (number < 0)
        throw DatabaseError("42703",
                            std::string("the database is of another version: no column ") + name);
    return number;
}

std::string_view EventRows::value(int row, int column) const {
    return {PQgetvalue(result_.native(), row, column),
            static_cast<std::size_t>(PQgetlength(result_.native(), row, column))};
}

Event EventRows::event(int row) const {
    const auto is_null = [&](int column) {
        return PQgetisnull(result_.native(), row, column) != 0;
    };
    Event event;
    event.id = uuid_text(value(row, event_id_));
    event.topic = value(row, topic_);
    event.aggregate_type = value(row, aggregate_type_);
    event.aggregate_id = value(row, aggregate_id_);
    event.type = value(row, event_type_);
    if (!is_null(version_))
        event.version = integer(value(row, version_));
    event.schema_version = static_cast<std::int32_t>(integer(value(row, schema_version_)));
    event.ordering_key = value(row, ordering_key_);
    event.content_type = value(row, content_type_);
    if (!is_null(headers_))
        event.headers =
            // After the version of the jsonb format.
            headers_from_json(value(row, headers_).substr(1));
    if (!is_null(payload_))
        event.payload = value(row, payload_);
    event.occurred_at = timestamp(value(row, occurred_at_));
    if (!is_null(source_event_id_))
        event.source_event_id = uuid_text(value(row, source_event_id_));
    return event;
}

std::size_t EventRows::size(int row) const {
    std::size_t bytes = 0;
    for (int i = 0; i < result_.columns(); i++)
        bytes += static_cast<std::size_t>(PQgetlength(result_.native(), row, i));
    return bytes;
}

std::string EventRows::uuid(int row, const char* name) const {
    return uuid_text(value(row, column(name)));
}

std::int64_t EventRows::position(int row) const {
    return integer(value(row, position_));
}

}  // namespace inbox
