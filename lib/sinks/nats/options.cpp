#include "sinks/nats/options.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view default_port = "4222";
static constexpr std::string_view bucket_prefix = "$KV.";

static constexpr OptionSpec batch_size = batch_size_option("500", "most events of a batch");
static constexpr OptionSpec format{.name = "format",
                                   .type = OptionType::choice,
                                   .choices = {"attributes", "binary", "structured"},
                                   .default_value = "attributes",
                                   .description =
                                       "the payload with headers of our own, with those of "
                                       "CloudEvents, or a CloudEvents document"};

static bool is_subject_text(std::string_view value) {
    return std::none_of(value.begin(), value.end(), [](char c) {
        return static_cast<unsigned char>(c) <= ' ' || c == 0x7f || c == '*' || c == '>' ||
               c == '%';
    });
}

static std::optional<Error> check_subject(const OptionSpec& spec, std::string_view value) {
    const Result<TextTemplate> parsed = TextTemplate::parse(value, TextTemplate::Kind::route);
    if (!parsed) {
        Error error = invalid_option_value(spec.name, parsed.error().hint);
        error.detail = parsed.error().message + '.';
        return error;
    }
    if (!is_subject_text(value))
        return invalid_option_value(spec.name,
                                    "A subject has no blanks, no wildcards and no percent sign.");
    if (value.starts_with('$') && !value.starts_with(bucket_prefix))
        return invalid_option_value(spec.name,
                                    "Of the subjects that NATS reserves, only those of a "
                                    "key-value bucket take events: \"$KV.<bucket>.<key>\".");
    return std::nullopt;
}
static constexpr OptionSpec subject{
    .name = "subject",
    .type = OptionType::route,
    .range =
        "{topic}, {aggregate_type}, {event_type}, {database}, {aggregate_id}, {ordering_key} and "
        "text",
    .default_value = "{topic}",
    .description = "subject that an event is published to",
    .check = check_subject};
static constexpr OptionSpec stream{
    .name = "stream",
    .type = OptionType::name,
    .range = "{topic}, {aggregate_type}, {event_type}, {database} and text",
    .description = "stream that must take the event; if not set, the stream that has its subject"};
static constexpr OptionSpec sequence_header{
    .name = "expected_sequence_header",
    .description =
        "header of the event with the sequence that the last message of its subject must have, "
        "or else the event is refused"};

static std::optional<Error> check_inbox_prefix(const OptionSpec& spec, std::string_view value) {
    if (!value.empty() && value.size() <= 100 && is_subject_text(value) && value.back() != '.' &&
        value.front() != '.' && value.find("..") == std::string_view::npos)
        return std::nullopt;
    return invalid_option_value(spec.name, "Write the beginning of a subject, such as \"_INBOX\".");
}
static constexpr OptionSpec inbox_prefix{
    .name = "inbox_prefix",
    .range = "beginning of a subject",
    .default_value = "_INBOX",
    .description = "where the user may subscribe; answers of the server arrive there",
    .check = check_inbox_prefix};
static constexpr OptionSpec tls_first{
    .name = "tls_handshake_first",
    .type = OptionType::toggle,
    .default_value = "off",
    .description = "whether TLS begins at once, for servers with handshake_first"};
static constexpr OptionSpec ca_file{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for tls",
    .names_file = NamesFile::yes};

static constexpr OptionSpec user{
    .name = "user", .place = OptionPlace::user_mapping, .description = "user to log in as"};
static constexpr OptionSpec password{.name = "password",
                                     .place = OptionPlace::user_mapping,
                                     .description = "password of the user",
                                     .secret = true};
static constexpr OptionSpec token{.name = "token",
                                  .place = OptionPlace::user_mapping,
                                  .description = "token to log in with, instead of a user",
                                  .secret = true};

