#include "sinks/pubsub/options.hpp"

#include "cloud/cloud_url.hpp"

namespace outbox {

static constexpr OptionSpec batch_size =
    batch_size_option("1000", "largest number of messages in a request; the service accepts 1000");
static constexpr OptionSpec format{
    .name = "format",
    .type = OptionType::choice,
    .choices = {"attributes", "binary", "structured"},
    .default_value = "attributes",
    .description =
        "the payload with attributes of pg_outbox or of CloudEvents, or a CloudEvents "
        "document"};
static constexpr OptionSpec max_connections = max_connections_option("32");
static constexpr OptionSpec topic{
    .name = "topic",
    .type = OptionType::name,
    .range = "{topic}, {aggregate_type}, {event_type}, {database} and text",
    .default_value = "{topic}",
    .description = "id of the topic of an event"};

// Has the form of PUBSUB_EMULATOR_HOST, without a scheme.
static std::optional<Error> check_emulator_host(const OptionSpec& spec, std::string_view value) {
    if (value.find("://") != std::string_view::npos)
        return invalid_option_value(spec.name,
                                    "Write a host and a port, such as \"127.0.0.1:8085\".");
    return check_endpoint("option \"emulator_host\"", "http://" + std::string(value));
}
static constexpr OptionSpec emulator_host{
    .name = "emulator_host",
    .range = "host and port",
    .description = "emulator to use instead of the service, without TLS and credentials",
    .check = check_emulator_host};
static constexpr OptionSpec create_topics{
    .name = "create_topics",
    .type = OptionType::toggle,
    .default_value = "off",
    .description =
        "whether a topic that does not exist is created, which needs pubsub.topics.create"};
static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    format,
                                    max_connections,
                                    ca_file_option,
                                    topic,
                                    emulator_host,
                                    create_topics,
                                    google_token_option,
                                    google_key_option,
                                    google_key_file_option};
static constexpr std::array parameters{region_parameter, endpoint_parameter};

static std::optional<Error> check_url(const Url& url, std::string_view) {
    if (std::optional<Error> error =
            check_cloud_url(url, "project", "pubsub://my-project", parameters))
        return error;
    if (url.path.empty() || url.path == "/")
        return std::nullopt;
    return Error{ErrorKind::invalid_value, "nothing may follow the project in the URL", "",
                 "Set the option \"topic\" to say which topic events go to."};
}

static constexpr std::array<std::string_view, 1> schemes{"pubsub"};
constinit const SinkDeclaration pubsub_declaration{
    .name = "pubsub",
    .schemes = schemes,
    .url = "pubsub://<project>",
    .title = "Google Pub/Sub",
    .order = "per ordering key",
    .options = options,
    .parameters = parameters,
    .target = &topic,
    .lanes = true,
    .check =
        "address, connection, certificate, credentials, and whether each topic may be published to",
    .check_url = check_url,
    .module = "pg_outbox_pubsub.so"};

// The general address leads to the nearest region. That can change, and then keys lose their order.
static std::string service_url(const Destination& destination) {
    if (destination.options.has(emulator_host))
        return "http://" + destination.options.text(emulator_host);
    if (std::string endpoint = url_parameter(destination.url, endpoint_parameter);
        !endpoint.empty())
        return endpoint;
    const std::string region = url_parameter(destination.url, region_parameter);
    return region.empty() ? "https://pubsub.googleapis.com"
                          : "https://" + region + "-pubsub.googleapis.com";
}

PubsubOptions pubsub_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    return {.source = destination.source,
            .project = destination.url.host,
            .service_url = service_url(destination),
            .emulated = values.has(emulator_host),
            .topic = values.name(topic),
            .create_topics = values.toggle(create_topics),
            .receipts = destination.receipts,
            .format = event_format(values, format),
            .batch_size = values.number(batch_size),
            .transport = transport_options(destination, max_connections),
            .google = google_options(destination)};
}

}  // namespace outbox
