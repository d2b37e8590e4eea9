#include "net/redis_redirect.hpp"

#include "core/text.hpp"
#include "core/url.hpp"
#include "net/redis_connection.hpp"

namespace outbox {

std::optional<Redirect> parse_redirect(std::string_view error) {
    const bool ask = has_code(error, "ASK");
    if (!ask && !has_code(error, "MOVED"))
        return std::nullopt;
    const std::size_t slot = error.find(' '), space = error.rfind(' ');
    // The host may be IPv6, without brackets.
    const std::size_t colon = error.rfind(':');
    if (slot >= space || colon == std::string_view::npos || colon < space ||
        !parse_integer(error.substr(slot + 1, space - slot - 1)))
        return std::nullopt;
    Redirect redirect{ask, std::string(error.substr(space + 1, colon - space - 1)),
                      std::string(error.substr(colon + 1))};
    const std::optional<std::int64_t> port = parse_integer(redirect.port);
    if (!port || *port < 1 || *port > 65535)
        return std::nullopt;
    const bool is_valid = redirect.host.empty() || is_host_name(redirect.host);
    if (!is_valid || redirect.host.size() > 255)
        return std::nullopt;
    return redirect;
}

std::optional<Redirect> parse_primary(const RespValue& answer) {
    if (answer.elements.size() != 2)
        return std::nullopt;
    std::optional<Redirect> primary =
        parse_redirect("MOVED 0 " + answer.elements[0].text + ':' + answer.elements[1].text);
    if (primary && primary->host.empty())
        return std::nullopt;
    return primary;
}

}  // namespace outbox
