#include "sinks/kafka/options.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view default_port = "9092";
static constexpr std::size_t least_request_size = 1000;  // of the library

static constexpr OptionSpec batch_size = batch_size_option("1000", "most events of a batch");
static constexpr OptionSpec format{.name = "format",
                                   .type = OptionType::choice,
                                   .choices = {"attributes", "binary", "structured"},
                                   .default_value = "attributes",
                                   .description =
                                       "the payload with headers of our own, with those of "
                                       "CloudEvents, or a CloudEvents document"};
static std::optional<Error> check_headers(const OptionSpec& spec, std::string_view value) {
    const auto parsed = parse_named_attributes(spec.name, value);
    return parsed ? std::nullopt : std::optional(parsed.error());
}
static constexpr OptionSpec headers{
    .name = "headers",
    .range = "event_id:id, event_type, ...",
    .description =
        "attributes that become headers, each with the name of its header; if not set, all of them",
    .check = check_headers};
static constexpr OptionSpec json_key{
    .name = "json_key",
    .type = OptionType::toggle,
    .default_value = "off",
    .description = "whether the key is a JSON string, in quotes, as JsonConverter writes it"};
static constexpr OptionSpec json_payload{
    .name = "json_payload",
    .type = OptionType::choice,
    .choices = {"unchanged", "compact", "string"},
    .default_value = "unchanged",
    .description = "a JSON payload as it is, without white space, or as the text of a JSON string"};
static constexpr OptionSpec timestamp{
    .name = "timestamp",
    .type = OptionType::choice,
    .choices = {"published", "occurred"},
    .default_value = "published",
    .description =
        "time of a record: when it is sent, or occurred_at; brokers delete records by it"};
static constexpr OptionSpec topic{
    .name = "topic",
    .type = OptionType::name,
    .range = "{topic}, {aggregate_type}, {event_type}, {database} and text",
    .default_value = "{topic}",
    .description = "topic that an event goes to"};
static constexpr OptionSpec partitioner{
    .name = "partitioner",
    .type = OptionType::choice,
    .choices = {"murmur2_random", "consistent_random"},
    .default_value = "murmur2_random",
    .description =
        "how the ordering key determines the partition: as Java clients do, or as librdkafka does "
        "by default"};
static constexpr OptionSpec partition_header{
    .name = "partition_header",
    .description =
        "header of the event with the number of its partition, instead of a partitioner"};
static constexpr OptionSpec compression{
    .name = "compression",
    .type = OptionType::choice,
    .choices = {"none", "gzip", "snappy", "lz4", "zstd"},
    .description = "compression of batches; if not set, zstd, or lz4 where librdkafka has no zstd"};
static constexpr OptionSpec max_request_size{
    .name = "max_request_size",
    .type = OptionType::number,
    .max = 100'000'000,
    .unit = "bytes",
    .default_value = "1000000",
    .description =
        "largest request, and so largest event; not more than message.max.bytes of the brokers"};
static constexpr OptionSpec exactly_once{
    .name = "exactly_once",
    .type = OptionType::toggle,
    .default_value = "off",
    .description = "whether a consumer that reads only committed records gets each event once"};
static constexpr OptionSpec ca_file{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for kafkas",
    .names_file = NamesFile::yes};
static constexpr OptionSpec https_ca_file{
    .name = "https_ca_file",
    .range = "file of the server",
    .description =
        "certificates to trust instead of those of the system, for token_endpoint and "
        "schema_registry",
    .names_file = NamesFile::yes};

static std::optional<Error> check_event_types(const OptionSpec& spec, std::string_view value) {
    if (TopicFilter::parse(value))
        return std::nullopt;
    return invalid_option_value(spec.name,
                                "Write a list of event types, such as \"VideoDeleted, *Removed\".");
}
static constexpr OptionSpec tombstone_after{
    .name = "tombstone_after",
    .range = "patterns, separated by commas",
    .description =
        "types of events that delete: a tombstone of their key follows; * stands for any run of "
        "characters",
    .check = check_event_types};

static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    format,
                                    headers,
                                    json_key,
                                    json_payload,
                                    timestamp,
                                    topic,
                                    partitioner,
                                    partition_header,
                                    tombstone_after,
                                    schema_registry_option,
                                    schema_subject_option,
                                    schema_id_header_option,
                                    schema_format_option,
                                    message_index_header_option,
                                    compression,
                                    max_request_size,
                                    exactly_once,
                                    ca_file,
                                    sasl_mechanism_option,
                                    token_endpoint_option,
                                    client_id_option,
                                    scope_option,
                                    token_extensions_option,
                                    msk_region_option,
                                    https_ca_file,
                                    sasl_user_option,
                                    sasl_password_option,
                                    client_secret_option,
                                    registry_user_option,
                                    registry_password_option,
                                    access_key_id_option,
                                    secret_access_key_option,
                                    session_token_option,
                                    profile_option,
                                    certificate_option,
                                    private_key_option};

