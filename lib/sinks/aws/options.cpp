#include "sinks/aws/options.hpp"

namespace outbox {

static constexpr OptionSpec batch_size =
    batch_size_option("10", "largest number of messages in a request; the service accepts 10");

// A CloudEvent has more attributes than a message can have.
static std::optional<Error> check_format(const OptionSpec& spec, std::string_view value) {
    std::optional<Error> error = check_choice(spec, value);
    if (error && value == "binary")
        error->detail =
            "A message of SQS and SNS has at most 10 attributes; a CloudEvent has more.";
    return error;
}
static constexpr OptionSpec format{
    .name = "format",
    .type = OptionType::choice,
    .choices = {"attributes", "structured"},
    .default_value = "attributes",
    .description = "the payload with attributes of pg_outbox, or a CloudEvents document",
    .check = check_format};
static constexpr OptionSpec max_connections = max_connections_option("16");
static constexpr std::string_view template_fields =
    "{topic}, {aggregate_type}, {event_type}, {database} and text";
static constexpr OptionSpec queue{
    .name = "queue",
    .type = OptionType::name,
    .range = template_fields,
    .default_value = "{topic}",
    .description = "name of the queue of an event; a name that ends with .fifo is a FIFO queue"};
static constexpr OptionSpec topic{
    .name = "topic",
    .type = OptionType::name,
    .range = template_fields,
    .default_value = "{topic}",
    .description = "name of the topic of an event; a name that ends with .fifo is a FIFO topic"};

static constexpr std::array<OptionSpec, 11> options_with(const OptionSpec& target) {
    return {connect_timeout_option,   request_timeout_option, batch_size,    format,
            max_connections,          ca_file_option,         target,        access_key_id_option,
            secret_access_key_option, session_token_option,   profile_option};
}
static constexpr std::array sqs_options = options_with(queue);
static constexpr std::array sns_options = options_with(topic);

// -------------------------------------------------------------------------------------------------
// SQS, SNS
// -------------------------------------------------------------------------------------------------

static std::optional<Error> check_sqs_url(const Url& url, std::string_view) {
    return check_aws_url(url, "sqs://eu-west-1", false);
}

static std::optional<Error> check_sns_url(const Url& url, std::string_view) {
    return check_aws_url(url, "sns://eu-west-1/123456789012", true);
}

static constexpr std::array<std::string_view, 1> sqs_schemes{"sqs"};
constinit const SinkDeclaration sqs_declaration{
    .name = "sqs",
    .schemes = sqs_schemes,
    .url = "sqs://<region>",
    .title = "Amazon SQS",
    .order = "per ordering key in a FIFO queue",
    .options = sqs_options,
    .parameters = aws_url_parameters,
    .target = &queue,
    .lanes = true,
    .check = "address, connection, certificate, credentials, and whether each queue exists",
    .check_url = check_sqs_url,
    .module = "pg_outbox_aws.so"};

static constexpr std::array<std::string_view, 1> sns_schemes{"sns"};
constinit const SinkDeclaration sns_declaration{
    .name = "sns",
    .schemes = sns_schemes,
    .url = "sns://<region>/<account>",
    .title = "Amazon SNS",
    .order = "per ordering key to a FIFO topic",
    .options = sns_options,
    .parameters = aws_url_parameters,
    .target = &topic,
    .lanes = true,
    .check = "address, connection, certificate, credentials, and whether each topic exists",
    .check_url = check_sns_url,
    .module = "pg_outbox_aws.so"};

// -------------------------------------------------------------------------------------------------
// Kinesis
// -------------------------------------------------------------------------------------------------

static constexpr OptionSpec records =
    batch_size_option("500", "largest number of records in a request; the service accepts 500");

// A record is bytes, and nothing else.
static std::optional<Error> check_record_format(const OptionSpec& spec, std::string_view value) {
    std::optional<Error> error = check_choice(spec, value);
    if (error && (value == "attributes" || value == "binary"))
        error->detail = "A record of Kinesis has no attributes beside its data.";
    return error;
}
static constexpr OptionSpec record_format{
    .name = "format",
    .type = OptionType::choice,
    .choices = {"structured", "payload"},
    .default_value = "structured",
    .description = "a CloudEvents document, or the payload without anything else of the event",
    .check = check_record_format};
static constexpr OptionSpec stream{.name = "stream",
                                   .type = OptionType::name,
                                   .range = template_fields,
                                   .default_value = "{topic}",
                                   .description = "name of the stream of an event"};
static constexpr OptionSpec max_record_size{
    .name = "max_record_size",
    .type = OptionType::number,
    .max = 10 * 1024,
    .unit = "KiB",
    .default_value = "1024",
    .description = "largest record that the streams accept, with its partition key"};
static constexpr std::array kinesis_options{connect_timeout_option,
                                            request_timeout_option,
                                            records,
                                            record_format,
                                            max_connections,
                                            ca_file_option,
                                            stream,
                                            max_record_size,
                                            access_key_id_option,
                                            secret_access_key_option,
                                            session_token_option,
                                            profile_option};

static std::optional<Error> check_kinesis_url(const Url& url, std::string_view) {
    return check_aws_url(url, "kinesis://eu-west-1", false);
}

static constexpr std::array<std::string_view, 1> kinesis_schemes{"kinesis"};
constinit const SinkDeclaration kinesis_declaration{
    .name = "kinesis",
    .schemes = kinesis_schemes,
    .url = "kinesis://<region>",
    .title = "Amazon Kinesis Data Streams",
    .order = "per ordering key",
    .options = kinesis_options,
    .parameters = aws_url_parameters,
    .target = &stream,
    .lanes = true,
    .check = "address, connection, certificate, credentials, and whether each stream is active",
    .check_url = check_kinesis_url,
    .module = "pg_outbox_aws.so"};

// -------------------------------------------------------------------------------------------------
// EventBridge
// -------------------------------------------------------------------------------------------------

static constexpr OptionSpec entries =
    batch_size_option("10", "largest number of events in a request; the service accepts 10");

// An entry has room for attributes only in `detail`.
static std::optional<Error> check_entry_format(const OptionSpec& spec, std::string_view value) {
    std::optional<Error> error = check_choice(spec, value);
    if (error && (value == "attributes" || value == "binary"))
        error->detail = "An event of EventBridge has no attributes beside its detail.";
    return error;
}
static constexpr OptionSpec entry_format{
    .name = "format",
    .type = OptionType::choice,
    .choices = {"structured", "payload"},
    .default_value = "structured",
    .description = "the detail of an event: a CloudEvents document, or the payload, a JSON object",
    .check = check_entry_format};
static constexpr OptionSpec event_bus{.name = "event_bus",
                                      .type = OptionType::name,
                                      .range = template_fields,
                                      .default_value = "default",
                                      .description = "name of the event bus of an event"};
static constexpr OptionSpec event_source{.name = "source",
                                         .type = OptionType::name,
                                         .range = template_fields,
                                         .default_value = "{database}.{aggregate_type}",
                                         .description = "source of an event, which rules match"};
static constexpr OptionSpec verify_bus{.name = "verify_bus",
                                       .type = OptionType::toggle,
                                       .default_value = "on",
                                       .description =
                                           "whether the relay looks once a minute if the event bus "
                                           "exists: the service confirms events "
                                           "for one that does not"};
static constexpr std::array eventbridge_options{connect_timeout_option,
                                                request_timeout_option,
                                                entries,
                                                entry_format,
                                                max_connections,
                                                ca_file_option,
                                                event_bus,
                                                event_source,
                                                verify_bus,
                                                access_key_id_option,
                                                secret_access_key_option,
                                                session_token_option,
                                                profile_option};

static std::optional<Error> check_eventbridge_url(const Url& url, std::string_view) {
    return check_aws_url(url, "eventbridge://eu-west-1", false);
}

static constexpr std::array<std::string_view, 1> eventbridge_schemes{"eventbridge"};
constinit const SinkDeclaration eventbridge_declaration{
    .name = "eventbridge",
    .schemes = eventbridge_schemes,
    .url = "eventbridge://<region>",
    .title = "Amazon EventBridge",
    .order = "none",
    .options = eventbridge_options,
    .parameters = aws_url_parameters,
    .target = &event_bus,
    .lanes = true,
    .check = "address, connection, certificate, credentials, and whether each event bus exists",
    .check_url = check_eventbridge_url,
    .module = "pg_outbox_aws.so"};

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

static AwsKind kind_of(const Destination& destination) {
    const std::string& scheme = destination.url.scheme;
    return scheme == sns_schemes.front()           ? AwsKind::sns
           : scheme == kinesis_schemes.front()     ? AwsKind::kinesis
           : scheme == eventbridge_schemes.front() ? AwsKind::eventbridge
                                                   : AwsKind::sqs;
}

AwsSinkOptions aws_sink_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    AwsSinkOptions options{.kind = kind_of(destination),
                           .source = destination.source,
                           .receipts = destination.receipts,
                           .transport = transport_options(destination, max_connections),
                           .aws = aws_options(destination)};
    switch (options.kind) {
        case AwsKind::sqs:
        case AwsKind::sns:
            options.target = values.name(options.kind == AwsKind::sns ? topic : queue);
            options.format = event_format(values, format);
            options.batch_size = values.number(batch_size);
            break;
        case AwsKind::kinesis:
            options.target = values.name(stream);
            options.format = event_format(values, record_format);
            options.batch_size = values.number(records);
            options.max_record = values.number(max_record_size) * 1024;
            break;
        case AwsKind::eventbridge:
            options.target = values.name(event_bus);
            options.format = event_format(values, entry_format);
            options.batch_size = values.number(entries);
            options.event_source = values.name(event_source);
            options.event_source_text = values.text(event_source).size();
            options.verify_bus = values.toggle(verify_bus);
            break;
    }
    return options;
}

}  // namespace outbox
