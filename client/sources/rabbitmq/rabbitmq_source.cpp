#include "inbox/sources/rabbitmq.hpp"

#include <algorithm>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "core/percent.hpp"
#include "inbox/error.hpp"
#include "net/transport.hpp"
#include "rabbitmq/worker.hpp"
#include "worker/servers.hpp"

namespace inbox {

namespace {

using std::chrono::milliseconds;

// Every new server has a user with this name and this password, so it is not a secret.
constexpr const char* guest = "guest";

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument("RabbitmqOptions: " + why);
}

void check(bool is_valid, const char* why) {
    if (!is_valid)
        refuse(why);
}

outbox::Micros micros(milliseconds time, const char* name) {
    if (time < milliseconds(1) || time > std::chrono::hours(24))
        refuse(std::string(name) + " must be 1 ms to 24 h");
    return std::chrono::microseconds(time).count();
}

std::pair<std::string, std::string> host_of(const RabbitmqOptions& options) {
    auto servers = worker::parse_servers(options.server, outbox::amqp_port(options.tls));
    if (!servers || servers->size() != 1)
        refuse("server must be a host and a port such as \"broker:5672\"");
    return std::move(servers->front());
}

outbox::AmqpConfig config_of(const RabbitmqOptions& options) {
    auto [host, port] = host_of(options);
    const bool is_guest = options.user.empty() && options.certificate.empty();
    return {.transport = {.allowed_hosts = std::nullopt,  // any host
                          .connect_timeout = micros(options.connect_timeout, "connect_timeout"),
                          .request_timeout = micros(options.request_timeout, "request_timeout"),
                          .ca_file = options.ca_file,
                          .certificate = options.certificate,
                          .private_key = options.private_key},
            .host = std::move(host),
            .port = std::move(port),
            .tls = options.tls,
            .virtual_host = options.virtual_host,
            .user = is_guest ? guest : options.user,
            .password = is_guest ? guest : options.password,
            .name = options.connection_name};
}

rabbitmq::Setup setup_of(const RabbitmqOptions& options) {
    check(!options.queue.empty() && options.queue.size() <= outbox::max_short_string,
          "queue must be the name of a queue, of at most 255 bytes");
    check(!options.virtual_host.empty() && options.virtual_host.size() <= outbox::max_short_string,
          "virtual_host must be a name of at most 255 bytes");
    check(options.user.size() <= outbox::max_short_string && options.password.size() <= 1024 &&
              options.connection_name.size() <= outbox::max_short_string,
          "user, password or connection_name is too long");
    check(!options.user.empty() || options.password.empty(), "password needs user");
    check(options.prefetch >= 1 && options.prefetch <= 10'000, "prefetch must be 1 to 10,000");
    check(options.max_message_size >= 1 && options.max_message_size <= 512 << 20,
          "max_message_size must be 1 byte to 512 MiB");
    check(options.tls || options.ca_file.empty(), "ca_file needs tls");
    if (const auto why =
            outbox::wrong_client_certificate(options.certificate, options.private_key, options.tls))
        refuse(*why);
    check(options.retry_max >= options.retry_base, "retry_max must not be less than retry_base");
    std::string subscription = "rabbitmq://";
    if (options.virtual_host != "/")
        outbox::append_percent_encoded(subscription, options.virtual_host);
    subscription += '/';
    outbox::append_percent_encoded(subscription, options.queue);
    return {.config = config_of(options),
            .queue = options.queue,
            .subscription = std::move(subscription),
            .is_stream = options.is_stream,
            .starts_at_end = options.start == RabbitmqOptions::Start::latest,
            .on_recreated = options.on_recreated,
            .counted_ids_are_unique = options.counted_ids_are_unique,
            .prefetch = static_cast<std::uint16_t>(options.prefetch),
            .max_message_size = options.max_message_size,
            .retry_base = micros(options.retry_base, "retry_base"),
            .retry_max = micros(options.retry_max, "retry_max")};
}

}  // namespace

class RabbitmqSource::Impl final : public rabbitmq::Worker {
  public:
    using Worker::Worker;
    ~Impl() override { close(milliseconds(0)); }  // while the thread still sees an Impl
    LoadPositions load_positions{};
};

RabbitmqSource::RabbitmqSource(RabbitmqOptions options) {
    if (!outbox::initialize_curl())
        throw std::runtime_error("libcurl cannot be initialized");
    impl_ = std::make_unique<Impl>(setup_of(options));
}

RabbitmqSource::~RabbitmqSource() = default;

std::string RabbitmqSource::subscription() const {
    return impl_->setup().subscription;
}

void RabbitmqSource::open() {
    impl_->load_position(impl_->load_positions);
    impl_->open([this](Level level, const std::string& message) { log(level, message); });
}

void RabbitmqSource::interrupt() noexcept {
    impl_->interrupt();
}

std::vector<Delivery> RabbitmqSource::receive(std::size_t max_messages, milliseconds wait) {
    return impl_->receive(max_messages, wait);
}

void RabbitmqSource::ack(std::span<const Delivery> deliveries) {
    impl_->ack(deliveries);
}

void RabbitmqSource::nack(std::span<const Delivery> deliveries) {
    impl_->nack(deliveries);
}

std::vector<Position> RabbitmqSource::positions(std::span<const Delivery* const> deliveries) {
    return impl_->setup().is_stream ? impl_->positions(deliveries) : Source::positions(deliveries);
}

std::vector<Position> RabbitmqSource::moved_positions() {
    return impl_->setup().is_stream ? impl_->moved_positions() : std::vector<Position>();
}

std::vector<Gap> RabbitmqSource::gaps() {
    return impl_->gaps();
}

void RabbitmqSource::set_positions(LoadPositions load) {
    impl_->load_positions = std::move(load);
}

std::function<bool(const Delivery&)> RabbitmqSource::recall() {
    return impl_->recall();
}

void RabbitmqSource::seek(Time to) {
    if (!impl_->setup().is_stream)
        throw SourceError(
            "a queue of RabbitMQ cannot go back; use a stream, or send the events again with "
            "outbox.replay() in the database that they come from",
            false);
    impl_->seek(to);
}

void RabbitmqSource::close(milliseconds limit) noexcept {
    impl_->close(limit);
}

RabbitmqStats RabbitmqSource::stats() const {
    return impl_->stats();
}

}  // namespace inbox
