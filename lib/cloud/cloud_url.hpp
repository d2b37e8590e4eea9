// Checks URLs of cloud services: "<scheme>://<project or region>[/...][?endpoint=<URL>]".
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "core/option.hpp"
#include "core/url.hpp"

namespace outbox {

// True if the text is not empty and has only letters, digits and `others`.
bool is_cloud_name(std::string_view text, std::string_view others) noexcept;

// Checks an address that replaces the one of the service: a scheme, a host and perhaps a port.
// `what` names its place in errors, such as "URL parameter "endpoint"".
std::optional<Error> check_endpoint(std::string_view what, std::string_view value);

inline constexpr OptionSpec endpoint_parameter{
    .name = "endpoint",
    .place = OptionPlace::url,
    .type = OptionType::text,
    .range = "scheme, host and port",
    .description = "address to use instead of the service's own",
    .names_host = true};
inline constexpr OptionSpec region_parameter{
    .name = "region",
    .place = OptionPlace::url,
    .type = OptionType::text,
    .range = "such as europe-west1",
    .description = "region whose address is used, instead of the nearest one"};

// Checks that the host is a name of a `what` ("region", "project"), and that the query has only
// `parameters`.
std::optional<Error> check_cloud_url(const Url& url, std::string_view what,
                                     std::string_view example,
                                     std::span<const OptionSpec> parameters);

// Returns the value of a parameter, or an empty string.
std::string url_parameter(const Url& url, const OptionSpec& parameter);

}  // namespace outbox
