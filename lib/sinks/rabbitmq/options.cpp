#include "sinks/rabbitmq/options.hpp"

#include "core/percent.hpp"

namespace outbox {

static constexpr std::size_t max_name = 255;  // of a virtual host

static constexpr OptionSpec batch_size = batch_size_option("500", "most events of a batch");
static constexpr OptionSpec format{.name = "format",
                                   .type = OptionType::choice,
                                   .choices = {"attributes", "binary", "structured"},
                                   .default_value = "attributes",
                                   .description =
                                       "the payload with headers of our own, with those of "
                                       "CloudEvents, or a CloudEvents document"};
static constexpr OptionSpec exchange{
    .name = "exchange",
    .type = OptionType::name,
    .range = "{topic}, {aggregate_type}, {event_type}, {database} and text",
    .description =
        "exchange that an event is published to; if not set, the default exchange, which "
        "passes a message to the queue with the name of the routing key"};
static constexpr OptionSpec routing_key{
    .name = "routing_key",
    .type = OptionType::route,
    .range =
        "{topic}, {aggregate_type}, {event_type}, {database}, {aggregate_id}, {ordering_key} "
        "and text",
    .default_value = "{topic}",
    .description = "routing key of an event"};
static constexpr OptionSpec max_message_size{
    .name = "max_message_size",
    .type = OptionType::number,
    .max = 512 * 1024 * 1024,
    .unit = "bytes",
    .default_value = "16777216",
    .description = "largest payload; not more than max_message_size of the server"};
static constexpr OptionSpec ca_file{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for amqps",
    .names_file = NamesFile::yes};
static constexpr OptionSpec user{
    .name = "user",
    .place = OptionPlace::user_mapping,
    .description =
        "user to log in as; if not set, the one that the client certificate names, or guest"};
static constexpr OptionSpec password{.name = "password",
                                     .place = OptionPlace::user_mapping,
                                     .description = "its password",
                                     .secret = true};
// Every new server has a user with this name and this password, so it is not a secret.
static constexpr const char* guest = "guest";

static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    format,
                                    exchange,
                                    routing_key,
                                    max_message_size,
                                    ca_file,
                                    user,
                                    password,
                                    certificate_option,
                                    private_key_option};

static Error invalid(std::string message, std::string hint) {
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

// Both "/" and an empty path mean the virtual host "/". Any other is a segment of the path, with a
// slash written as %2F.
static std::optional<std::string> virtual_host_of(const Url& url) {
    if (url.path.empty() || url.path == "/")
        return "/";
    const std::string_view name = std::string_view(url.path).substr(1);
    if (name.find('/') != std::string_view::npos)
        return std::nullopt;
    std::optional<std::string> decoded = percent_decoded(name);
    if (!decoded || decoded->size() > max_name)
        return std::nullopt;
    return decoded;
}

static std::optional<Error> check_url(const Url& url, std::string_view) {
    if (!is_host_name(url.host))
        return invalid("URL names no host, or one that is not a host name",
                       "Write for example \"amqp://broker:5672\".");
    if (url.user)
        return invalid("URL must not contain a user", "Set \"user\" in CREATE USER MAPPING.");
    if (!virtual_host_of(url))
        return invalid("the path of the URL is not a virtual host",
                       "Write a slash in its name as %2F.");
    if (!url.query.empty())
        return invalid("URL must not contain parameters", "Set options instead.");
    return std::nullopt;
}

static constexpr std::array<std::string_view, 2> schemes{"amqp", "amqps"};
constinit const SinkDeclaration rabbitmq_declaration{
    .name = "rabbitmq",
    .schemes = schemes,
    .url = "amqp://<host>:<port>/<virtual host>",
    .title = "RabbitMQ",
    .order = "per ordering key in a queue",
    .options = options,
    .target = &routing_key,
    .lanes = true,
    .check =
        "address, connection, certificate, login, virtual host, and whether the exchange exists, "
        "or "
        "each queue",
    .check_url = check_url,
    .module = "pg_outbox_rabbitmq.so"};

RabbitmqOptions rabbitmq_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    const TimeLimits limits = time_limits(destination);
    RabbitmqOptions result{
        .source = destination.source,
        .transport = {.allowed_hosts = destination.allowed_hosts,
                      .connect_timeout = limits.connect,
                      .request_timeout = limits.request,
                      .ca_file = values.text(ca_file),
                      .certificate = values.text(certificate_option),
                      .private_key = values.text(private_key_option)},
        .host = destination.url.host,
        .port = destination.url.port,
        .tls = destination.url.scheme == "amqps",
        .virtual_host = virtual_host_of(destination.url).value_or("/"),
        .user = values.text(user),
        .password = values.text(password),
        .connection_name = "pg_outbox " + destination.source + " " + destination.name,
        .exchange = values.name(exchange),
        .routing_key = values.name(routing_key),
        .lane_has_routing_key = TextTemplate::parse(values.text(routing_key)).ok(),
        .format = event_format(values, format),
        .batch_size = values.number(batch_size),
        .max_message_size = values.number(max_message_size)};
    if (result.port.empty())
        result.port = result.tls ? "5671" : "5672";
    if (!values.has(user) && result.transport.certificate.empty())
        result.user = result.password = guest;
    return result;
}

}  // namespace outbox
