#include "core/destination.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <span>

#include "core/percent.hpp"
#include "core/text.hpp"

namespace outbox {

namespace {

struct Scheme {
    std::string_view name;
    SinkKind kind;
};
constexpr std::array schemes{
    Scheme{"null", SinkKind::null},
    Scheme{"http", SinkKind::http},
    Scheme{"https", SinkKind::http},
    Scheme{"postgresql", SinkKind::postgresql},
    Scheme{"postgres", SinkKind::postgresql},
    Scheme{"pubsub", SinkKind::pubsub},
    Scheme{"sqs", SinkKind::sqs},
    Scheme{"sns", SinkKind::sns},
    Scheme{"pull", SinkKind::pull},
};

enum class Home { server, user_mapping };

using Apply = std::optional<Error> (*)(Destination&, std::string_view value);

// One row per option: where it is set, which sinks take it, and what it does.
struct OptionRule {
    std::string_view name;
    Home home;
    std::initializer_list<SinkKind> sinks;  // empty: all
    Apply apply;
};

Error invalid(std::string message, std::string hint = "") {
    return {ErrorKind::invalid_value, std::move(message), "", std::move(hint)};
}

std::optional<Error> set_duration(Micros& target, std::string_view name, std::string_view value) {
    Result<Micros> duration = parse_duration(value);
    if (!duration)
        return Error{ErrorKind::invalid_value,
                     "invalid value for option \"" + std::string(name) + "\"",
                     duration.error().message, duration.error().hint};
    target = duration.value();
    return std::nullopt;
}

std::optional<Error> set_count(std::size_t& target, std::string_view name, std::string_view value,
                               std::int64_t max) {
    const auto number = parse_integer(value);
    if (!number || *number < 1 || *number > max)
        return invalid("invalid value for option \"" + std::string(name) + "\"",
                       "Write a number from 1 to " + std::to_string(max) + ".");
    target = static_cast<std::size_t>(*number);
    return std::nullopt;
}

std::optional<Error> set_text(std::string& target, std::string_view name, std::string_view value) {
    const bool printable = std::all_of(value.begin(), value.end(), [](char c) {
        return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
    });
    if (value.empty() || !printable)
        return invalid(
            "option \"" + std::string(name) + "\" must not be empty or contain control characters",
            "Leave the option out to have none.");
    target = value;
    return std::nullopt;
}

std::optional<Error> set_switch(bool& target, std::string_view name, std::string_view value) {
    if (value != "on" && value != "off")
        return invalid("invalid value for option \"" + std::string(name) + "\"",
                       "Write \"on\" or \"off\".");
    target = value == "on";
    return std::nullopt;
}

std::optional<Error> set_target(Destination& destination, std::string_view name,
                                std::string_view value) {
    Result<TextTemplate> parsed = TextTemplate::parse(value);
    if (!parsed)
        return Error{ErrorKind::invalid_value,
                     "invalid value for option \"" + std::string(name) + "\"",
                     parsed.error().message + ".", parsed.error().hint};
    destination.target = std::move(parsed.value());
    return std::nullopt;
}

std::optional<Error> set_format(Destination& destination, std::string_view value) {
    const bool is_http = destination.kind == SinkKind::http;
    const bool is_aws = destination.kind == SinkKind::sqs || destination.kind == SinkKind::sns;
    if (value == "binary" && is_aws)
        return Error{ErrorKind::invalid_value, "invalid value for option \"format\"",
                     "A message of SQS and SNS has at most 10 attributes, a CloudEvent has more.",
                     "Write \"attributes\" or \"structured\"."};
    if (value == "binary")
        destination.format = EventFormat::binary;
    else if (value == "structured")
        destination.format = EventFormat::structured;
    else if (value == "batched" && is_http)
        destination.format = EventFormat::batched;
    else if (value == "attributes" && !is_http)
        destination.format = EventFormat::attributes;
    else
        return invalid("invalid value for option \"format\"",
                       is_http  ? "Write \"binary\", \"structured\" or \"batched\"."
                       : is_aws ? "Write \"attributes\" or \"structured\"."
                                : "Write \"attributes\", \"binary\" or \"structured\".");
    return std::nullopt;
}

std::optional<Error> set_endpoint(Destination& destination, std::string_view what,
                                  std::string_view value) {
    Result<Url> url = Url::parse(value);
    const bool usable = url && (url.value().scheme == "http" || url.value().scheme == "https") &&
                        !url.value().host.empty() && !url.value().user &&
                        (url.value().path.empty() || url.value().path == "/") &&
                        url.value().query.empty();
    if (!usable)
        return invalid("invalid " + std::string(what) + " \"" + std::string(value) + "\"",
                       "Write a scheme, a host and perhaps a port, such as "
                       "\"https://pubsub.example.com\" or \"http://127.0.0.1:8085\".");
    destination.endpoint = std::move(url.value());
    destination.endpoint_text = value;
    return std::nullopt;
}

// As PUBSUB_EMULATOR_HOST has it: host and port without a scheme.
std::optional<Error> set_emulator(Destination& destination, std::string_view value) {
    if (value.find("://") != std::string_view::npos)
        return invalid("invalid value for option \"emulator_host\"",
                       "Write a host and a port, such as \"127.0.0.1:8085\".");
    destination.emulated = true;
    return set_endpoint(destination, "option \"emulator_host\"", "http://" + std::string(value));
}

std::optional<Error> apply_url(Destination& destination, std::string_view value);

// Options that are read in SQL (outbox_internal.destination_option) are only checked here.
std::optional<Error> check_duration(std::string_view name, std::string_view value) {
    Micros ignored;
    return set_duration(ignored, name, value);
}

const std::initializer_list<SinkKind> all{};
const std::initializer_list<SinkKind> postgresql{SinkKind::postgresql};
const std::initializer_list<SinkKind> pull{SinkKind::pull};
const std::initializer_list<SinkKind> networked{SinkKind::http, SinkKind::postgresql,
                                                SinkKind::pubsub, SinkKind::sqs, SinkKind::sns};
const std::initializer_list<SinkKind> over_http{SinkKind::http, SinkKind::pubsub, SinkKind::sqs,
                                                SinkKind::sns};
const std::initializer_list<SinkKind> http_or_postgresql{SinkKind::http, SinkKind::postgresql};
const std::initializer_list<SinkKind> http_or_pubsub{SinkKind::http, SinkKind::pubsub};
const std::initializer_list<SinkKind> pubsub{SinkKind::pubsub};
const std::initializer_list<SinkKind> topics{SinkKind::pubsub, SinkKind::sns};
const std::initializer_list<SinkKind> queues{SinkKind::sqs};
const std::initializer_list<SinkKind> aws{SinkKind::sqs, SinkKind::sns};

const OptionRule rules[] = {
    {"url", Home::server, all, apply_url},
    {"topics", Home::server, all,
     [](Destination& d, std::string_view value) -> std::optional<Error> {
         Result<TopicFilter> filter = TopicFilter::parse(value);
         if (!filter)
             return filter.error();
         d.topics = std::move(filter.value());
         return std::nullopt;
     }},
    {"start", Home::server, all,
     [](Destination& d, std::string_view value) -> std::optional<Error> {
         if (value == "beginning")
             d.start = Start::beginning;
         else if (value == "end")
             d.start = Start::end;
         else
             return invalid("invalid value for option \"start\"",
                            "Write \"beginning\" or \"end\".");
         return std::nullopt;
     }},
    {"max_attempts", Home::server, all,
     [](Destination&, std::string_view value) {
         std::size_t ignored;
         return set_count(ignored, "max_attempts", value, 1'000'000);
     }},
    {"retry_base", Home::server, all,
     [](Destination&, std::string_view value) { return check_duration("retry_base", value); }},
    {"retry_max", Home::server, all,
     [](Destination&, std::string_view value) { return check_duration("retry_max", value); }},
    {"on_dead_letter", Home::server, all,
     [](Destination&, std::string_view value) -> std::optional<Error> {
         if (value != "release" && value != "block")
             return invalid("invalid value for option \"on_dead_letter\"",
                            "Write \"release\" or \"block\".");
         return std::nullopt;
     }},
    {"receipts", Home::server, all,
     [](Destination& d, std::string_view value) {
         return set_switch(d.receipts, "receipts", value);
     }},
    {"connect_timeout", Home::server, networked,
     [](Destination& d, std::string_view value) {
         return set_duration(d.connect_timeout, "connect_timeout", value);
     }},
    {"request_timeout", Home::server, networked,
     [](Destination& d, std::string_view value) {
         return set_duration(d.request_timeout, "request_timeout", value);
     }},
    {"batch_size", Home::server, networked,
     [](Destination& d, std::string_view value) {
         return set_count(d.batch_size, "batch_size", value, 10'000);
     }},
    {"format", Home::server, over_http, set_format},
    {"max_connections", Home::server, over_http,
     [](Destination& d, std::string_view value) {
         return set_count(d.max_connections, "max_connections", value, 256);
     }},
    {"ca_file", Home::server, over_http,
     [](Destination& d, std::string_view value) { return set_text(d.ca_file, "ca_file", value); }},
    {"consumer", Home::server, postgresql,
     [](Destination& d, std::string_view value) {
         return set_text(d.consumer, "consumer", value);
     }},
    {"topic", Home::server, topics,
     [](Destination& d, std::string_view value) { return set_target(d, "topic", value); }},
    {"queue", Home::server, queues,
     [](Destination& d, std::string_view value) { return set_target(d, "queue", value); }},
    {"emulator_host", Home::server, pubsub, set_emulator},
    {"create_topics", Home::server, pubsub,
     [](Destination& d, std::string_view value) {
         return set_switch(d.create_topics, "create_topics", value);
     }},
    {"lanes", Home::server, pull,
     [](Destination&, std::string_view value) {
         std::size_t ignored;
         return set_count(ignored, "lanes", value, 1'024);
     }},

    {"user", Home::user_mapping, http_or_postgresql,
     [](Destination& d, std::string_view value) { return set_text(d.user, "user", value); }},
    {"password", Home::user_mapping, http_or_postgresql,
     [](Destination& d, std::string_view value) {
         return set_text(d.password, "password", value);
     }},
    {"token", Home::user_mapping, http_or_pubsub,
     [](Destination& d, std::string_view value) { return set_text(d.token, "token", value); }},
    {"key", Home::user_mapping, pubsub,  // of several lines; what is in it the sink sees to
     [](Destination& d, std::string_view value) -> std::optional<Error> {
         if (trim(value).empty())
             return invalid("option \"key\" must not be empty",
                            "It is the text of the key file of a service account.");
         d.key = value;
         return std::nullopt;
     }},
    {"key_file", Home::user_mapping, pubsub,
     [](Destination& d, std::string_view value) {
         return set_text(d.key_file, "key_file", value);
     }},
    {"access_key_id", Home::user_mapping, aws,
     [](Destination& d, std::string_view value) {
         return set_text(d.access_key_id, "access_key_id", value);
     }},
    {"secret_access_key", Home::user_mapping, aws,
     [](Destination& d, std::string_view value) {
         return set_text(d.secret_access_key, "secret_access_key", value);
     }},
    {"session_token", Home::user_mapping, aws,
     [](Destination& d, std::string_view value) {
         return set_text(d.session_token, "session_token", value);
     }},
    {"profile", Home::user_mapping, aws,
     [](Destination& d, std::string_view value) { return set_text(d.profile, "profile", value); }},
    {"sslcert", Home::user_mapping, postgresql,
     [](Destination& d, std::string_view value) { return set_text(d.ssl_cert, "sslcert", value); }},
    {"sslkey", Home::user_mapping, postgresql,
     [](Destination& d, std::string_view value) { return set_text(d.ssl_key, "sslkey", value); }},
};

bool takes(const OptionRule& rule, SinkKind kind) {
    return rule.sinks.size() == 0 ||
           std::find(rule.sinks.begin(), rule.sinks.end(), kind) != rule.sinks.end();
}

std::string joined(const std::vector<std::string_view>& names) {
    std::string text;
    for (std::string_view name : names) {
        if (!text.empty())
            text += ", ";
        text += name;
    }
    return text;
}

// Options of a user mapping are checked without their server at hand: `kind` is nothing then.
std::string valid_options(Home home, std::optional<SinkKind> kind) {
    std::vector<std::string_view> names;
    for (const OptionRule& rule : rules)
        if (rule.home == home && (!kind || takes(rule, *kind)))
            names.push_back(rule.name);
    return names.empty() ? "There are no valid options here."
                         : "Valid options are: " + joined(names) + ".";
}

Error unknown_option(std::string_view name, Home home, std::optional<SinkKind> kind) {
    const auto elsewhere =
        std::find_if(std::begin(rules), std::end(rules),
                     [&](const OptionRule& r) { return r.name == name && r.home != home; });
    std::string detail;
    if (elsewhere != std::end(rules))
        detail = elsewhere->home == Home::user_mapping
                     ? "It belongs into CREATE USER MAPPING, where others cannot read it."
                     : "It belongs into CREATE SERVER.";
    return {ErrorKind::invalid_option, "invalid option \"" + std::string(name) + "\"", detail,
            valid_options(home, kind)};
}

std::optional<Error> check_http_url(const Url& url) {
    if (url.host.empty())
        return invalid("URL has no host", "Write for example \"https://example.com/events\".");
    if (url.user)
        return Error{ErrorKind::invalid_value, "URL must not contain a user or password", "",
                     "Set \"user\" and \"password\", or \"token\", in CREATE USER MAPPING."};
    return std::nullopt;
}

std::optional<Error> check_postgresql_url(const Url& url) {
    // What may stand behind the `?`. Anything that is a secret, or that could point the connection
    // elsewhere than the URL says, may not.
    static constexpr std::array parameters{
        std::string_view{"host"},
        std::string_view{"port"},
        std::string_view{"sslmode"},
        std::string_view{"sslrootcert"},
        std::string_view{"sslcrl"},
        std::string_view{"channel_binding"},
        std::string_view{"gssencmode"},
        std::string_view{"target_session_attrs"},
        std::string_view{"keepalives_idle"},
        std::string_view{"application_name"},
    };
    // libpq would take it for several hosts, of which only the first is known to anybody else.
    const auto is_list = [](const std::string& host) { return host.find(',') != host.npos; };
    bool several_hosts = is_list(url.host);
    for (const auto& [name, value] : url.query) {
        several_hosts |= name == "host" && is_list(value);
        if (name == "password")
            return Error{ErrorKind::invalid_value, "URL must not contain a password", "",
                         "Set \"password\" in CREATE USER MAPPING."};
        if (std::find(parameters.begin(), parameters.end(), name) == parameters.end())
            return Error{
                ErrorKind::invalid_value, "invalid URL parameter \"" + name + "\"", "",
                "Valid parameters are: " + joined({parameters.begin(), parameters.end()}) + "."};
    }
    if (several_hosts)
        return invalid("URL names several hosts",
                       "Use a host name that has several addresses; they are tried in turn.");
    if (url.path.size() < 2 || url.path.front() != '/')
        return invalid("URL names no database",
                       "Write for example \"postgresql://host/database\", or "
                       "\"postgresql:///database\" for a database of this server.");
    if (!percent_decoded(url.path))
        return invalid("name of the database is badly encoded",
                       "Percent-encode what is special in it.");
    if (url.path.find('/', 1) != std::string::npos)
        return invalid("URL names no database",
                       "A database name follows the host, and nothing else.");
    return std::nullopt;
}

bool is_name(std::string_view text, std::string_view others) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               others.find(c) != std::string_view::npos;
    });
}

bool is_account(std::string_view text) {
    return text.size() == 12 && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// What the three have in common: no more than a name as host, and the parameter `endpoint`.
std::optional<Error> apply_cloud_url(Destination& destination, const Url& url,
                                     std::string_view example) {
    const bool is_pubsub = destination.kind == SinkKind::pubsub;
    if (url.user || !url.port.empty() || !is_name(url.host, "-."))
        return invalid("URL names no " + std::string(is_pubsub ? "project" : "region"),
                       "Write for example \"" + std::string(example) + "\".");
    for (const auto& [name, value] : url.query) {
        std::optional<Error> error;
        if (name == "endpoint")
            error = set_endpoint(destination, "URL parameter \"endpoint\"", value);
        else if (name == "region" && is_pubsub && is_name(value, "-"))
            destination.region = value;
        else
            error = Error{ErrorKind::invalid_value, "invalid URL parameter \"" + name + "\"", "",
                          is_pubsub ? "Valid parameters are: region, endpoint."
                                    : "The only valid parameter is \"endpoint\"."};
        if (error)
            return error;
    }
    return std::nullopt;
}

std::optional<Error> apply_pubsub_url(Destination& destination, const Url& url) {
    static constexpr std::string_view example = "pubsub://my-project";
    if (std::optional<Error> error = apply_cloud_url(destination, url, example))
        return error;
    if (!url.path.empty() && url.path != "/")
        return invalid("nothing may follow the project in the URL",
                       "Set the option \"topic\" to say which topic events go to.");
    destination.project = url.host;
    return std::nullopt;
}

std::optional<Error> apply_aws_url(Destination& destination, const Url& url) {
    const bool is_sns = destination.kind == SinkKind::sns;
    const std::string_view example = is_sns ? "sns://eu-west-1/123456789012" : "sqs://eu-west-1";
    if (std::optional<Error> error = apply_cloud_url(destination, url, example))
        return error;
    const std::string account = url.path.empty() ? "" : url.path.substr(1);
    if (account.empty() ? is_sns : !is_account(account))
        return invalid("URL names no account",
                       "Write the twelve digits of the account behind the region, as in "
                       "\"sns://eu-west-1/123456789012\".");
    destination.region = url.host;
    destination.account = account;
    return std::nullopt;
}

std::optional<Error> apply_url(Destination& destination, std::string_view value) {
    Result<Url> parsed = Url::parse(value);
    if (!parsed)
        return parsed.error();
    const Url& url = parsed.value();

    const auto scheme = std::find_if(schemes.begin(), schemes.end(),
                                     [&](const Scheme& s) { return s.name == url.scheme; });
    if (scheme == schemes.end()) {
        std::vector<std::string_view> names;
        for (const Scheme& s : schemes)
            names.push_back(s.name);
        return invalid("URL scheme \"" + url.scheme + "\" is not supported",
                       "Supported schemes are: " + joined(names) + ".");
    }
    if (url.has_password)
        return Error{ErrorKind::invalid_value, "URL must not contain a password", "",
                     "Set \"password\" in CREATE USER MAPPING."};

    std::optional<Error> error;
    destination.kind = scheme->kind;
    switch (scheme->kind) {
        case SinkKind::null:
            if (value.size() != std::string_view("null:").size())
                error = invalid("nothing may follow \"null:\"", "Write \"null:\".");
            break;
        case SinkKind::http:
            error = check_http_url(url);
            break;
        case SinkKind::postgresql:
            error = check_postgresql_url(url);
            break;
        case SinkKind::pubsub:
            error = apply_pubsub_url(destination, url);
            break;
        case SinkKind::sqs:
        case SinkKind::sns:
            error = apply_aws_url(destination, url);
            break;
        case SinkKind::pull:  // read in SQL, letter by letter
            if (value != "pull:")
                error = invalid("the URL of a pull destination is \"pull:\", and nothing else",
                                "Write \"pull:\".");
            break;
    }
    if (error)
        return error;
    destination.url_text = value;
    destination.url = std::move(parsed.value());
    return std::nullopt;
}

// Applies the options of one catalogue row. `url` must have been applied before, for it decides
// which others are valid; a user mapping is checked without its server: `kind` is nothing then.
std::optional<Error> apply_options(Destination& destination, const std::vector<Option>& options,
                                   Home home, std::optional<SinkKind> kind) {
    for (const Option& option : options) {
        const auto rule = std::find_if(
            std::begin(rules), std::end(rules),
            [&](const OptionRule& r) { return r.name == option.name && r.home == home; });
        if (rule == std::end(rules) || (kind && !takes(*rule, *kind)))
            return unknown_option(option.name, home, kind);
        if (std::optional<Error> error = rule->apply(destination, option.value))
            return error;
    }
    return std::nullopt;
}

std::optional<Error> apply_server_options(Destination& destination,
                                          const std::vector<Option>& options) {
    const auto url = std::find_if(options.begin(), options.end(),
                                  [](const Option& option) { return option.name == "url"; });
    if (url == options.end())
        return Error{ErrorKind::invalid_option, "option \"url\" is required", "",
                     "Write for example OPTIONS (url 'https://example.com/events')."};
    if (std::optional<Error> error = apply_url(destination, url->value))
        return error;
    if (destination.kind == SinkKind::http)
        destination.format = EventFormat::binary;
    destination.target = TextTemplate::parse("{topic}").value();
    if (std::optional<Error> error =
            apply_options(destination, options, Home::server, destination.kind))
        return error;
    if (destination.batch_size > 1 && destination.kind == SinkKind::http &&
        destination.format != EventFormat::batched)
        return invalid("option \"batch_size\" has no effect here",
                       "It needs the format \"batched\".");
    return std::nullopt;
}

}  // namespace

Result<Micros> parse_duration(std::string_view text) {
    struct Unit {
        std::string_view suffix;
        Micros length;
    };
    static constexpr std::array units{Unit{"ms", milliseconds(1)}, Unit{"min", seconds(60)},
                                      Unit{"h", seconds(3600)}, Unit{"s", seconds(1)},
                                      Unit{"", milliseconds(1)}};
    const std::string_view value = trim(text);
    for (const Unit& unit : units) {
        if (!value.ends_with(unit.suffix))
            continue;
        const auto number = parse_integer(trim(value.substr(0, value.size() - unit.suffix.size())));
        if (number && *number >= 1 && *number <= seconds(86'400) / unit.length)
            return *number * unit.length;
        break;
    }
    return Error{
        ErrorKind::invalid_value, "\"" + std::string(text) + "\" is no duration.", "",
        "Write a number of milliseconds, or a number with the unit ms, s, min or h; at least "
        "1 ms and at most a day."};
}

Result<Destination> Destination::parse(std::string_view name,
                                       const std::vector<Option>& server_options,
                                       const std::vector<Option>& mapping_options,
                                       const DestinationDefaults& defaults) {
    Destination destination;
    destination.name = name;
    destination.connect_timeout = defaults.connect_timeout;
    destination.request_timeout = defaults.request_timeout;
    destination.receipts = defaults.receipts;
    destination.default_user = defaults.user;
    destination.local_host = defaults.local_host;
    destination.local_port = defaults.local_port;
    Result<AllowedHosts> allowed_hosts = AllowedHosts::parse(defaults.allowed_hosts);
    if (!allowed_hosts)
        return allowed_hosts.error();
    destination.allowed_hosts = std::move(allowed_hosts.value());
    if (std::optional<Error> error = apply_server_options(destination, server_options))
        return *error;
    if (std::optional<Error> error =
            apply_options(destination, mapping_options, Home::user_mapping, destination.kind))
        return *error;
    return destination;
}

std::optional<Error> validate_server_options(const std::vector<Option>& options,
                                             bool may_read_files) {
    Destination scratch;
    if (std::optional<Error> error = apply_server_options(scratch, options))
        return error;
    if (const std::string option = scratch.file_option(); !may_read_files && !option.empty())
        return may_not_name_file(option);
    return std::nullopt;
}

// "system" means the certificates that the system trusts, and no file of this name.
static bool is_file_parameter(std::string_view name, std::string_view value) {
    return name == "sslcrl" || (name == "sslrootcert" && value != "system");
}

std::vector<std::string> Destination::libpq_files() const {
    std::vector<std::string> files;
    if (kind != SinkKind::postgresql)
        return files;
    for (const auto& [parameter, value] : url.query)
        if (is_file_parameter(parameter, value) && !value.empty())
            files.push_back(value);
    for (const std::string* file : {&ssl_cert, &ssl_key})
        if (!file->empty())
            files.push_back(*file);
    return files;
}

std::string Destination::file_option() const {
    const std::pair<const char*, const std::string*> options[] = {{"ca_file", &ca_file},
                                                                  {"key_file", &key_file},
                                                                  {"profile", &profile},
                                                                  {"sslcert", &ssl_cert},
                                                                  {"sslkey", &ssl_key}};
    for (const auto& [option, value] : options)
        if (!value->empty())
            return option;
    if (kind == SinkKind::postgresql)
        for (const auto& [parameter, value] : url.query)
            if (is_file_parameter(parameter, value))
                return parameter;
    return "";
}

Error may_not_name_file(std::string_view option) {
    return {ErrorKind::not_allowed,
            "permission denied to name a file of the server in \"" + std::string(option) + "\"", "",
            "Only superusers and members of pg_read_server_files may, as owners of the foreign "
            "server."};
}

std::optional<Error> validate_mapping_options(const std::vector<Option>& options) {
    Destination scratch;
    return apply_options(scratch, options, Home::user_mapping, std::nullopt);
}

std::optional<Error> validate_no_options(const std::vector<Option>& options) {
    if (options.empty())
        return std::nullopt;
    return Error{ErrorKind::invalid_option, "invalid option \"" + options.front().name + "\"", "",
                 "There are no valid options here."};
}

}  // namespace outbox
