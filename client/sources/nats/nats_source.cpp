#include "inbox/sources/nats.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "inbox/error.hpp"
#include "nats/worker.hpp"
#include "net/transport.hpp"
#include "worker/servers.hpp"

namespace inbox {

namespace {

using std::chrono::milliseconds;

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument("NatsOptions: " + why);
}

void check(bool is_valid, const char* why) {
    if (!is_valid)
        refuse(why);
}

bool is_name(std::string_view name) {
    return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '.' || c == '*' ||
               c == '>' || c == '/' || c == '\\';
    });
}

bool is_prefix(std::string_view prefix) {
    const bool has_bad = std::any_of(prefix.begin(), prefix.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '*' || c == '>';
    });
    return !prefix.empty() && !has_bad && prefix.front() != '.' && prefix.back() != '.' &&
           prefix.find("..") == std::string_view::npos;
}

std::vector<std::pair<std::string, std::string>> hosts_of(const NatsOptions& options) {
    auto hosts = worker::parse_servers(options.servers, "4222");
    if (!hosts)
        refuse("servers must be a list such as \"nats1:4222,nats2:4222\"");
    return *std::move(hosts);
}

outbox::Micros micros(milliseconds time, const char* name) {
    if (time < milliseconds(1) || time > std::chrono::hours(24))
        refuse(std::string(name) + " must be 1 ms to 24 h");
    return std::chrono::microseconds(time).count();
}

nats::Setup setup_of(const NatsOptions& options) {
    check(is_name(options.stream), "stream is not the name of a stream");
    check(is_name(options.consumer), "consumer is not the name of a consumer");
    check(is_prefix(options.inbox_prefix), "inbox_prefix is not the beginning of a subject");
    check(options.prefetch >= 1 && options.prefetch <= 10'000, "prefetch must be 1 to 10,000");
    check(options.retry_max >= options.retry_base, "retry_max must not be less than retry_base");
    check(options.tls || (!options.tls_handshake_first && options.ca_file.empty()),
          "ca_file and tls_handshake_first need tls");
    outbox::Result<outbox::NatsLogin> login =
        outbox::nats_login({.user = options.user,
                            .password = options.password,
                            .token = options.token,
                            .nkey_seed = options.nkey_seed,
                            .credentials = options.credentials});
    if (!login)
        refuse(login.error().message);
    if (const auto why =
            outbox::wrong_client_certificate(options.certificate, options.private_key, options.tls))
        refuse(*why);
    return {.config = {.hosts = hosts_of(options),
                       .tls = options.tls,
                       .tls_first = options.tls_handshake_first,
                       .client_name = "pg_inbox",
                       .login = std::move(login.value()),
                       .transport = {.allowed_hosts = std::nullopt,  // any host
                                     .connect_timeout =
                                         micros(options.connect_timeout, "connect_timeout"),
                                     .request_timeout =
                                         micros(options.request_timeout, "request_timeout"),
                                     .ca_file = options.ca_file,
                                     .certificate = options.certificate,
                                     .private_key = options.private_key}},
            .stream = options.stream,
            .consumer = options.consumer,
            .inbox_prefix = options.inbox_prefix,
            .subscription = "nats://" + options.stream + '/' + options.consumer,
            .prefetch = static_cast<std::size_t>(options.prefetch),
            .double_ack = options.double_ack,
            .on_recreated = options.on_recreated,
            .request_timeout = micros(options.request_timeout, "request_timeout"),
            .retry_base = micros(options.retry_base, "retry_base"),
            .retry_max = micros(options.retry_max, "retry_max")};
}

}  // namespace

class NatsSource::Impl final : public nats::Worker {
  public:
    using Worker::Worker;
    ~Impl() override { close(milliseconds(0)); }  // while the thread still sees an Impl
    LoadPositions load{};
};

NatsSource::NatsSource(NatsOptions options) {
    if (!outbox::initialize_curl())
        throw std::runtime_error("libcurl cannot be initialized");
    impl_ = std::make_unique<Impl>(setup_of(options));
}

NatsSource::~NatsSource() = default;

std::string NatsSource::subscription() const {
    return impl_->setup().subscription;
}

void NatsSource::open() {
    impl_->load_incarnation(impl_->load);
    impl_->open([this](Level level, const std::string& message) { log(level, message); });
}

void NatsSource::interrupt() noexcept {
    impl_->interrupt();
}

std::vector<Delivery> NatsSource::receive(std::size_t max_messages, milliseconds wait) {
    return impl_->receive(max_messages, wait);
}

void NatsSource::ack(std::span<const Delivery> deliveries) {
    impl_->ack(deliveries);
}

void NatsSource::nack(std::span<const Delivery> deliveries) {
    impl_->nack(deliveries);
}

std::vector<Position> NatsSource::positions(std::span<const Delivery* const> deliveries) {
    return {impl_->position_of(Source::positions(deliveries).front())};
}

void NatsSource::set_positions(LoadPositions load) {
    impl_->load = std::move(load);
}

std::vector<Gap> NatsSource::gaps() {
    return impl_->gaps();
}

void NatsSource::seek(Time) {
    throw SourceError(
        "a durable consumer of NATS cannot go back; make another one that starts where you want, "
        "or "
        "send the events again with outbox.replay() in the database that they come from",
        false);
}

void NatsSource::close(milliseconds limit) noexcept {
    impl_->close(limit);
}

}  // namespace inbox
