// URLs of services in a cloud: "<scheme>://<project or region>[/...][?endpoint=<URL>]".
#pragma once

#include <optional>
#include <span>
#include <string_view>

#include "core/option.hpp"
#include "core/url.hpp"

namespace outbox {

// Letters, digits and `others`; not empty.
bool is_cloud_name(std::string_view text, std::string_view others) noexcept;

// Whether it is an address to use in place of the service's own: a scheme, a host and perhaps a port.
// `what` says in an error where it stands, such as "URL parameter "endpoint"".
std::optional<Error> check_endpoint(std::string_view what, std::string_view value);

inline constexpr OptionSpec endpoint_parameter{
    .name = "endpoint",
    .place = OptionPlace::url,
    .type = OptionType::text,
    .range = "scheme, host and port",
    .description = "address to use in place of the service's own"};
inline constexpr OptionSpec region_parameter{
    .name = "region",
    .place = OptionPlace::url,
    .type = OptionType::text,
    .range = "such as europe-west1",
    .description = "region whose address is used, instead of the nearest one"};

// Whether the host is a name, of a `what` ("region", "project"), and the query has `parameters` only.
std::optional<Error> check_cloud_url(const Url& url, std::string_view what,
                                     std::string_view example,
                                     std::span<const OptionSpec> parameters);

// The value of a parameter; empty if the URL does not have it.
std::string url_parameter(const Url& url, const OptionSpec& parameter);

}  // namespace outbox
