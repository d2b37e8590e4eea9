#include "cloud/cloud_url.hpp"

#include <algorithm>

namespace outbox {

bool is_cloud_name(std::string_view text, std::string_view others) noexcept {
    return !text.empty() && std::all_of(text.begin(), text.end(), [&](char c) {
        return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               others.find(c) != std::string_view::npos;
    });
}

std::optional<Error> check_endpoint(std::string_view what, std::string_view value) {
    const Result<Url> url = Url::parse(value);
    const bool usable = url && (url.value().scheme == "http" || url.value().scheme == "https") &&
                        !url.value().host.empty() && !url.value().user &&
                        (url.value().path.empty() || url.value().path == "/") &&
                        url.value().query.empty();
    if (usable)
        return std::nullopt;
    return Error{ErrorKind::invalid_value,
                 "invalid " + std::string(what) + " \"" + std::string(value) + "\"", "",
                 "Write a scheme, a host and perhaps a port, such as "
                 "\"https://pubsub.example.com\" or \"http://127.0.0.1:8085\"."};
}

static std::string valid_parameters(std::span<const OptionSpec> parameters) {
    if (parameters.size() == 1)
        return "The only valid parameter is \"" + std::string(parameters.front().name) + "\".";
    std::vector<std::string_view> names;
    for (const OptionSpec& parameter : parameters)
        names.push_back(parameter.name);
    return "Valid parameters are: " + comma_separated(names) + ".";
}

static std::optional<Error> check_parameter(std::string_view name, std::string_view value,
                                            std::span<const OptionSpec> parameters) {
    const bool known = std::any_of(parameters.begin(), parameters.end(),
                                   [&](const OptionSpec& spec) { return spec.name == name; });
    if (known && name == endpoint_parameter.name)
        return check_endpoint("URL parameter \"endpoint\"", value);
    if (known && (name != region_parameter.name || is_cloud_name(value, "-")))
        return std::nullopt;
    return Error{ErrorKind::invalid_value, "invalid URL parameter \"" + std::string(name) + "\"",
                 "", valid_parameters(parameters)};
}

std::optional<Error> check_cloud_url(const Url& url, std::string_view what,
                                     std::string_view example,
                                     std::span<const OptionSpec> parameters) {
    if (url.user || !url.port.empty() || !is_cloud_name(url.host, "-."))
        return Error{ErrorKind::invalid_value, "URL does not name a " + std::string(what), "",
                     "Write for example \"" + std::string(example) + "\"."};
    for (const auto& [name, value] : url.query)
        if (std::optional<Error> error = check_parameter(name, value, parameters))
            return error;
    return std::nullopt;
}

std::string url_parameter(const Url& url, const OptionSpec& parameter) {
    std::string found;
    for (const auto& [name, value] : url.query)
        if (name == parameter.name)
            found = value;  // the last one counts
    return found;
}

}  // namespace outbox
