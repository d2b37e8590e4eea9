#include "sinks/registry.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

namespace {

using Specs = std::span<const OptionSpec>;

const OptionSpec* find(Specs specs, std::string_view name) {
    const auto found = std::find_if(specs.begin(), specs.end(),
                                    [&](const OptionSpec& spec) { return spec.name == name; });
    return found != specs.end() ? &*found : nullptr;
}

bool has_scheme(const SinkDeclaration& sink, std::string_view scheme) noexcept {
    return std::any_of(sink.schemes.begin(), sink.schemes.end(),
                       [&](std::string_view name) { return equal_ignoring_case(name, scheme); });
}

// -------------------------------------------------------------------------------------------------
// Names of options
// -------------------------------------------------------------------------------------------------

// Options of a user mapping are checked without the options of their server. Then `sink` is
// nullptr, and the options of all sinks are valid.
std::vector<const SinkDeclaration*> candidates(const SinkDeclaration* sink) {
    if (sink != nullptr)
        return {sink};
    const auto all = all_sinks();
    std::vector<const SinkDeclaration*> sinks(all.begin(), all.end());
    // Hints name credentials of services before those of databases.
    std::stable_partition(sinks.begin(), sinks.end(),
                          [](const auto* one) { return !one->ordered; });
    return sinks;
}

// Returns the declarations of this option: there may be several if the sink is not known.
std::vector<const OptionSpec*> find_option(const SinkDeclaration* sink, OptionPlace place,
                                           std::string_view name) {
    std::vector<const OptionSpec*> found;
    const auto look_in = [&](Specs specs) {
        const OptionSpec* spec = find(specs, name);
        if (spec != nullptr && spec->place == place)
            found.push_back(spec);
    };
    look_in(common_options);
    for (const SinkDeclaration* one : candidates(sink))
        look_in(one->options);
    return found;
}

std::string valid_options(const SinkDeclaration* sink, OptionPlace place) {
    std::vector<std::string_view> names;
    const auto add = [&](Specs specs) {
        for (const OptionSpec& spec : specs)
            if (spec.place == place &&
                std::find(names.begin(), names.end(), spec.name) == names.end())
                names.push_back(spec.name);
    };
    add(common_options);
    for (const SinkDeclaration* one : candidates(sink))
        add(one->options);
    return names.empty() ? "There are no valid options in this context."
                         : "Valid options are: " + comma_separated(names) + ".";
}

Error unknown_option(const SinkDeclaration* sink, OptionPlace place, std::string_view name) {
    std::string detail;
    if (place == OptionPlace::server &&
        !find_option(nullptr, OptionPlace::user_mapping, name).empty())
        detail = "Set it in CREATE USER MAPPING, where other roles cannot read it.";
    else if (place == OptionPlace::user_mapping &&
             !find_option(nullptr, OptionPlace::server, name).empty())
        detail = "Set it in CREATE SERVER.";
    return {ErrorKind::invalid_option, "invalid option \"" + std::string(name) + "\"", detail,
            valid_options(sink, place)};
}

// -------------------------------------------------------------------------------------------------
// Values
// -------------------------------------------------------------------------------------------------

// The value is valid if it is valid for one of the possible sinks.
std::optional<Error> check_one(const SinkDeclaration* sink, OptionPlace place,
                               const Option& option) {
    std::optional<Error> first;
    for (const OptionSpec* spec : find_option(sink, place, option.name)) {
        std::optional<Error> error = check_value(*spec, option.value);
        if (!error)
            return std::nullopt;
        if (!first)
            first = std::move(error);
    }
    return first ? std::move(first) : unknown_option(sink, place, option.name);
}

std::optional<Error> check_all(const SinkDeclaration* sink, OptionPlace place,
                               const std::vector<Option>& options) {
    for (const Option& option : options)
        if (std::optional<Error> error = check_one(sink, place, option))
            return error;
    return std::nullopt;
}

Error unknown_scheme(const std::string& scheme) {
    std::vector<std::string_view> names;
    for (const SinkDeclaration* sink : all_sinks())
        names.insert(names.end(), sink->schemes.begin(), sink->schemes.end());
    return {ErrorKind::invalid_value, "URL scheme \"" + scheme + "\" is not supported", "",
            "Supported schemes are: " + comma_separated(names) + "."};
}

// The URL selects the sink, and the sink decides which options are valid.
std::optional<Error> apply_url(Destination& destination, const std::string& text) {
    destination.sink = sink_of_url(text);
    Result<Url> url =
        Url::parse(text, destination.sink != nullptr ? destination.sink->hosts : Url::Hosts::one);
    if (!url)
        return url.error();
    if (destination.sink == nullptr)
        return unknown_scheme(url.value().scheme);
    if (url.value().has_password)
        return Error{ErrorKind::invalid_value, "URL must not contain a password", "",
                     "Set \"password\" in CREATE USER MAPPING."};
    if (std::optional<Error> error = destination.sink->check_url(url.value(), text))
        return error;
    destination.url = std::move(url.value());
    destination.url_text = text;
    return std::nullopt;
}

std::optional<Error> apply_server_options(Destination& destination, std::vector<Option> options) {
    const auto url = std::find_if(options.begin(), options.end(), [](const Option& option) {
        return option.name == url_option.name;
    });
    if (url == options.end())
        return Error{ErrorKind::invalid_option, "option \"url\" is required", "",
                     "Write for example OPTIONS (url 'https://example.com/events')."};
    if (std::optional<Error> error = apply_url(destination, url->value))
        return error;
    const SinkDeclaration& sink = *destination.sink;
    if (std::optional<Error> error = check_all(&sink, OptionPlace::server, options))
        return error;
    destination.options = OptionValues(std::move(options));
    return sink.check_options != nullptr ? sink.check_options(destination.options) : std::nullopt;
}

}  // namespace

