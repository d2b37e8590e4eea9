#include "inbox/sources/redis.hpp"

#include <set>
#include <stdexcept>
#include <utility>

#include "inbox/error.hpp"
#include "net/transport.hpp"
#include "redis/worker.hpp"
#include "worker/servers.hpp"

namespace inbox {

namespace {

using std::chrono::milliseconds;

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument("RedisOptions: " + why);
}

void check(bool is_valid, const char* why) {
    if (!is_valid)
        refuse(why);
}

std::vector<std::pair<std::string, std::string>> hosts_of(const RedisOptions& options) {
    auto hosts =
        worker::parse_servers(options.servers, options.sentinel.empty() ? "6379" : "26379");
    if (!hosts)
        refuse("servers must be a list such as \"redis1:6379,redis2:6379\"");
    return *std::move(hosts);
}

outbox::Micros micros(milliseconds time, const char* name, milliseconds least = milliseconds(1)) {
    if (time < least || time > std::chrono::hours(24))
        refuse(std::string(name) + " must be " + std::to_string(least.count()) + " ms to 24 h");
    return std::chrono::microseconds(time).count();
}

std::string joined(const std::vector<std::string>& streams) {
    std::string text;
    for (const std::string& stream : streams)
        text += (text.empty() ? "" : ",") + stream;
    return text;
}

void check_names(const RedisOptions& options) {
    constexpr std::size_t max_streams = 64;
    check(!options.streams.empty() && options.streams.size() <= max_streams,
          "streams must be 1 to 64 keys");
    const std::set<std::string> names(options.streams.begin(), options.streams.end());
    check(names.size() == options.streams.size() && !names.contains(""),
          "streams has an empty key, or one twice");
    check(!options.group.empty(), "group is empty");
    check(!options.consumer.empty(), "consumer is empty");
    const std::string& from = options.create_group_from;
    check(from.empty() || from == "0" || from == "$" || outbox::StreamId::parse(from),
          "create_group_from must be \"0\", \"$\" or the id of an entry");
}

redis::Setup setup_of(const RedisOptions& options) {
    check_names(options);
    check(options.prefetch >= 1 && options.prefetch <= 10'000, "prefetch must be 1 to 10,000");
    check(options.database >= 0, "database must not be negative");
    check(options.user.empty() || !options.password.empty(), "user needs password");
    check(options.sentinel_user.empty() || !options.sentinel_password.empty(),
          "sentinel_user needs sentinel_password");
    check(options.retry_max >= options.retry_base, "retry_max must not be less than retry_base");
    check(options.tls || options.ca_file.empty(), "ca_file needs tls");
    if (const auto why =
            outbox::wrong_client_certificate(options.certificate, options.private_key, options.tls))
        refuse(*why);
    return {.hosts = hosts_of(options),
            .sentinel = options.sentinel,
            .tls = options.tls,
            .login = {options.user, options.password, static_cast<std::size_t>(options.database)},
            .sentinel_login = {options.sentinel_user, options.sentinel_password, 0},
            .transport = {.allowed_hosts = std::nullopt,  // any host
                          .connect_timeout = micros(options.connect_timeout, "connect_timeout"),
                          .request_timeout = micros(options.request_timeout, "request_timeout"),
                          .ca_file = options.ca_file,
                          .certificate = options.certificate,
                          .private_key = options.private_key},
            .streams = options.streams,
            .group = options.group,
            .consumer = options.consumer,
            .create_group_from = options.create_group_from,
            .on_recreated = options.on_recreated,
            .subscription = redis::subscription_of(joined(options.streams), options.group),
            .prefetch = static_cast<std::size_t>(options.prefetch),
            .min_idle = micros(options.min_idle, "min_idle", milliseconds(100)),
            .retry_base = micros(options.retry_base, "retry_base"),
            .retry_max = micros(options.retry_max, "retry_max")};
}

}  // namespace

class RedisSource::Impl final : public redis::Worker {
  public:
    using Worker::Worker;
    ~Impl() override { close(milliseconds(0)); }  // while the thread still sees an Impl
    LoadPositions load{};
};

RedisSource::RedisSource(RedisOptions options) {
    if (!outbox::initialize_curl())
        throw std::runtime_error("libcurl cannot be initialized");
    impl_ = std::make_unique<Impl>(setup_of(options));
}

RedisSource::~RedisSource() = default;

std::string RedisSource::subscription() const {
    return impl_->setup().subscription;
}

void RedisSource::open() {
    impl_->load_positions(impl_->load);
    impl_->open([this](Level level, const std::string& message) { log(level, message); });
}

void RedisSource::interrupt() noexcept {
    impl_->interrupt();
}

std::vector<Delivery> RedisSource::receive(std::size_t max_messages, milliseconds wait) {
    return impl_->receive(max_messages, wait);
}

void RedisSource::ack(std::span<const Delivery> deliveries) {
    impl_->ack(deliveries);
}

void RedisSource::nack(std::span<const Delivery> deliveries) {
    impl_->nack(deliveries);
}

std::vector<Position> RedisSource::positions(std::span<const Delivery* const> deliveries) {
    return impl_->positions(deliveries);
}

void RedisSource::set_positions(LoadPositions load) {
    impl_->load = std::move(load);
}

std::vector<Gap> RedisSource::gaps() {
    return impl_->gaps();
}

void RedisSource::seek(Time) {
    throw SourceError(
        "a consumer group of Redis does not go back; make another group that begins where you "
        "want, "
        "or send the events again with outbox.replay() in the database that they come from",
        false);
}

void RedisSource::close(milliseconds limit) noexcept {
    impl_->close(limit);
}

}  // namespace inbox
