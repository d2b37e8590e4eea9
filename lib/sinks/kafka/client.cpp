#include "sinks/kafka/client.hpp"

#include <netdb.h>
#include <openssl/crypto.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <new>
#include <thread>

#include "core/conceal.hpp"
#include "core/signals.hpp"
#include "core/small_file.hpp"
#include "core/text.hpp"
#include "net/kafka_brokers.hpp"
#include "sinks/kafka/notes.hpp"

namespace outbox {

// Handles whose threads have not ended, and the part of them that was given up.
static std::atomic<int> alive = 0;
static std::atomic<int> given_up = 0;
// A thread of a handle may be stuck in a name server that does not answer. Their number must not
// grow without a limit.
static constexpr int max_given_up = 8;
// The library needs about 1.5 kB for each partition of a topic that it has a handle of.
static constexpr int max_partitions = 50'000;
static std::atomic<int> partitions_given_up = 0;
// Checked at run time as well: the library that is found when the module is loaded may be older,
// because all versions have the same file name.
static constexpr int oldest_version = 0x02000000;

// A topic that the client has a handle of.
struct KnownTopic {
    KnownTopic(KafkaClient::Shared& of, std::string_view partitioner)
        : shared(of), placement(partitioner) {}

    KafkaClient::Shared& shared;
    Placement placement;
    std::atomic<int> partitions = 0;
};

struct KafkaClient::Shared {
    explicit Shared(int wake) : brokers(wake) {}

    AllowedHosts allowed_hosts;
    bool logs_in_by_scram = false;
    int throttle = 0;  // in milliseconds; only for the thread that reads the queue

    // Written by threads of the library.
    KafkaBrokers brokers;
    std::atomic<int> partitions = 0;
    std::deque<KnownTopic> topics{};
    std::mutex mutex;
    std::string refused;  // the last address that was not allowed, or empty