const SinkDeclaration* sink_of_url(std::string_view url) noexcept {
    const std::string_view scheme = url.substr(0, url.find(':'));
    for (const SinkDeclaration* sink : all_sinks())
        if (has_scheme(*sink, scheme))
            return sink;
    return nullptr;
}

Result<Destination> parse_destination(std::string_view name, std::vector<Option> server_options,
                                      std::vector<Option> mapping_options,
                                      const DestinationDefaults& defaults) {
    Destination destination;
    destination.name = name;
    destination.defaults = defaults;
    Result<AllowedHosts> allowed_hosts = AllowedHosts::parse(defaults.allowed_hosts);
    if (!allowed_hosts)
        return allowed_hosts.error();
    destination.allowed_hosts = std::move(allowed_hosts.value());
    if (std::optional<Error> error = apply_server_options(destination, server_options))
        return *error;
    if (std::optional<Error> error =
            check_all(destination.sink, OptionPlace::user_mapping, mapping_options))
        return *error;
    server_options.insert(server_options.end(), mapping_options.begin(), mapping_options.end());
    destination.options = OptionValues(std::move(server_options));
    destination.topics = TopicFilter::parse(destination.options.text(topics_option)).value();
    destination.receipts = destination.options.toggle(receipts_option, defaults.receipts);
    return destination;
}

std::optional<Error> validate_server_options(const std::vector<Option>& options,
                                             bool may_read_files) {
    Destination scratch;
    if (std::optional<Error> error = apply_server_options(scratch, options))
        return error;
    if (const std::string option = file_option(scratch); !may_read_files && !option.empty())
        return may_not_name_file(option);
    return std::nullopt;
}

std::optional<Error> validate_mapping_options(const std::vector<Option>& options) {
    return check_all(nullptr, OptionPlace::user_mapping, options);
}

std::optional<Error> validate_no_options(const std::vector<Option>& options) {
    if (options.empty())
        return std::nullopt;
    return Error{ErrorKind::invalid_option, "invalid option \"" + options.front().name + "\"", "",
                 "There are no valid options in this context."};
}

bool lacks_unit(const Option& server_option) {
    const auto specs = find_option(nullptr, OptionPlace::server, server_option.name);
    return !specs.empty() && specs.front()->type == OptionType::duration &&
           parse_integer(trim(server_option.value));
}

bool names_server_keys(std::string_view option) noexcept {
    for (const SinkDeclaration* sink : all_sinks())
        for (const OptionSpec& spec : sink->options)
            if (spec.place == OptionPlace::user_mapping && spec.names_file != NamesFile::no &&
                spec.name == option)
                return true;
    return false;
}

std::string file_option(const Destination& destination) {
    for (const OptionSpec& spec : destination.sink->options)
        if (const std::string* value = destination.options.find(spec.name);
            value != nullptr && names_file(spec, *value))
            return std::string(spec.name);
    for (const auto& [name, value] : destination.url.query)
        if (const OptionSpec* spec = find(destination.sink->parameters, name);
            spec != nullptr && names_file(*spec, value))
            return name;
    return "";
}

OtherHosts other_hosts(const Destination& destination) {
    OtherHosts hosts;
    for (const Option& option : destination.options.all())
        if (const OptionSpec* spec = find(destination.sink->options, option.name);
            spec != nullptr && spec->names_host)
            hosts.options.push_back(&option);
    for (const auto& [name, value] : destination.url.query)
        if (const OptionSpec* spec = find(destination.sink->parameters, name))
            hosts.in_parameters |= spec->names_host;
    return hosts;
}

Error may_not_name_file(std::string_view option) {
    return {ErrorKind::not_allowed,
            "permission denied to name a file of the server in \"" + std::string(option) + "\"", "",
            "Only superusers and members of pg_read_server_files may, as owners of the foreign "
            "server."};
}

}  // namespace outbox
