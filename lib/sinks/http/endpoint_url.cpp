#include "sinks/http/endpoint_url.hpp"

#include "core/url.hpp"

namespace outbox {

std::string wrong_endpoint_url(const std::string& text) {
    const Result<Url> url = Url::parse(text);
    if (!url)
        return url.error().message;
    if (url.value().scheme != "http" && url.value().scheme != "https")
        return "the URL of an endpoint begins with http:// or https://";
    if (url.value().host.empty())
        return "URL has no host";
    if (url.value().user || url.value().has_password)
        return "URL must not contain a user or password";
    return "";
}

}  // namespace outbox
