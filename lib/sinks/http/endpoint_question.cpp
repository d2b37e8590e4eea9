#include "sinks/http/endpoint_question.hpp"

#include "core/text.hpp"

namespace outbox {

// The database limits what one question may fetch.
static constexpr std::int64_t max_events = 1'000;
static constexpr std::int64_t max_selected_bytes = 4 * 1024 * 1024;

template <class Items, class Append>
static void append_list(std::string& out, std::string_view name, const Items& items,
                        Append append) {
    out += ",\"";
    out += name;
    out += "\":[";
    bool first = true;
    for (const auto& item : items) {
        if (!std::exchange(first, false))
            out += ',';
        append(item);
    }
    out += ']';
}

void EndpointQuestion::begin(std::string& list, const EndpointLane& lane) {
    list += list.empty() ? "{" : ",{";
    append_json_member(list, "endpoint", lane.row.name);
}

void EndpointQuestion::fall_back(const EndpointLane& lane) {
    begin(fall_back_, lane);
    append_list(fall_back_, "xids", lane.copies, [&](const EndpointCopy& copy) {
        append_integer(fall_back_, static_cast<std::int64_t>(copy.event->xid));
    });
    append_list(fall_back_, "positions", lane.copies, [&](const EndpointCopy& copy) {
        append_integer(fall_back_, copy.event->position);
    });
    fall_back_ += '}';
}

void EndpointQuestion::settled(const EndpointLane& lane) {
    begin(settled_, lane);
    append_list(settled_, "positions", lane.settled,
                [&](std::int64_t position) { append_integer(settled_, position); });
    settled_ += '}';
}

void EndpointQuestion::refused(const EndpointLane& lane) {
    for (const EndpointRefusal& refusal : lane.refused) {
        begin(refused_, lane);
        refused_ += ",\"xid\":";
        append_integer(refused_, static_cast<std::int64_t>(refusal.xid));
        refused_ += ",\"position\":";
        append_integer(refused_, refusal.position);
        refused_ += ',';
        append_json_member(refused_, "error", refusal.error);
        refused_ += refusal.permanent ? ",\"permanent\":true}" : ",\"permanent\":false}";
    }
}

void EndpointQuestion::fails(const EndpointLane& lane, Micros next_attempt) {
    begin(failing_, lane);
    failing_ += ",\"since\":";
    append_integer(failing_, lane.health.failing_since_unix());
    failing_ += ',';
    append_json_member(failing_, "error", lane.health.error());
    failing_ += ",\"next_attempt\":";
    append_integer(failing_, next_attempt);
    failing_ += '}';
}

void EndpointQuestion::works(const EndpointLane& lane) {
    begin(failing_, lane);
    failing_ += ",\"since\":null}";
}

void EndpointQuestion::gone(const EndpointLane& lane) {
    begin(gone_, lane);
    gone_ += ',';
    append_json_member(gone_, "error", *lane.gone);
    gone_ += '}';
}

void EndpointQuestion::fetch(const EndpointLane& lane) {
    if (!fetch_.empty())
        fetch_ += ',';
    append_json_string(fetch_, lane.row.name);
}

std::size_t EndpointQuestion::size() const noexcept {
    return fall_back_.size() + settled_.size() + refused_.size() + failing_.size() + gone_.size();
}

static void append_place(std::string& out, const EndpointPlace& place) {
    out += "\"place\":{";
    append_json_member(out, "done", place.done.to_string());
    if (place.upto) {
        out += ',';
        append_json_member(out, "upto", place.upto->to_string());
    }
    out += ",\"position\":";
    append_integer(out, place.position);
    out += '}';
}

std::string EndpointQuestion::text(std::string_view known, const EndpointPlace& place) const {
    std::string text = "{";
    append_place(text, place);
    if (!known.empty()) {
        text += ',';
        append_json_member(text, "known", known);
    }
    const auto add = [&](std::string_view name, const std::string& list) {
        if (!list.empty())
            text.append(",\"").append(name).append("\":[").append(list).append("]");
    };
    add("fall_back", fall_back_);
    add("settled", settled_);
    add("refused", refused_);
    add("failing", failing_);
    add("gone", gone_);
    if (!fetch_.empty()) {
        add("fetch", fetch_);
        text += ",\"max_events\":";
        append_integer(text, max_events);
        text += ",\"max_bytes\":";
        append_integer(text, max_selected_bytes);
    }
    text += '}';
    return text;
}

}  // namespace outbox
