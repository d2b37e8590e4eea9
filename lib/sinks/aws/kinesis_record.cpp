#include "sinks/aws/kinesis_record.hpp"

#include <algorithm>

#include "cloud/aws/kinesis_protocol.hpp"
#include "core/base64.hpp"
#include "core/text.hpp"
#include "net/sha256.hpp"
#include "sinks/aws/character_count.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

static constexpr std::size_t max_key = 256;  // characters

void append_partition_key(std::string& out, const Event& event) {
    if (event.ordering_key.empty())
        append_uuid(out, event.event_id);
    else if (character_count(event.ordering_key) <= max_key)
        out += event.ordering_key;
    else
        out += sha256_hex(event.ordering_key);
}

void KinesisRecord::assign(const Event& event, const RecordStyle& style) {
    partition_key_.clear();
    append_partition_key(partition_key_, event);
    data_ = event.payload;
    if (style.format == EventFormat::payload)
        return;
    document_.clear();
    append_event_document(document_, event, style.source_prefix);
    data_ = document_;
}

std::size_t record_size_bound(const Event& event, const RecordStyle& style) noexcept {
    constexpr std::size_t max_hash_or_id = 64;
    const std::size_t key = std::max(event.ordering_key.size(), max_hash_or_id);
    if (style.format == EventFormat::payload)
        return key + event.payload.size();
    return key + event_document_bound(event, style.source_prefix);
}

void begin_records(std::string& body, std::string_view address) {
    body += '{';
    append_stream_name(body, address);
    body += R"(,"Records":[)";
}

void add_record(std::string& body, const KinesisRecord& record) {
    body += body.back() == '[' ? "{" : ",{";
    append_json_member(body, "PartitionKey", record.partition_key());
    body += R"(,"Data":")";
    append_base64(body, record.data());
    body += "\"}";
}

void end_records(std::string& body) {
    body += "]}";
}

}  // namespace outbox
