#include "sinks/kafka/producer.hpp"

#include <algorithm>
#include <new>

namespace outbox {

static constexpr std::size_t max_topics = 1000;

// Owns the headers of a record until the library does.
class Headers {
  public:
    Headers() : headers_(rd_kafka_headers_new(16)) {
        if (headers_ == nullptr)
            throw std::bad_alloc();
    }
    ~Headers() {
        if (headers_ != nullptr)
            rd_kafka_headers_destroy(headers_);
    }
    Headers(const Headers&) = delete;
    Headers& operator=(const Headers&) = delete;

    void add(std::string_view name, std::string_view value) {
        if (rd_kafka_header_add(headers_, name.data(), static_cast<ssize_t>(name.size()),
                                value.data() != nullptr ? value.data() : "",
                                static_cast<ssize_t>(value.size())) != RD_KAFKA_RESP_ERR_NO_ERROR)
            throw std::bad_alloc();
    }
    rd_kafka_headers_t* get() const noexcept { return headers_; }
    void release() noexcept { headers_ = nullptr; }

  private:
    rd_kafka_headers_t* headers_;
};

Producer::Producer(const KafkaOptions& options, int wake)
    : partitioner_(options.partitioner),
      has_time_of_event_(options.has_time_of_event),
      client_(options, wake) {}

Producer::~Producer() = default;

bool Producer::has_room_for(const std::string& topic) const {
    return topics_.known.size() < max_topics || topics_.known.contains(topic);
}

Producer::Topic& Producer::topic(const std::string& name) {
    Topic& topic = topics_.known[name];
    if (topic.handle == nullptr)
        topic.handle = client_.new_topic(name, partitioner_, topic.placement);
    return topic;
}

void Producer::begin_batch(const std::string& topic_name) {
    topic(topic_name).placement->begin_batch();
}

// Asks for the topic again; the library takes in the answer by itself. Otherwise it would believe
// for a while that the topic is missing or must not be seen.
void Producer::ask_about(rd_kafka_topic_t* topic) noexcept {
    const rd_kafka_metadata_t* metadata = nullptr;
    if (rd_kafka_metadata(client_.get(), 0, topic, &metadata, 0) == RD_KAFKA_RESP_ERR_NO_ERROR)
        rd_kafka_metadata_destroy(metadata);
}

// A broker deletes a record when it is older than the topic keeps records. One with the time of an
// old event could be gone before a consumer has read it.
std::int64_t Producer::timestamp_of(const Event& event) const noexcept {
    constexpr std::int64_t now = 0;
    return has_time_of_event_ ? std::max(now + 1, event.occurred_at / 1000) : now;
}

// Must not be rd_kafka_produceva(), which frees headers twice when the partition does not exist
// (librdkafka issue 4628, up to 2.11).
rd_kafka_resp_err_t Producer::produce(const std::string& topic_name, const Event& event,
                                      std::int32_t partition, RecordEncoder& encoder,
                                      Delivery& delivery, const RecordValue& as) {
    rd_kafka_topic_t* handle = topic(topic_name).handle;
    Headers headers;
    std::optional<std::string_view> value = encoder.encode(
        event, [&](std::string_view name, std::string_view text) { headers.add(name, text); });
    if (as.is_null)
        value.reset();
    if (value && !as.frame.empty()) {
        framed_.assign(as.frame).append(*value);
        value = framed_;
    }
    // A null pointer means that there is no value, so an empty value needs a pointer, too.
    const auto pointer_to = [](std::string_view text) {
        return const_cast<char*>(text.data() != nullptr ? text.data() : "");
    };
    void* const data = value ? pointer_to(*value) : nullptr;
    const std::size_t size = value ? value->size() : 0;
    const std::string_view key = encoder.key(event);
    const void* const key_data = key.empty() ? nullptr : key.data();
    // The library keeps a copy, because it may still be writing the record when the batch has been
    // given up.
    const rd_kafka_resp_err_t error = rd_kafka_producev(
        client_.get(), RD_KAFKA_V_RKT(handle), RD_KAFKA_V_PARTITION(partition),
        RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_KEY(key_data, key.size()),
        RD_KAFKA_V_VALUE(data, size), RD_KAFKA_V_HEADERS(headers.get()),
        RD_KAFKA_V_TIMESTAMP(timestamp_of(event)), RD_KAFKA_V_OPAQUE(&delivery), RD_KAFKA_V_END);
    if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
        headers.release();
    else if (error == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC ||
             error == RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED)
        ask_about(handle);
    return error;
}

void Producer::poll(std::vector<Delivery*>& reported) {
    while (rd_kafka_event_t* event = client_.next_event()) {
        const auto owned = std::unique_ptr<rd_kafka_event_t, decltype(&rd_kafka_event_destroy)>(
            event, rd_kafka_event_destroy);
        if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_DR)
            take_reports(event, reported);
        else if (rd_kafka_event_type(event) == RD_KAFKA_EVENT_ERROR)
            take_error(event);
    }
    if (std::string excess = client_.excess(); !excess.empty()) {
        trouble_ = std::move(excess);
        is_overgrown_ = true;
    }
}

void Producer::take_reports(rd_kafka_event_t* event, std::vector<Delivery*>& reported) {
    while (const rd_kafka_message_t* message = rd_kafka_event_message_next(event)) {
        auto& delivery = *static_cast<Delivery*>(message->_private);
        delivery.reported = true;
        delivery.error = message->err;
        delivery.partition = message->partition;
        delivery.offset = message->offset;
        reported.push_back(&delivery);
        if (message->err == RD_KAFKA_RESP_ERR_NO_ERROR) {
            has_confirmed_ = true;
            disconnected_ = false;
            trouble_.clear();
        }
    }
}

void Producer::take_error(rd_kafka_event_t* event) {
    const rd_kafka_resp_err_t error = rd_kafka_event_error(event);
    if (rd_kafka_event_error_is_fatal(event)) {
        char text[512] = "";
        const rd_kafka_resp_err_t cause = rd_kafka_fatal_error(client_.get(), text, sizeof text);
        trouble_ = client_.explain(cause, text);
        broken_ = true;
    } else if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        disconnected_ = true;
        if (trouble_.empty())
            trouble_ = client_.explain(error, rd_kafka_event_error_string(event));
    } else {
        refused_ |= error == RD_KAFKA_RESP_ERR__AUTHENTICATION;
        trouble_ = client_.explain(error, rd_kafka_event_error_string(event));
    }
}

}  // namespace outbox