    bool allows(std::string_view host, const Address& address) const noexcept {
        return allowed_hosts.allows_unreserved(host, address);
    }
};

// -------------------------------------------------------------------------------------------------
// Callbacks
// -------------------------------------------------------------------------------------------------

// Removes addresses that are not allowed from the list. Brokers name the other hosts of the
// cluster, so each name is checked when it is looked up. The library connects only to addresses
// from here.
static void keep_allowed(KafkaClient::Shared& shared, std::string_view host, addrinfo*& first) {
    for (addrinfo** next = &first; *next != nullptr;) {
        addrinfo* one = *next;
        const std::optional<Address> address = Address::of(*one->ai_addr);
        if (address && shared.allows(host, *address)) {
            next = &one->ai_next;
            continue;
        }
        if (address) {
            const std::lock_guard lock(shared.mutex);
            shared.refused = shared.allowed_hosts.refusal(*address, printable(host, 253));
        }
        *next = one->ai_next;
        one->ai_next = nullptr;
        freeaddrinfo(one);
    }
}

static int resolve(const char* node, const char* service, const addrinfo* hints, addrinfo** found,
                   void* opaque) noexcept {
    if (node == nullptr && service == nullptr && hints == nullptr) {
        freeaddrinfo(*found);
        return 0;
    }
    const int code = getaddrinfo(node, service, hints, found);
    if (code != 0)
        return code;
    try {
        keep_allowed(*static_cast<KafkaClient::Shared*>(opaque), node != nullptr ? node : "",
                     *found);
    } catch (...) {
        freeaddrinfo(*found);
        *found = nullptr;
        return EAI_MEMORY;
    }
    return *found != nullptr ? 0 : EAI_FAIL;
}

static std::int32_t place(const rd_kafka_topic_t* topic, const void* key, std::size_t size,
                          std::int32_t partitions, void* opaque, void*) noexcept {
    auto& known = *static_cast<KnownTopic*>(opaque);
    const int added = partitions - known.partitions.exchange(partitions);
    if (added != 0 && (known.shared.partitions += added) > max_partitions)
        known.shared.brokers.wake_up();
    return known.placement.choose(topic, key, size, partitions);
}

// Runs in the thread that reads the queue.
static void note_throttle(rd_kafka_t*, const char*, std::int32_t, int milliseconds,
                          void* opaque) noexcept {
    int& throttle = static_cast<KafkaClient::Shared*>(opaque)->throttle;
    throttle = std::max(throttle, milliseconds);
}

// -------------------------------------------------------------------------------------------------
// Configuration
// -------------------------------------------------------------------------------------------------

bool KafkaClient::set(rd_kafka_conf_t* conf, const char* name, const std::string& value) {
    char error[512] = "";
    if (rd_kafka_conf_set(conf, name, value.c_str(), error, sizeof error) == RD_KAFKA_CONF_OK)
        return true;
    failure_ = printable(error);
    return false;
}

static std::string milliseconds_of(Micros duration) {
    return std::to_string(std::clamp<Micros>(duration / 1000, 1000, 300'000));
}

// No gap after a failed message: no later one of its partition arrives before the failed one is
// sent again. Only an answer ends an attempt; the sink has its own deadline.
bool KafkaClient::set_gapless(rd_kafka_conf_t* conf) {
    return set(conf, "enable.gapless.guarantee", "true") && set(conf, "message.timeout.ms", "0");
}

// After this time the broker rolls back the transaction of a relay that has died. Until then,
// consumers that read only committed records wait behind it. The sink gives up earlier.
bool KafkaClient::set_transactional(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    constexpr Micros shortest = seconds(10), longest = seconds(900);  // of brokers, by default
    const std::string timeout =
        std::to_string(std::clamp(2 * options.limits.request, shortest, longest) / 1000);
    return set(conf, "transactional.id", options.transactional_id) &&
           set(conf, "transaction.timeout.ms", timeout) && set(conf, "message.timeout.ms", timeout);
}

bool KafkaClient::set_connection(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    const std::string security = std::string(options.login.mechanism.empty() ? "" : "sasl_") +
                                 (options.tls ? "ssl" : "plaintext");
    return set(conf, "bootstrap.servers", options.brokers) && set(conf, "client.id", "pg_outbox") &&
           set(conf, "security.protocol", security) &&
           set(conf, "socket.connection.setup.timeout.ms",
               milliseconds_of(options.limits.connect)) &&
           set(conf, "socket.nagle.disable", "true") &&
           set(conf, "socket.keepalive.enable", "true") &&
           set(conf, "reconnect.backoff.max.ms", "1000") &&
           // Answers are small. This limits what a broker can make the library keep.
           set(conf, "receive.message.max.bytes", "8000000");
}

bool KafkaClient::set_tls(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    if (!options.tls)
        return true;
    if (!options.ca_file.empty())
        if (const std::optional<Error> error = check_file(options.ca_file)) {
            failure_ = error->message;
            return false;
        }
    const auto set_if = [&](const char* name, const std::string& value) {
        return value.empty() || set(conf, name, value);
    };
    return set(conf, "enable.ssl.certificate.verification", "true") &&
           set(conf, "ssl.endpoint.identification.algorithm", "https") &&
           set_if("ssl.ca.location", options.ca_file) &&
           set_if("ssl.certificate.pem", options.certificate) &&
           set_if("ssl.key.pem", options.private_key);
}

bool KafkaClient::set_login(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    if (options.login.uses_token())
        return set(conf, "sasl.mechanism", "OAUTHBEARER");
    if (options.login.mechanism.empty())
        return true;
    return set(conf, "sasl.mechanism", options.login.mechanism) &&
           set(conf, "sasl.username", options.login.user) &&
           set(conf, "sasl.password", options.login.password);
}

bool KafkaClient::set_compression(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    if (!options.compression.empty())
        return set(conf, "compression.codec", options.compression);
    const bool done =
        set(conf, "compression.codec", "zstd") || set(conf, "compression.codec", "lz4");
    if (done)
        failure_.clear();  // a library without zstd is not a failure
    return done;
}

bool KafkaClient::set_producing(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    return set(conf, "enable.idempotence", "true") &&
           // The pipeline limits what is in flight.
           set(conf, "queue.buffering.max.messages", "10000000") &&
           set(conf, "queue.buffering.max.kbytes", "2097151") && set(conf, "linger.ms", "0") &&
           set(conf, "message.max.bytes", std::to_string(options.max_request_size)) &&
           set(conf, "batch.num.messages", options.one_by_one ? "1" : "10000") &&
           // A missing topic is reported at once; its lane then waits for it.
           set(conf, "topic.metadata.propagation.max.ms", "0") &&
           (options.transactional_id.empty() ? set_gapless(conf)
                                             : set_transactional(conf, options)) &&
           set_compression(conf, options);
}

// Configures a consumer that does not consume.
bool KafkaClient::set_asking(rd_kafka_conf_t* conf, const KafkaOptions& options) {
    return set(conf, "group.id", options.transactional_id) &&
           set(conf, "enable.auto.commit", "false") &&
           // Must be less than receive.message.max.bytes.
           set(conf, "fetch.max.bytes", "1000000");
}

bool KafkaClient::configure(rd_kafka_conf_t* conf, const KafkaOptions& options,
                            rd_kafka_type_t type) {
    rd_kafka_conf_set_opaque(conf, shared_.get());
    rd_kafka_conf_set_resolve_cb(conf, resolve);
    rd_kafka_conf_set_throttle_cb(conf, note_throttle);
    shared_->brokers.count(conf);
    take_notes_of(conf);
    rd_kafka_conf_set_events(
        conf, RD_KAFKA_EVENT_DR | RD_KAFKA_EVENT_ERROR | RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH);
    return set_connection(conf, options) && set_tls(conf, options) && set_login(conf, options) &&
           (type == RD_KAFKA_PRODUCER ? set_producing(conf, options) : set_asking(conf, options));
}

// Returns a mistake that only shows when the user mapping and the options are read together.
static std::string incomplete(const KafkaOptions& options) {
    const bool has_login = !options.login.user.empty() || !options.login.password.empty();
    const bool needs_login = !options.login.mechanism.empty() && !options.login.uses_token();
    if (needs_login && (options.login.user.empty() || options.login.password.empty()))
        return "user and password are required by sasl_mechanism (CREATE USER MAPPING)";
    if (options.login.mechanism.empty() && has_login)
        return "the user mapping has a user or password, and sasl_mechanism is not set";
    return wrong_client_certificate(options.certificate, options.private_key, options.tls)
        .value_or("");
}

// -------------------------------------------------------------------------------------------------
// The handle
// -------------------------------------------------------------------------------------------------

KafkaClient::KafkaClient(const KafkaOptions& options, int wake, rd_kafka_type_t type)
    : shared_(std::make_shared<Shared>(wake)),
      failure_(incomplete(options)),
      token_extensions_(options.login.token_extensions) {
    shared_->allowed_hosts = options.allowed_hosts;
    shared_->logs_in_by_scram = options.login.mechanism.starts_with("SCRAM");
    if (!failure_.empty())
        return;
    if (rd_kafka_version() < oldest_version) {
        failure_ =
            std::string("librdkafka ") + rd_kafka_version_str() + " is too old; use 2.0 or later";
        return;
    }
    if (given_up >= max_given_up || KafkaBrokers::are_too_many() ||
        partitions_given_up > max_partitions) {
        failure_ = "connections that were given up have not ended";
        return;
    }
    rd_kafka_conf_t* conf = rd_kafka_conf_new();
    const SignalsBlocked blocked;
    char error[512] = "";
    try {
        if (configure(conf, options, type))
            handle_ = rd_kafka_new(type, conf, error, sizeof error);
        if (handle_ == nullptr && failure_.empty())
            failure_ = printable(error);
    } catch (...) {
        rd_kafka_conf_destroy(conf);
        throw;
    }
    if (handle_ == nullptr) {
        rd_kafka_conf_destroy(conf);
        return;
    }
    alive++;
    queue_ = rd_kafka_queue_get_main(handle_);
    if (wake < 0)
        return;
    static constexpr std::uint64_t one = 1;
    rd_kafka_queue_io_event_enable(queue_, wake, &one, sizeof one);
    // The library announces only events that find the queue empty, and the request for a token may
    // already be in it.
    [[maybe_unused]] const ssize_t written = write(wake, &one, sizeof one);
}

KafkaClient::~KafkaClient() {
    if (handle_ == nullptr)
        return;
    stop_waking();
    rd_kafka_queue_destroy(queue_);
    rd_kafka_purge(handle_, RD_KAFKA_PURGE_F_QUEUE | RD_KAFKA_PURGE_F_INFLIGHT |
                                RD_KAFKA_PURGE_F_NON_BLOCKING);
    // Destroying a handle waits for its threads, and one of them may wait for a name server.
    given_up++;
    const int partitions = shared_->partitions;
    partitions_given_up += partitions;
    const SignalsBlocked blocked;
    try {
        std::thread([handle = handle_, shared = shared_, partitions] {
            rd_kafka_destroy_flags(handle, RD_KAFKA_DESTROY_F_NO_CONSUMER_CLOSE);
            partitions_given_up -= partitions;
            given_up--;
            alive--;
        }).detach();
    } catch (...) {  // no thread could be started: the handle is leaked, and stays counted
        static_cast<void>(new (std::nothrow) std::shared_ptr<Shared>(shared_));
    }
}

void KafkaClient::stop_waking() noexcept {
    shared_->brokers.stop_waking();
    rd_kafka_queue_io_event_enable(queue_, -1, nullptr, 0);
}

rd_kafka_event_t* KafkaClient::next_event() noexcept {
    while (rd_kafka_event_t* event = rd_kafka_queue_poll(queue_, 0)) {
        if (rd_kafka_event_type(event) != RD_KAFKA_EVENT_OAUTHBEARER_TOKEN_REFRESH)
            return event;
        wants_token_ = true;
        rd_kafka_event_destroy(event);
    }
    return nullptr;
}

void KafkaClient::set_token(const Token& token) {
    if (handle_ == nullptr)
        return;
    std::vector<const char*> extensions;
    for (const std::string& text : token_extensions_)
        extensions.push_back(text.c_str());
    token_ = token.value;
    char error[512] = "";
    const rd_kafka_resp_err_t code = rd_kafka_oauthbearer_set_token(
        handle_, token.value.c_str(), token.expires / 1000, token.principal.c_str(),
        extensions.data(), extensions.size(), error, sizeof error);
    wants_token_ = false;
    if (code != RD_KAFKA_RESP_ERR_NO_ERROR)  // the library's text may contain the token
        refuse_token(rd_kafka_err2str(code));
}

void KafkaClient::refuse_token(const std::string& why) noexcept {
    wants_token_ = false;
    rd_kafka_oauthbearer_set_token_failure(handle_, why.c_str());
}

Micros KafkaClient::take_throttle() noexcept {
    return milliseconds(std::exchange(shared_->throttle, 0));
}

rd_kafka_topic_t* KafkaClient::new_topic(const std::string& name, const std::string& partitioner,
                                         Placement*& placement) {
    KnownTopic& known = shared_->topics.emplace_back(*shared_, partitioner);
    placement = &known.placement;
    rd_kafka_topic_conf_t* conf = rd_kafka_default_topic_conf_dup(handle_);
    rd_kafka_topic_conf_set_partitioner_cb(conf, place);
    rd_kafka_topic_conf_set_opaque(conf, &known);
    rd_kafka_topic_t* topic = rd_kafka_topic_new(handle_, name.c_str(), conf);
    if (topic == nullptr) {
        rd_kafka_topic_conf_destroy(conf);
        throw std::bad_alloc();
    }
    return topic;
}

std::string KafkaClient::excess() const {
    if (std::string why = shared_->brokers.excess(); !why.empty())
        return why;
    if (shared_->partitions > max_partitions)
        return "the topics have more than " + std::to_string(max_partitions) + " partitions";
    return "";
}

std::string KafkaClient::explain(rd_kafka_resp_err_t code, const char* error) const {
    const std::lock_guard lock(shared_->mutex);
    if (code == RD_KAFKA_RESP_ERR__RESOLVE && !shared_->refused.empty())
        return shared_->refused;
    std::string text = printable(error != nullptr ? error : rd_kafka_err2str(code));
    conceal(text, token_);  // a broker may repeat it
    // Before 2.6.1, librdkafka sends a wrong nonce (librdkafka issue 4895).
    constexpr int first_version_with_scram = 0x020601ff;
    if (code == RD_KAFKA_RESP_ERR__AUTHENTICATION && shared_->logs_in_by_scram &&
        rd_kafka_version() < first_version_with_scram)
        text += std::string(" (Kafka 4 takes SCRAM from librdkafka 2.6.1 or later; this is ") +
                rd_kafka_version_str() + ')';
    return text;
}

void prepare_process_for_kafka() {
    static const bool prepared = [] {
        // OpenSSL's clean-up at exit must be registered first, so that it runs after ours.
        OPENSSL_init_crypto(0, nullptr);
        on_exit(
            [](int status, void*) {
                if (alive > 0)
                    _exit(status);
            },
            nullptr);
        return true;
    }();
    static_cast<void>(prepared);
}

}  // namespace outbox