static Error invalid(std::string message, std::string hint) {
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

static std::optional<Error> check_url(const Url& url, std::string_view) {
    bool hosts_are_good = is_host_name(url.host);
    for (const auto& [host, port] : url.further_hosts)
        hosts_are_good &= is_host_name(host);
    if (!hosts_are_good)
        return invalid("URL names no broker, or one that is not a host name",
                       "Write for example \"kafka://broker1:9092,broker2:9092\".");
    if (url.user)
        return invalid("URL must not contain a user", "Set \"user\" in CREATE USER MAPPING.");
    if ((!url.path.empty() && url.path != "/") || !url.query.empty())
        return invalid("nothing may follow the brokers in the URL",
                       "Set the option \"topic\" to say which topic events go to.");
    return std::nullopt;
}

static std::optional<Error> check_options(const OptionValues& values) {
    if (std::optional<Error> error = check_login(values))
        return error;
    if (std::optional<Error> error = check_schemas(values))
        return error;
    if (schema_options(values).are_used() && values.text(format) == "structured")
        return invalid("schemas and the format \"structured\" exclude each other",
                       "A document of CloudEvents has no schema in a registry.");
    if (values.has(headers) && values.text(format) != "attributes")
        return invalid("\"headers\" needs \"format\" to be \"attributes\"",
                       "The other formats have the headers of CloudEvents.");
    if (values.has(json_payload) && values.text(format) == "structured")
        return invalid("\"json_payload\" and the format \"structured\" exclude each other",
                       "The payload is a part of the document.");
    if (values.has(partitioner) && values.has(partition_header))
        return invalid("\"partitioner\" and \"partition_header\" exclude each other",
                       "Where a header names the partition there is nothing left to compute.");
    return std::nullopt;
}

static constexpr std::array<std::string_view, 2> schemes{"kafka", "kafkas"};
constinit const SinkDeclaration kafka_declaration{
    .name = "kafka",
    .schemes = schemes,
    .url = "kafka://<broker>:<port>,...",
    .title = "Apache Kafka",
    .order = "per ordering key",
    .options = options,
    .hosts = Url::Hosts::list,
    .target = &topic,
    .lanes = true,
    .check = "address, connection, certificate, login, and whether each topic exists",
    .check_url = check_url,
    .check_options = check_options,
    .module = "pg_outbox_kafka.so"};

static RecordForm record_form(const OptionValues& values) {
    const std::string text = values.text(json_payload);
    RecordForm form{.format = event_format(values, format),
                    .json_key = values.toggle(json_key),
                    .json_payload = text == "compact"  ? JsonPayload::compact
                                    : text == "string" ? JsonPayload::string
                                                       : JsonPayload::unchanged};
    if (values.has(headers))
        if (auto named = parse_named_attributes(headers.name, values.text(headers)))
            form.headers = std::move(named.value());
    return form;
}

static void append_broker(std::string& list, const std::string& host, const std::string& port) {
    if (!list.empty())
        list += ',';
    const bool is_ipv6 = host.find(':') != std::string::npos;
    list.append(is_ipv6 ? "[" : "").append(host).append(is_ipv6 ? "]:" : ":");
    list.append(port.empty() ? default_port : port);
}

KafkaOptions kafka_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    KafkaOptions result{
        .source = destination.source,
        .brokers = {},
        .tls = destination.url.scheme == "kafkas",
        .ca_file = values.text(ca_file),
        .certificate = values.text(certificate_option),
        .private_key = values.text(private_key_option),
        .login = kafka_login(destination),
        .https = {.allowed_hosts = destination.allowed_hosts,
                  .connect_timeout = time_limits(destination).connect,
                  .request_timeout = time_limits(destination).request,
                  .ca_file = values.text(https_ca_file)},
        .topic = values.name(topic),
        .form = record_form(values),
        .schemas = schema_options(values),
        .has_time_of_event = values.text(timestamp) == "occurred",
        .tombstone_after =
            values.has(tombstone_after)
                ? std::optional(TopicFilter::parse(values.text(tombstone_after)).value())
                : std::nullopt,
        .partitioner = values.text(partitioner),
        .partition_header = values.text(partition_header),
        .compression = values.text(compression),
        .batch_size = values.number(batch_size),
        .max_request_size = std::max(least_request_size, values.number(max_request_size)),
        .exactly_once = values.toggle(exactly_once),
        .identity = destination.identity,
        .transactional_id = {},
        .receipts = destination.receipts,
        .limits = time_limits(destination),
        .allowed_hosts = destination.allowed_hosts};
    append_broker(result.brokers, destination.url.host, destination.url.port);
    for (const auto& [host, port] : destination.url.further_hosts)
        append_broker(result.brokers, host, port);
    return result;
}

}  // namespace outbox
