#include "sinks/mqtt/options.hpp"

#include "sinks/mqtt/text.hpp"

namespace outbox {

static constexpr std::string_view default_port = "1883";
static constexpr std::string_view default_tls_port = "8883";

static constexpr OptionSpec batch_size =
    batch_size_option("500", "most events that are handed to the connection together");
static constexpr OptionSpec format{
    .name = "format",
    .type = OptionType::choice,
    .choices = {"attributes", "binary", "structured"},
    .default_value = "attributes",
    .description =
        "the payload with user properties of our own, with those of CloudEvents, or a "
        "CloudEvents document"};
static constexpr OptionSpec topic{
    .name = "topic",
    .type = OptionType::route,
    .range =
        "{topic}, {aggregate_type}, {event_type}, {aggregate_id}, {ordering_key}, {database} "
        "and text",
    .default_value = "{topic}",
    .description = "topic of MQTT that an event is published to"};
static constexpr OptionSpec qos{.name = "qos",
                                .type = OptionType::choice,
                                .choices = {"1", "2"},
                                .default_value = "1",
                                .description =
                                    "quality of service: at least once, or with a "
                                    "handshake that survives a lost connection"};
static constexpr OptionSpec retain{
    .name = "retain",
    .type = OptionType::toggle,
    .default_value = "off",
    .description = "whether the broker keeps the last event of each topic for later subscribers"};
static constexpr OptionSpec message_expiry{
    .name = "message_expiry",
    .type = OptionType::number,
    .max = UINT32_MAX,
    .unit = "seconds",
    .description =
        "time after which the broker drops an event that no subscriber took; if not "
        "set, never"};
static constexpr OptionSpec no_subscribers{
    .name = "no_subscribers",
    .type = OptionType::choice,
    .choices = {"accept", "fail"},
    .default_value = "accept",
    .description = "whether an event is delivered when the broker says that nobody has subscribed"};
// A value that is cut or altered would be that of another client or user.
static std::optional<Error> check_mqtt_password(const OptionSpec& spec, std::string_view value) {
    if (value.size() > max_mqtt_text)
        return invalid_option_value(spec.name, "MQTT takes at most 65,535 bytes.");
    return check_text(spec, value);
}
static std::optional<Error> check_mqtt_text(const OptionSpec& spec, std::string_view value) {
    std::optional<Error> error = check_mqtt_password(spec, value);
    if (!error && !is_mqtt_text(value))
        error = invalid_option_value(spec.name, "It has characters that MQTT does not allow.");
    return error;
}
static constexpr OptionSpec client_id{
    .name = "client_id",
    .description =
        "id of the client; no other client of the broker may have it. If not set, it is made from "
        "cluster, database and destination",
    .check = check_mqtt_text};
static constexpr OptionSpec keep_alive{
    .name = "keep_alive",
    .type = OptionType::number,
    .max = UINT16_MAX,
    .unit = "seconds",
    .default_value = "60",
    .description =
        "longest time without a packet; an idle connection is tested after three "
        "quarters of it"};
static constexpr OptionSpec ca_file{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for mqtts",
    .names_file = NamesFile::yes};
static constexpr OptionSpec user{.name = "user",
                                 .place = OptionPlace::user_mapping,
                                 .description = "user to log in as",
                                 .check = check_mqtt_text};
static constexpr OptionSpec password{.name = "password",
                                     .place = OptionPlace::user_mapping,
                                     .description = "its password",
                                     .secret = true,
                                     .check = check_mqtt_password};

static constexpr std::array options{
    connect_timeout_option, request_timeout_option, batch_size, format,     topic,   qos,  retain,
    no_subscribers,         message_expiry,         client_id,  keep_alive, ca_file, user, password,
    certificate_option,     private_key_option};

static Error invalid(std::string message, std::string hint) {
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

static std::optional<Error> check_url(const Url& url, std::string_view) {
    if (!is_host_name(url.host))
        return invalid("URL names no broker, or one that is not a host name",
                       "Write for example \"mqtts://broker:8883\".");
    if (url.user)
        return invalid("URL must not contain a user", "Set \"user\" in CREATE USER MAPPING.");
    if ((!url.path.empty() && url.path != "/") || !url.query.empty())
        return invalid("nothing may follow the broker in the URL",
                       "Set the option \"topic\" to say which topic events go to.");
    return std::nullopt;
}

static std::optional<Error> check_options(const OptionValues& values) {
    if (values.text(topic).find_first_of("+#") != std::string::npos)
        return invalid("\"topic\" must not contain \"+\" or \"#\"",
                       "These are wildcards of subscriptions; no message has them in its topic.");
    return std::nullopt;
}

static constexpr std::array<std::string_view, 2> schemes{"mqtt", "mqtts"};
constinit const SinkDeclaration mqtt_declaration{
    .name = "mqtt",
    .schemes = schemes,
    .url = "mqtt://<broker>:<port>",
    .title = "MQTT 5",
    .order = "per ordering key",
    .options = options,
    .lanes = true,
    .check =
        "address, connection, certificate, login, and whether the broker takes the options; the "
        "right to "
        "publish is not tested, because no request tells it",
    .check_url = check_url,
    .check_options = check_options,
    .module = "pg_outbox_mqtt.so"};

MqttOptions mqtt_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    const TimeLimits limits = time_limits(destination);
    const bool tls = destination.url.scheme == "mqtts";
    return {.source = destination.source,
            .host = destination.url.host,
            .port = !destination.url.port.empty()
                        ? destination.url.port
                        : std::string(tls ? default_tls_port : default_port),
            .tls = tls,
            .transport = {.allowed_hosts = destination.allowed_hosts,
                          .connect_timeout = limits.connect,
                          .request_timeout = limits.request,
                          .ca_file = values.text(ca_file),
                          .certificate = values.text(certificate_option),
                          .private_key = values.text(private_key_option)},
            .client_id = values.has(client_id) ? values.text(client_id)
                                               : "pg_outbox." + destination.identity,
            .user = values.text(user),
            .password = values.text(password),
            .topic = values.name(topic),
            .format = event_format(values, format),
            .qos = values.text(qos) == "2" ? 2 : 1,
            .retain = values.toggle(retain),
            .message_expiry = values.has(message_expiry)
                                  ? static_cast<std::uint32_t>(values.number(message_expiry))
                                  : 0,
            .needs_subscribers = values.text(no_subscribers) == "fail",
            .keep_alive = static_cast<std::uint16_t>(values.number(keep_alive)),
            .batch_size = values.number(batch_size)};
}

}  // namespace outbox
