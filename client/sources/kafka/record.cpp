#include "kafka/record.hpp"

#include <array>
#include <string_view>
#include <utility>

#include "message/decode.hpp"
#include "text.hpp"

namespace inbox::kafka {

using Headers = std::map<std::string, std::string>;

Record record_of(const rd_kafka_message_t& message) {
    Record record{.topic = rd_kafka_topic_name(message.rkt),
                  .partition = message.partition,
                  .offset = message.offset,
                  .key = {},
                  .value = {},
                  .headers = {},
                  .timestamp = rd_kafka_message_timestamp(&message, nullptr)};
    if (message.key != nullptr)
        record.key.assign(static_cast<const char*>(message.key), message.key_len);
    if (message.payload != nullptr)
        record.value.emplace(static_cast<const char*>(message.payload), message.len);
    rd_kafka_headers_t* headers = nullptr;
    if (rd_kafka_message_headers(&message, &headers) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return record;
    const char* name = nullptr;
    const void* value = nullptr;
    std::size_t size = 0;
    for (std::size_t i = 0;
         rd_kafka_header_get_all(headers, i, &name, &value, &size) == RD_KAFKA_RESP_ERR_NO_ERROR;
         i++)
        if (value != nullptr)
            record.headers[name] = std::string(static_cast<const char*>(value), size);
    return record;
}

static std::size_t size_of(const Record& record) {
    std::size_t size = record.key.size() + (record.value ? record.value->size() : 0);
    for (const auto& [name, value] : record.headers)
        size += name.size() + value.size();
    return size;
}

static void rename(Headers& headers, const std::string& from, const std::string& to) {
    if (headers.contains(to))
        return;
    if (auto node = headers.extract(from); !node.empty()) {
        node.key() = to;
        headers.insert(std::move(node));
    }
}

// The Kafka binding of CloudEvents has an underscore where the HTTP binding has a hyphen.
static void name_attributes_of_cloud_event(Headers& headers) {
    if (!headers.contains("ce_id") || !headers.contains("ce_specversion"))
        return;
    Headers renamed;
    for (auto& [name, value] : headers)
        renamed[name.starts_with("ce_") ? "ce-" + name.substr(3) : name] = std::move(value);
    headers = std::move(renamed);
}

// The router calls the id of the event `id`. The names of all other headers are configurable:
// Debezium's documentation has eventType, docs/debezium.md has our names.
static bool name_headers_of_debezium(Headers& headers) {
    const auto id = headers.find("id");
    if (id == headers.end() || !is_uuid(id->second) || headers.contains("event_id"))
        return false;
    rename(headers, "id", "event_id");
    rename(headers, "eventType", "event_type");
    rename(headers, "aggregateType", "aggregate_type");
    rename(headers, "aggregateId", "aggregate_id");
    return true;
}

static void complete_from_debezium(Event& event) {
    if (event.aggregate_id.empty())
        event.aggregate_id = event.ordering_key;  // default of the router
    if (const auto found = event.headers.find("source_event_id");
        found != event.headers.end() && is_uuid(found->second)) {
        event.source_event_id = found->second;
        event.headers.erase(found);
    }
    take_headers(event);
}

// If a topic is created again, its offsets start from 0 again, and another cluster has its own
// offsets. The timestamp tells such records apart.
static std::string name_of(const Record& record) {
    return std::to_string(record.offset) + '@' + std::to_string(record.timestamp);
}

Delivery delivery_from(Record record, const std::string& source) {
    const std::string partition = record.topic + '/' + std::to_string(record.partition);
    Delivery delivery{.event = {},
                      .source = source,
                      .message_id = partition + '/' + std::to_string(record.offset),
                      .published_at = {},
                      .handle = {},
                      .size = size_of(record)};
    delivery.published_at = time_of(std::chrono::milliseconds(record.timestamp)).value_or(Time());
    name_attributes_of_cloud_event(record.headers);
    const bool is_of_debezium = name_headers_of_debezium(record.headers);
    delivery.event = decode_message(record.headers, record.value.value_or(""),
                                    {.source = "kafka:" + partition,
                                     .message_id = name_of(record),
                                     .topic = record.topic,
                                     .ordering_key = record.key,
                                     .published_at = delivery.published_at});
    if (!record.value)
        delivery.event.payload.reset();
    else if (record.value->empty() && !delivery.event.payload)
        delivery.event.payload.emplace();
    if (is_of_debezium)
        complete_from_debezium(delivery.event);
    return delivery;
}

}  // namespace inbox::kafka
