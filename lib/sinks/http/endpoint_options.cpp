#include "sinks/http/endpoint_options.hpp"

#include "sinks/http/mapping_options.hpp"

namespace outbox {

static constexpr OptionSpec format{.name = "format",
                                   .type = OptionType::choice,
                                   .choices = {"binary", "structured"},
                                   .default_value = "binary",
                                   .description = "CloudEvents: in headers, or as a JSON document"};
static constexpr OptionSpec on_gone{
    .name = "on_gone",
    .type = OptionType::choice,
    .choices = {"retry", "pause"},
    .default_value = "pause",
    .description =
        "what an answer 410 Gone does: like 404, or it pauses the endpoint until "
        "outbox.resume()"};
static constexpr OptionSpec max_connections{
    .name = "max_connections",
    .type = OptionType::number,
    .max = 500,
    .unit = "requests",
    .default_value = "200",
    .description =
        "requests to all endpoints under way at the same time. Up to as many more are "
        "started while requests hang"};
static constexpr OptionSpec requests_per_endpoint{
    .name = "requests_per_endpoint",
    .type = OptionType::number,
    .max = 100,
    .unit = "requests",
    .default_value = "4",
    .description = "requests to one endpoint under way at the same time; one per ordering key"};
static constexpr OptionSpec signing_secret{
    .name = "signing_secret",
    .place = OptionPlace::user_mapping,
    .range = signing_secret_range,
    .description =
        "master secret: outbox.endpoint_secret() makes the secret of each endpoint from "
        "it, which signs as Standard Webhooks does with v1 (HMAC-SHA256)",
    .secret = true,
    .secret_mark = webhook_secret_mark,
    .check = check_signing_secret};
static constexpr OptionSpec next_signing_secret{
    .name = "next_signing_secret",
    .place = OptionPlace::user_mapping,
    .range = signing_secret_range,
    .description = "master secret whose secrets sign as well, while receivers change to them",
    .secret = true,
    .secret_mark = webhook_secret_mark,
    .check = check_signing_secret};
static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    format,
                                    on_gone,
                                    max_connections,
                                    requests_per_endpoint,
                                    ca_file_option,
                                    headers_option,
                                    signing_secret,
                                    next_signing_secret,
                                    certificate_option,
                                    private_key_option};

static std::optional<Error> check_url(const Url&, std::string_view text) {
    if (text == "endpoints:")
        return std::nullopt;
    return Error{ErrorKind::invalid_value,
                 "the URL of a destination with endpoints is \"endpoints:\", and nothing else", "",
                 "Write \"endpoints:\". Each row of outbox.endpoint has a URL of its own."};
}

// Events that the database keeps for an endpoint that has fallen back are fetched without them.
static std::optional<Error> check_options(const OptionValues& values) {
    if (!has_expressions(values))
        return std::nullopt;
    const std::string_view name =
        values.has(filter_option) ? filter_option.name : payload_option.name;
    return Error{
        ErrorKind::invalid_option,
        "option \"" + std::string(name) + "\" is not valid for a destination with endpoints", "",
        "Use \"topics\" of the server and of its endpoints."};
}

static constexpr std::array<std::string_view, 1> schemes{"endpoints"};
constinit const SinkDeclaration endpoints_declaration{
    .name = "endpoints",
    .schemes = schemes,
    .url = "endpoints:",
    .title = "web servers that are rows of outbox.endpoint",
    .order = "per ordering key, at each endpoint",
    .options = options,
    .ordered = true,
    .check = "the keys that sign; endpoints are not called",
    .check_url = check_url,
    .check_options = check_options,
    .module = "pg_outbox_http.so"};

// Defaults of outbox.retry_base and outbox.retry_max, which the library does not see.
static constexpr Micros usual_retry_base = seconds(1);
static constexpr Micros usual_retry_max = seconds(600);

EndpointOptions endpoint_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    EndpointOptions read{
        .source = destination.source,
        .format = event_format(values, format),
        .pauses_if_gone = values.text(on_gone) == "pause",
        .requests_per_endpoint = values.number(requests_per_endpoint),
        .transport = transport_options(destination, max_connections),
        .retry_base = values.duration(retry_base_option, usual_retry_base),
        .retry_max = values.duration(retry_max_option, usual_retry_max),
        .headers = values.text(headers_option),
        .master_secrets = {values.text(signing_secret), values.text(next_signing_secret)}};
    read.transport.more_connections = read.transport.max_connections;
    return read;
}

}  // namespace outbox
