#include "inbox/sources/sqs.hpp"

#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "cloud/aws/aws_region.hpp"
#include "cloud/aws/aws_service.hpp"
#include "inbox/error.hpp"
#include "net/transport.hpp"
#include "sqs/worker.hpp"

namespace inbox {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

[[noreturn]] void refuse(const std::string& why) {
    throw std::invalid_argument("SqsOptions: " + why);
}

void check_range(bool is_in_range, const char* what) {
    if (!is_in_range)
        refuse(std::string(what));
}

void check_ranges(const SqsOptions& options) {
    check_range(options.pollers >= 1 && options.pollers <= 100, "pollers must be 1 to 100");
    check_range(options.visibility >= seconds(2) && options.visibility <= seconds(12 * 3600),
                "visibility must be 2 s to 12 h");
    check_range(options.poll >= seconds(0) && options.poll <= seconds(20),
                "poll must be 0 to 20 s");
    check_range(options.retry_base > milliseconds(0) && options.retry_max >= options.retry_base,
                "retry_base must be more than 0, and retry_max not less");
}

// Parses https://sqs.eu-west-1.amazonaws.com/123456789012/orders.
void take_queue_url(SqsOptions& options, sqs::Place& place) {
    const outbox::Result<outbox::Url> url = outbox::Url::parse(options.queue);
    const std::size_t name = url ? url.value().path.rfind('/') + 1 : 0;
    if (!url || name == 0 || name == url.value().path.size())
        refuse("queue \"" + options.queue + "\" is not the URL of a queue");
    place.queue_url = std::exchange(options.queue, url.value().path.substr(name));
    const std::string& host = url.value().host;
    if (options.region.empty() && host.starts_with("sqs."))
        options.region = host.substr(4, host.find('.', 4) - 4);
    const std::string origin = place.queue_url.substr(0, place.queue_url.find('/', 8));
    if (options.endpoint.empty() && origin != outbox::service_url("sqs", options.region))
        options.endpoint = origin;
}

std::string region_of(const SqsOptions& options) {
    for (const char* name : {"AWS_REGION", "AWS_DEFAULT_REGION"})
        if (options.region.empty() && !outbox::environment_variable(name).empty())
            return outbox::environment_variable(name);
    if (options.region.empty())
        refuse("no region is given, and AWS_REGION is not set");
    return options.region;
}

void check(const std::optional<outbox::Error>& error) {
    if (error)
        refuse(error->message + (error->detail.empty() ? "" : ": ") + error->detail);
}

// Checks a value unless it is empty.
void check_given(const outbox::OptionSpec& spec, const std::string& value) {
    if (!value.empty())
        check(outbox::check_value(spec, value));
}

outbox::Micros time_limit(const outbox::OptionSpec& spec, milliseconds time) {
    check(outbox::check_value(spec, std::to_string(time.count()) + "ms"));
    return outbox::milliseconds(time.count());
}

outbox::TransportOptions transport_of(const SqsOptions& options) {
    check_given(outbox::ca_file_option, options.ca_file);
    return {.allowed_hosts = std::nullopt,  // the process may connect to any host
            .connect_timeout = time_limit(outbox::connect_timeout_option, options.connect_timeout),
            .request_timeout = time_limit(outbox::request_timeout_option, options.request_timeout),
            .ca_file = options.ca_file,
            .max_connections = static_cast<std::size_t>(options.pollers)};
}

outbox::AwsOptions aws_of(const SqsOptions& options) {
    check_range(outbox::is_cloud_name(options.region, "-."), "region is not a valid name");
    check_range(options.account.empty() || outbox::is_aws_account(options.account),
                "account must be twelve digits");
    if (!options.endpoint.empty())
        check(outbox::check_endpoint("endpoint", options.endpoint));
    check_given(outbox::access_key_id_option, options.access_key_id);
    check_given(outbox::secret_access_key_option, options.secret_access_key);
    check_given(outbox::session_token_option, options.session_token);
    check_given(outbox::profile_option, options.profile);
    return {.region = options.region,
            .account = options.account,
            .endpoint = options.endpoint,
            .access_key_id = options.access_key_id,
            .secret_access_key = options.secret_access_key,
            .session_token = options.session_token,
            .profile = options.profile};
}

sqs::Place place_of(SqsOptions options) {
    sqs::Place place;
    if (options.queue.empty())
        refuse("no queue is given");
    if (options.queue.starts_with("http://") || options.queue.starts_with("https://"))
        take_queue_url(options, place);
    options.region = region_of(options);
    place.aws = aws_of(options);
    place.transport = transport_of(options);
    place.queue = options.queue;
    place.account = options.account;
    place.fifo = options.queue.ends_with(".fifo");
    place.subscription = "sqs://" + options.region + '/' +
                         (options.account.empty() ? "" : options.account + '/') + options.queue;
    if (place.queue_url.empty() && !options.account.empty())
        place.queue_url =
            outbox::AwsService(outbox::AwsKind::sqs, place.aws).address_of(place.queue);
    return place;
}

}  // namespace

class SqsSource::Impl final : public sqs::Worker {
  public:
    using Worker::Worker;
    ~Impl() override { close(milliseconds(0)); }  // while the thread still sees an Impl
};

SqsSource::SqsSource(SqsOptions options) {
    check_ranges(options);
    if (!outbox::initialize_curl())
        throw std::runtime_error("libcurl cannot be initialized");
    const sqs::Times times{options.visibility, options.poll, options.retry_base, options.retry_max};
    const auto pollers = static_cast<std::size_t>(options.pollers);
    impl_ = std::make_unique<Impl>(place_of(std::move(options)), times, pollers);
}

SqsSource::~SqsSource() = default;

std::string SqsSource::subscription() const {
    return impl_->place().subscription;
}

void SqsSource::open() {
    impl_->open([this](Level level, const std::string& message) { log(level, message); });
}

void SqsSource::interrupt() noexcept {
    impl_->interrupt();
}

std::vector<Delivery> SqsSource::receive(std::size_t max_messages, milliseconds wait) {
    return impl_->receive(max_messages, wait);
}

void SqsSource::ack(std::span<const Delivery> deliveries) {
    impl_->ack(deliveries);
}

void SqsSource::nack(std::span<const Delivery> deliveries) {
    impl_->nack(deliveries);
}

void SqsSource::seek(Time) {
    throw SourceError(
        "SQS does not keep received messages, so it cannot seek; send them again with "
        "outbox.replay() in the database that they come from",
        false);
}

void SqsSource::close(milliseconds limit) noexcept {
    impl_->close(limit);
}

}  // namespace inbox
