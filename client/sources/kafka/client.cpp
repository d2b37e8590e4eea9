#include "kafka/client.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

#include "core/signals.hpp"
#include "inbox/error.hpp"

namespace inbox::kafka {

// Handles that were given up and have not ended. Their number must not grow without a limit.
static std::atomic<int> given_up = 0;
static constexpr int max_given_up = 8;
static constexpr std::chrono::seconds max_destruction{1};
// Checked at run time, because an older library may be found then.
static constexpr int oldest_version = 0x02000000;

// -------------------------------------------------------------------------------------------------
// Configuration
// -------------------------------------------------------------------------------------------------

void check_properties(const KafkaOptions& options) {
    static constexpr std::array<std::string_view, 8> ours{
        "bootstrap.servers",        "group.id",  "group.instance.id",    "enable.auto.commit",
        "enable.auto.offset.store", "log.queue", "enable.partition.eof", "auto.offset.reset"};
    for (const auto& [name, value] : options.properties)
        if (std::ranges::find(ours, name) != ours.end())
            throw std::invalid_argument("KafkaOptions: the source sets the property \"" + name +
                                        "\" itself");
}

namespace {

class Configuration {
  public:
    ~Configuration() {
        if (conf_ != nullptr)
            rd_kafka_conf_destroy(conf_);
    }
    Configuration() : conf_(rd_kafka_conf_new()) {}
    Configuration(const Configuration&) = delete;
    Configuration& operator=(const Configuration&) = delete;

    void set(const std::string& name, const std::string& value) {
        char error[512] = "";
        if (rd_kafka_conf_set(conf_, name.c_str(), value.c_str(), error, sizeof error) !=
            RD_KAFKA_CONF_OK)
            throw SourceError(error, false);
    }
    void set_given(const std::string& name, const std::string& value) {
        if (!value.empty())
            set(name, value);
    }
    // Old versions do not have this property.
    void set_if_known(const char* name, const char* value) {
        rd_kafka_conf_set(conf_, name, value, nullptr, 0);
    }
    rd_kafka_conf_t* get() const { return conf_; }
    void release() { conf_ = nullptr; }

