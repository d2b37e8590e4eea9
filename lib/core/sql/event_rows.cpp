#include "core/sql/event_rows.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <new>

namespace outbox::sql {

bool EventRows::start(Rows rows) {
    rows_ = std::move(rows);
    static constexpr std::array<const char*, texts> names = {
        "topic", "aggregate_type", "aggregate_id", "event_type", "ordering_key", "content_type"};
    bool complete = true;
    const auto find = [&](const char* name, Oid type) {
        const int column = rows_.column(name);
        complete &= column >= 0 && rows_.type_of(column) == type;
        return column;
    };
    position_ = find("position", type::int8);
    xid_ = find("xid", type::xid8);
    occurred_at_ = find("occurred_at", type::timestamptz);
    event_id_ = find("event_id", type::uuid);
    version_ = find("version", type::int8);
    schema_version_ = find("schema_version", type::int4);
    source_event_id_ = find("source_event_id", type::uuid);
    for (std::size_t i = 0; i < texts; i++)
        text_[i] = find(names[i], type::text);
    headers_ = find("headers", type::jsonb);
    payload_ = find("payload", type::bytea);
    fault_ = rows_.column("fault");
    return complete;
}

std::size_t EventRows::bytes() const noexcept {
    std::size_t sum = 0;
    for (int row = 0; row < rows_.size(); row++)
        sum += rows_.bytes(row, payload_).size() + 300;
    return sum;
}

bool EventRows::read_headers(std::string_view value) {
    members_.clear();
    if (value.empty())
        return true;
    // The first byte is the version of the format.
    return value.front() == '\1' && read_flat_json(value.substr(1), members_);
}

std::size_t EventRows::headers_size() const noexcept {
    std::size_t size = 0;
    for (const FlatMember& member : members_)
        size += member.name.size() + member.value.size();
    return members_.empty() ? 0 : size + EventBlock::headers_bytes(members_.size());
}

void EventRows::copy_headers(Event& event, EventBlock& block) {
    if (members_.empty())
        return;
    Header* headers = block.headers(members_.size());
    event.headers = {headers, members_.size()};
    const auto copy = [&](std::string_view text, bool escaped) {
        if (!escaped || text.find('\\') == std::string_view::npos)
            return block.copy(text.data(), text.size());
        scratch_.clear();
        append_unescaped(scratch_, text);
        return block.copy(scratch_.data(), scratch_.size());
    };
    for (std::size_t i = 0; i < members_.size(); i++) {
        const FlatMember& member = members_[i];
        headers[i] = {copy(member.name, true),
                      copy(member.value, member.kind == Header::Kind::string), member.kind};
    }
}

static Uuid uuid_of(std::string_view bytes) {
    Uuid uuid{};
    if (bytes.size() == uuid.size())
        std::memcpy(uuid.data(), bytes.data(), uuid.size());
    return uuid;
}

EventRows::Copied EventRows::copy(int row, EventBlock& block) {
    const auto position = rows_.bigint(row, position_);
    const auto xid = rows_.bigint(row, xid_);
    const auto occurred_at = rows_.bigint(row, occurred_at_);
    const auto schema_version = rows_.integer(row, schema_version_);
    const std::string_view event_id = rows_.bytes(row, event_id_);
    // The owner of the table may have dropped its constraints.
    if (!position || !xid || !occurred_at || !schema_version || event_id.empty() ||
        std::any_of(std::begin(text_), std::end(text_),
                    [&](int column) { return rows_.is_null(row, column); }) ||
        !read_headers(rows_.bytes(row, headers_)))
        return Copied::unreadable;

    const std::string_view payload = rows_.bytes(row, payload_);
    const std::string_view fault = fault_ >= 0 ? rows_.bytes(row, fault_) : std::string_view();
    std::size_t size = payload.size() + headers_size() + fault.size();
    std::array<std::string_view, texts> values;
    for (std::size_t i = 0; i < texts; i++) {
        values[i] = rows_.bytes(row, text_[i]);
        size += values[i].size();
    }
    Event* event = block.append(size);
    if (event == nullptr) {
        if (block.empty())
            throw std::bad_alloc();
        return Copied::block_is_full;
    }
    const auto copy = [&](std::string_view text) { return block.copy(text.data(), text.size()); };
    event->position = *position;
    event->xid = static_cast<std::uint64_t>(*xid);
    event->occurred_at = *occurred_at + postgres_epoch;
    event->event_id = uuid_of(event_id);
    event->schema_version = *schema_version;
    const auto version = rows_.bigint(row, version_);
    event->has_version = version.has_value();
    event->version = version.value_or(0);
    const std::string_view source = rows_.bytes(row, source_event_id_);
    event->has_source_event_id = !source.empty();
    event->source_event_id = uuid_of(source);
    event->topic = copy(values[0]);
    event->aggregate_type = copy(values[1]);
    event->aggregate_id = copy(values[2]);
    event->event_type = copy(values[3]);
    event->ordering_key = copy(values[4]);
    event->content_type = copy(values[5]);
    event->has_payload = !rows_.is_null(row, payload_);
    event->payload = copy(payload);
    event->fault = copy(fault);
    copy_headers(*event, block);
    return Copied::yes;
}

}  // namespace outbox::sql
