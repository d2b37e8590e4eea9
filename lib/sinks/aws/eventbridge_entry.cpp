#include "sinks/aws/eventbridge_entry.hpp"

#include <algorithm>

#include "core/json_check.hpp"
#include "core/text.hpp"
#include "core/trace_context.hpp"
#include "sinks/aws/character_count.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

static constexpr std::size_t time_size = 14;         // as the service counts it
static constexpr std::size_t max_detail_type = 128;  // characters

static bool is_json_object(std::string_view payload) noexcept {
    const std::size_t first = payload.find_first_not_of(" \t\r\n");
    return first != payload.npos && payload[first] == '{' && is_json_value(payload);
}

std::string trace_header_of(std::string_view traceparent) {
    if (!is_traceparent(traceparent))
        return "";
    const char last_flag = traceparent[54];
    const bool sampled = ((last_flag <= '9' ? last_flag - '0' : last_flag - 'a' + 10) & 1) != 0;
    std::string header = "Root=1-";
    header += traceparent.substr(3, 8);
    header += '-';
    header += traceparent.substr(11, 24);
    header += ";Parent=";
    header += traceparent.substr(36, 16);
    header += sampled ? ";Sampled=1" : ";Sampled=0";
    return header;
}

std::optional<std::string> EventBridgeEntry::assign(const Event& event, const EntryStyle& style) {
    event_ = &event;
    // The service confirms an event with a longer type, and drops it.
    if (const std::size_t length = character_count(event.event_type); length > max_detail_type)
        return "the event type has " + std::to_string(length) +
               " characters, EventBridge takes at most " + std::to_string(max_detail_type);
    source_.clear();
    style.source.append_to(source_, event, style.database);
    if (style.format == EventFormat::payload) {
        if (!is_json_object(event.payload))
            return "the payload is not a JSON object, which the format \"payload\" needs";
        detail_ = event.payload;
    } else {
        document_.clear();
        append_event_document(document_, event, style.source_prefix);
        detail_ = document_;
    }
    trace_header_.clear();
    for (const Header& header : event.headers)
        if (header.name == "traceparent" && header.kind == Header::Kind::string)
            trace_header_ = trace_header_of(header.value);
    return std::nullopt;
}

std::size_t EventBridgeEntry::size() const {
    return time_size + source_.size() + event_->event_type.size() + detail_.size();
}

void EventBridgeEntry::append_to(std::string& body, std::string_view bus) const {
    body += body.back() == '[' ? R"({"Time":)" : R"(,{"Time":)";
    append_integer(body, event_->occurred_at / seconds(1));
    const auto member = [&](std::string_view name, std::string_view value) {
        body += ',';
        append_json_member(body, name, value);
    };
    member("EventBusName", bus);
    member("Source", source_);
    member("DetailType", event_->event_type);
    member("Detail", detail_);
    if (!trace_header_.empty())
        member("TraceHeader", trace_header_);
    body += '}';
}

std::size_t entry_size_bound(const Event& event, const EntryStyle& style) noexcept {
    // Each field of the template has at least this length there.
    constexpr std::size_t shortest_field = 7;
    const std::size_t max_value = std::max({event.topic.size(), event.aggregate_type.size(),
                                            event.event_type.size(), style.database.size()});
    const std::size_t source = style.source_text + (style.source_text / shortest_field) * max_value;
    const std::size_t detail = style.format == EventFormat::payload
                                   ? event.payload.size()
                                   : event_document_bound(event, style.source_prefix);
    return time_size + source + event.event_type.size() + detail;
}

}  // namespace outbox