static bool is_base32(char c) {
    return (c >= 'A' && c <= 'Z') || (c >= '2' && c <= '7');
}
static std::optional<Error> check_seed(const OptionSpec& spec, std::string_view value) {
    if (value.size() == 58 && value.starts_with("SU") &&
        std::all_of(value.begin(), value.end(), is_base32))
        return std::nullopt;
    return invalid_option_value(spec.name,
                                "Give the seed of a user's key, which begins with \"SU\".");
}
static constexpr OptionSpec nkey_seed{.name = "nkey_seed",
                                      .place = OptionPlace::user_mapping,
                                      .range = "seed of a user",
                                      .description = "key to log in with (NKey)",
                                      .secret = true,
                                      .check = check_seed};

static std::optional<Error> check_credentials(const OptionSpec& spec, std::string_view value) {
    if (value.find("BEGIN NATS USER JWT") != std::string_view::npos &&
        value.find("BEGIN USER NKEY SEED") != std::string_view::npos)
        return std::nullopt;
    return invalid_option_value(spec.name,
                                "Give the text of a file of credentials, with all its lines.");
}
static constexpr OptionSpec credentials{
    .name = "credentials",
    .place = OptionPlace::user_mapping,
    .range = "text of a .creds file",
    .description = "JWT and key to log in with, as nsc writes them",
    .secret = true,
    .check = check_credentials};

static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    format,
                                    subject,
                                    stream,
                                    sequence_header,
                                    inbox_prefix,
                                    tls_first,
                                    ca_file,
                                    user,
                                    password,
                                    token,
                                    nkey_seed,
                                    credentials,
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
        return invalid("URL names no server, or one that is not a host name",
                       "Write for example \"nats://server1:4222,server2:4222\".");
    if (url.user)
        return invalid("URL must not contain a user", "Set \"user\" in CREATE USER MAPPING.");
    if ((!url.path.empty() && url.path != "/") || !url.query.empty())
        return invalid("nothing may follow the servers in the URL",
                       "Set the option \"subject\" to say where events go.");
    return std::nullopt;
}

static constexpr std::array<std::string_view, 2> schemes{"nats", "tls"};
constinit const SinkDeclaration nats_declaration{
    .name = "nats",
    .schemes = schemes,
    .url = "nats://<server>:<port>,...",
    .title = "NATS JetStream",
    .order = "per ordering key",
    .options = options,
    .hosts = Url::Hosts::list,
    .target = &subject,
    .lanes = true,
    .check = "address, connection, certificate, login, and whether a stream takes each subject",
    .check_url = check_url,
    .module = "pg_outbox_nats.so"};

NatsOptions nats_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    const TimeLimits limits = time_limits(destination);
    NatsOptions result{.source = destination.source,
                       .hosts = {},
                       .tls = destination.url.scheme == "tls",
                       .tls_first = values.toggle(tls_first),
                       .transport = {.allowed_hosts = destination.allowed_hosts,
                                     .connect_timeout = limits.connect,
                                     .request_timeout = limits.request,
                                     .ca_file = values.text(ca_file),
                                     .certificate = values.text(certificate_option),
                                     .private_key = values.text(private_key_option)},
                       .login = {.user = values.text(user),
                                 .password = values.text(password),
                                 .token = values.text(token),
                                 .nkey_seed = values.text(nkey_seed),
                                 .credentials = values.text(credentials)},
                       .subject = values.name(subject),
                       .may_use_dollar = values.text(subject).starts_with(bucket_prefix),
                       .stream = values.has(stream) ? values.name(stream) : TextTemplate(),
                       .sequence_header = values.text(sequence_header),
                       .inbox_prefix = values.text(inbox_prefix),
                       .format = event_format(values, format),
                       .batch_size = values.number(batch_size),
                       .receipts = destination.receipts};
    const auto add = [&](const std::string& host, const std::string& port) {
        result.hosts.emplace_back(host, port.empty() ? std::string(default_port) : port);
    };
    add(destination.url.host, destination.url.port);
    for (const auto& [host, port] : destination.url.further_hosts)
        add(host, port);
    return result;
}

}  // namespace outbox
