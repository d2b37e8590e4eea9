#include "sinks/http/options.hpp"

#include "sinks/http/mapping_options.hpp"

namespace outbox {

static constexpr OptionSpec batch_size =
    batch_size_option("100", "largest number of events in a request, for the format \"batched\"");
static constexpr OptionSpec format{
    .name = "format",
    .type = OptionType::choice,
    .choices = {"binary", "structured", "batched"},
    .default_value = "binary",
    .description = "CloudEvents: in headers, as a JSON document, or as an array of those"};
static constexpr OptionSpec on_gone{
    .name = "on_gone",
    .type = OptionType::choice,
    .choices = {"retry", "pause"},
    .default_value = "retry",
    .description =
        "what an answer 410 Gone does: like 404, or it pauses the destination until "
        "outbox.resume()"};
static constexpr OptionSpec max_connections = max_connections_option("16");
static constexpr OptionSpec user{.name = "user",
                                 .place = OptionPlace::user_mapping,
                                 .description = "user of basic authentication"};
static constexpr OptionSpec password{.name = "password",
                                     .place = OptionPlace::user_mapping,
                                     .description = "password of basic authentication",
                                     .secret = true};
static constexpr OptionSpec token{.name = "token",
                                  .place = OptionPlace::user_mapping,
                                  .description = "sent as Authorization: Bearer",
                                  .secret = true};
static constexpr OptionSpec signing_secret{
    .name = "signing_secret",
    .place = OptionPlace::user_mapping,
    .range = signing_secret_range,
    .description = "signs each request, as Standard Webhooks does with v1 (HMAC-SHA256)",
    .secret = true,
    .secret_mark = webhook_secret_mark,
    .check = check_signing_secret};
static constexpr OptionSpec next_signing_secret{
    .name = "next_signing_secret",
    .place = OptionPlace::user_mapping,
    .range = signing_secret_range,
    .description = "signs each request as well, while receivers change to it",
    .secret = true,
    .secret_mark = webhook_secret_mark,
    .check = check_signing_secret};
static std::optional<Error> check_signing_key(const OptionSpec& spec, std::string_view value) {
    if (webhook_key_bytes(value))
        return std::nullopt;
    return invalid_option_value(
        spec.name,
        "Write \"whsk_\" and a private key of Ed25519 in base64: its 32 bytes, or these "
        "and the 32 bytes of its public key.");
}
static constexpr std::string_view key_range = "`whsk_` and a key of Ed25519 in base64";
static constexpr OptionSpec signing_key{
    .name = "signing_key",
    .place = OptionPlace::user_mapping,
    .range = key_range,
    .description = "signs each request, as Standard Webhooks does with v1a (Ed25519)",
    .secret = true,
    .secret_mark = webhook_key_mark,
    .check = check_signing_key};
static constexpr OptionSpec next_signing_key{
    .name = "next_signing_key",
    .place = OptionPlace::user_mapping,
    .range = key_range,
    .description = "signs each request as well, while receivers change to its public key",
    .secret = true,
    .secret_mark = webhook_key_mark,
    .check = check_signing_key};
static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    format,
                                    on_gone,
                                    max_connections,
                                    ca_file_option,
                                    user,
                                    password,
                                    token,
                                    headers_option,
                                    signing_secret,
                                    next_signing_secret,
                                    signing_key,
                                    next_signing_key,
                                    certificate_option,
                                    private_key_option};

static std::optional<Error> check_url(const Url& url, std::string_view) {
    if (url.host.empty())
        return Error{ErrorKind::invalid_value, "URL has no host", "",
                     "Write for example \"https://example.com/events\"."};
    if (url.user)
        return Error{ErrorKind::invalid_value, "URL must not contain a user or password", "",
                     "Set \"user\" and \"password\", or \"token\", in CREATE USER MAPPING."};
    return std::nullopt;
}

static std::optional<Error> check_options(const OptionValues& values) {
    if (!values.has(batch_size) || values.number(batch_size) == 1 ||
        event_format(values, format) == EventFormat::batched)
        return std::nullopt;
    return Error{ErrorKind::invalid_value, "option \"batch_size\" has no effect here", "",
                 "Set the option \"format\" to \"batched\"."};
}

static constexpr std::array<std::string_view, 2> schemes{"http", "https"};
constinit const SinkDeclaration http_declaration{
    .name = "http",
    .schemes = schemes,
    .url = "https://<host>/<path>",
    .title = "a web server",
    .order = "per ordering key",
    .options = options,
    .check = "address, connection, with https the certificate, and the keys that sign",
    .check_url = check_url,
    .check_options = check_options,
    .module = "pg_outbox_http.so"};

HttpOptions http_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    return {.url = destination.url_text,
            .source = destination.source,
            .format = event_format(values, format),
            .batch_size = values.number(batch_size),
            .pauses_if_gone = values.text(on_gone) == "pause",
            .transport = transport_options(destination, max_connections),
            .token = values.text(token),
            .user = values.text(user),
            .password = values.text(password),
            .headers = values.text(headers_option),
            .signing_secrets = {values.text(signing_secret), values.text(next_signing_secret)},
            .signing_keys = {values.text(signing_key), values.text(next_signing_key)}};
}

}  // namespace outbox
