#include "sinks/redis/options.hpp"

#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view default_port = "6379";
static constexpr std::string_view default_sentinel_port = "26379";
static constexpr std::int64_t max_databases = 1'000'000;

static constexpr OptionSpec batch_size =
    batch_size_option("500", "most events of a transaction, which Redis executes in one go");
static constexpr OptionSpec format{.name = "format",
                                   .type = OptionType::choice,
                                   .choices = {"attributes", "binary", "structured"},
                                   .default_value = "attributes",
                                   .description =
                                       "the payload beside fields of our own, or those of "
                                       "CloudEvents, or a CloudEvents document"};
static constexpr OptionSpec stream{
    .name = "stream",
    .type = OptionType::name,
    .range = "{topic}, {aggregate_type}, {event_type}, {database} and text",
    .default_value = "{topic}",
    .description = "key of the stream that an event goes to"};
static constexpr OptionSpec ids{.name = "ids",
                                .type = OptionType::choice,
                                .choices = {"position", "auto"},
                                .default_value = "position",
                                .description =
                                    "whether ids of entries are made from positions, so that a "
                                    "repeated event is recognized, or "
                                    "by Redis, as streams with several writers need it"};
static constexpr OptionSpec max_length{.name = "max_length",
                                       .type = OptionType::number,
                                       .max = 1'000'000'000'000,
                                       .unit = "entries",
                                       .description =
                                           "length that a stream is trimmed to, approximately, "
                                           "whether its entries have been read or not"};
static constexpr OptionSpec min_replicas{
    .name = "min_replicas",
    .type = OptionType::number,
    .max = 100,
    .unit = "replicas",
    .description = "replicas that must have an event before it counts as delivered"};
static constexpr OptionSpec sentinel{
    .name = "sentinel",
    .description =
        "name of a primary; the hosts of the URL are Sentinels then, which know its address"};
static constexpr OptionSpec ca_file{
    .name = "ca_file",
    .range = "file of the server",
    .description = "certificates to trust instead of those of the system, for rediss",
    .names_file = NamesFile::yes};
static constexpr OptionSpec user{
    .name = "user",
    .place = OptionPlace::user_mapping,
    .description = "user of an access list; if not set, the default user"};
static constexpr OptionSpec password{.name = "password",
                                     .place = OptionPlace::user_mapping,
                                     .description = "its password",
                                     .secret = true};
static constexpr OptionSpec sentinel_user{.name = "sentinel_user",
                                          .place = OptionPlace::user_mapping,
                                          .description = "user of the Sentinels"};
static constexpr OptionSpec sentinel_password{.name = "sentinel_password",
                                              .place = OptionPlace::user_mapping,
                                              .description = "its password",
                                              .secret = true};

static constexpr std::array options{connect_timeout_option,
                                    request_timeout_option,
                                    batch_size,
                                    format,
                                    stream,
                                    ids,
                                    max_length,
                                    min_replicas,
                                    sentinel,
                                    ca_file,
                                    user,
                                    password,
                                    sentinel_user,
                                    sentinel_password,
                                    certificate_option,
                                    private_key_option};

static Error invalid(std::string message, std::string hint) {
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

// Returns the number in the path "/3", or std::nullopt if it is not the number of a database.
static std::optional<std::size_t> database_of(std::string_view path) {
    if (path.empty() || path == "/")
        return 0;
    const std::optional<std::int64_t> number = parse_integer(path.substr(1));
    if (!number || *number < 0 || *number >= max_databases)
        return std::nullopt;
    return static_cast<std::size_t>(*number);
}

static std::optional<Error> check_url(const Url& url, std::string_view) {
    bool hosts_are_good = is_host_name(url.host);
    for (const auto& [host, port] : url.further_hosts)
        hosts_are_good &= is_host_name(host);
    if (!hosts_are_good)
        return invalid("URL names no host, or one that is not a host name",
                       "Write for example \"redis://redis.example.com:6379\".");
    if (url.user)
        return invalid("URL must not contain a user", "Set \"user\" in CREATE USER MAPPING.");
    if (!database_of(url.path) || !url.query.empty())
        return invalid("nothing but the number of a database may follow the host in the URL",
                       "Write for example \"redis://redis.example.com:6379/1\". The option "
                       "\"stream\" says which stream events go to.");
    return std::nullopt;
}

static constexpr std::array<std::string_view, 2> schemes{"redis", "rediss"};
constinit const SinkDeclaration redis_declaration{
    .name = "redis",
    .schemes = schemes,
    .url = "redis://<host>:<port>[/<database>]",
    .title = "Redis Streams",
    .order = "per ordering key",
    .options = options,
    .hosts = Url::Hosts::list,
    .target = &stream,
    .lanes = true,
    .check =
        "address, connection, certificate, login, role, durability, and whether each stream is one",
    .check_url = check_url,
    .module = "pg_outbox_redis.so"};

RedisOptions redis_options(const Destination& destination) {
    const OptionValues& values = destination.options;
    const TimeLimits limits = time_limits(destination);
    const Url& url = destination.url;
    RedisOptions result{
        .source = destination.source,
        .hosts = {},
        .tls = url.scheme == "rediss",
        .database = database_of(url.path).value_or(0),
        .account = {values.text(user), values.text(password)},
        .sentinel = values.text(sentinel),
        .sentinel_account = {values.text(sentinel_user), values.text(sentinel_password)},
        .transport = {.allowed_hosts = destination.allowed_hosts,
                      .connect_timeout = limits.connect,
                      .request_timeout = limits.request,
                      .ca_file = values.text(ca_file),
                      .certificate = values.text(certificate_option),
                      .private_key = values.text(private_key_option)},
        .stream = values.name(stream),
        .format = event_format(values, format),
        .ids_of_positions = values.text(ids) == "position",
        .max_length = values.has(max_length) ? values.number(max_length) : 0,
        .min_replicas = values.has(min_replicas) ? values.number(min_replicas) : 0,
        .batch_size = values.number(batch_size),
        .receipts = destination.receipts};
    const std::string_view port_of_kind =
        result.sentinel.empty() ? default_port : default_sentinel_port;
    const auto add = [&](const std::string& host, const std::string& port) {
        result.hosts.emplace_back(host, port.empty() ? std::string(port_of_kind) : port);
    };
    add(url.host, url.port);
    for (const auto& [host, port] : url.further_hosts)
        add(host, port);
    return result;
}

}  // namespace outbox