  private:
    rd_kafka_conf_t* conf_;
};

void configure_security(Configuration& conf, const KafkaOptions& options) {
    conf.set("security.protocol", std::string(options.sasl_mechanism.empty() ? "" : "sasl_") +
                                      (options.tls ? "ssl" : "plaintext"));
    if (options.tls) {
        conf.set("enable.ssl.certificate.verification", "true");
        conf.set("ssl.endpoint.identification.algorithm", "https");
        conf.set_given("ssl.ca.location", options.ca_file);
        conf.set_given("ssl.certificate.location", options.certificate_file);
        conf.set_given("ssl.key.location", options.private_key_file);
    }
    conf.set_given("sasl.mechanism", options.sasl_mechanism);
    conf.set_given("sasl.username", options.user);
    conf.set_given("sasl.password", options.password);
}

void configure(Configuration& conf, const KafkaOptions& options) {
    const auto number = [](auto value) { return std::to_string(value); };
    const auto session = options.session_timeout.count();
    conf.set("bootstrap.servers", options.brokers);
    conf.set("client.id", options.client_id);
    conf.set("group.id", options.group);
    conf.set_given("group.instance.id", options.instance_id);
    // An offset is committed when the database has committed.
    conf.set("enable.auto.commit", "false");
    conf.set("enable.auto.offset.store", "false");
    // The source finds the offset itself, so that it knows what is skipped.
    conf.set("auto.offset.reset", "error");
    conf.set("enable.partition.eof", "true");
    conf.set("isolation.level", "read_committed");
    conf.set("partition.assignment.strategy", "cooperative-sticky");
    conf.set("session.timeout.ms", number(session));
    conf.set("heartbeat.interval.ms", number(std::min<decltype(session)>(session / 3, 3000)));
    conf.set("queued.max.messages.kbytes", number(options.prefetch_bytes / 1024));
    // The library waits this long before it fetches again after the queue was full.
    conf.set_if_known("fetch.queue.backoff.ms", "20");
    conf.set("socket.nagle.disable", "true");
    conf.set("socket.keepalive.enable", "true");
    // New topics and partitions are found after at most this time.
    conf.set("topic.metadata.refresh.interval.ms", "30000");
    conf.set("log.queue", "true");
    configure_security(conf, options);
    for (const auto& [name, value] : options.properties)
        conf.set(name, value);
    rd_kafka_conf_set_events(conf.get(), RD_KAFKA_EVENT_REBALANCE | RD_KAFKA_EVENT_OFFSET_COMMIT |
                                             RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_LOG);
}

}  // namespace

// -------------------------------------------------------------------------------------------------
// The handle
// -------------------------------------------------------------------------------------------------

Client::Client(const KafkaOptions& options, int wake)
    : brokers_(std::make_shared<outbox::KafkaBrokers>(wake)) {
    if (rd_kafka_version() < oldest_version)
        throw SourceError(
            std::string("librdkafka ") + rd_kafka_version_str() + " is too old; use 2.0 or later",
            false);
    if (given_up >= max_given_up || outbox::KafkaBrokers::are_too_many())
        throw SourceError("connections that were given up have not ended", true);
    Configuration conf;
    configure(conf, options);
    brokers_->count(conf.get());
    char error[512] = "";
    {
        const outbox::SignalsBlocked blocked;
        handle_ = rd_kafka_new(RD_KAFKA_CONSUMER, conf.get(), error, sizeof error);
    }
    if (handle_ == nullptr)
        throw SourceError(error, false);
    conf.release();
    rd_kafka_poll_set_consumer(handle_);
    events_ = rd_kafka_queue_get_consumer(handle_);
    records_ = rd_kafka_queue_new(handle_);
    rd_kafka_set_log_queue(handle_, events_);
    static constexpr std::uint64_t one = 1;
    rd_kafka_queue_io_event_enable(events_, wake, &one, sizeof one);
    rd_kafka_queue_io_event_enable(records_, wake, &one, sizeof one);
}

// Before 2.2 the library aborts the process (its issue 4381) when a handle ends between the group's
// answer to its join and the first assignment. Any handle that has reached a cluster may be in this
// state.
bool Client::can_be_destroyed() const {
    constexpr int first_safe_version = 0x02020000;
    if (was_assigned_ || rd_kafka_version() >= first_safe_version)
        return true;
    char* const cluster = rd_kafka_clusterid(handle_, 0);
    const bool is_known = cluster != nullptr;
    if (is_known)
        rd_kafka_mem_free(handle_, cluster);
    return !is_known;
}

Client::~Client() {
    brokers_->stop_waking();
    rd_kafka_queue_io_event_enable(events_, -1, nullptr, 0);
    rd_kafka_queue_io_event_enable(records_, -1, nullptr, 0);
    rd_kafka_queue_destroy(records_);
    rd_kafka_queue_destroy(events_);
    if (!can_be_destroyed()) {
        rd_kafka_unsubscribe(handle_);
        brokers_->keep(brokers_);  // its threads go on
        return;
    }
    given_up++;
    const outbox::SignalsBlocked blocked;
    try {
        std::packaged_task<void()> destroy([handle = handle_, brokers = brokers_] {
            rd_kafka_destroy_flags(handle, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
            given_up--;
        });
        const std::future<void> destroyed = destroy.get_future();
        std::thread(std::move(destroy)).detach();
        destroyed.wait_for(max_destruction);
    } catch (...) {  // no thread could be started: the handle is leaked, and stays counted
        brokers_->keep(brokers_);
    }
}

void Client::forward_records(const char* topic, std::int32_t partition) const {
    rd_kafka_queue_t* const queue = rd_kafka_queue_get_partition(handle_, topic, partition);
    if (queue == nullptr)
        return;
    rd_kafka_queue_forward(queue, records_);
    rd_kafka_queue_destroy(queue);
}

}  // namespace inbox::kafka
