#include "net/exchange.hpp"

#include <curl/curl.h>

#include <algorithm>

#include "core/conceal.hpp"
#include "core/text.hpp"

namespace outbox {

// The longest pause that a destination can ask for.
static constexpr std::int64_t max_retry_seconds = 24 * 60 * 60;
static constexpr Micros max_retry_after = seconds(max_retry_seconds);

std::string_view secret_in(std::string_view authorization) {
    for (const std::string_view scheme : {"Bearer ", "Basic "})
        if (authorization.substr(0, scheme.size()) == scheme)
            return authorization.substr(scheme.size());
    return {};
}

// An answer may repeat the request, as Amazon's answer to a wrong signature does.
void conceal_secrets(const Exchange& exchange, std::string& text) noexcept {
    static constexpr std::string_view authorization = "Authorization: ";
    static constexpr std::string_view session = "X-Amz-Security-Token: ";
    std::string_view lines = exchange.content.headers;
    for (std::size_t end; (end = lines.find("\r\n")) != lines.npos; lines.remove_prefix(end + 2)) {
        const std::string_view line = lines.substr(0, end);
        if (line.substr(0, authorization.size()) == authorization)
            conceal(text, secret_in(line.substr(authorization.size())));
        else if (line.substr(0, session.size()) == session)
            conceal(text, line.substr(session.size()));
    }
}

std::string explain(const Exchange& exchange) {
    if (exchange.status == 0)
        return printable(exchange.error);
    std::string text = "HTTP " + std::to_string(exchange.status);
    if (exchange.status >= 300 && exchange.status < 400)
        text += " (redirects are not followed)";
    const std::string body = printable(std::string_view(exchange.body).substr(0, usual_kept_body));
    return body.empty() ? text : text + ": " + body;
}

Micros retry_after_of(const std::string& text, Micros unix_now) {
    if (text.empty())
        return 0;
    Micros wait = 0;
    if (text.find_first_not_of("0123456789") == std::string::npos)  // perhaps more than fits
        wait =
            seconds(std::min(parse_integer(text).value_or(max_retry_seconds), max_retry_seconds));
    else if (const time_t date = curl_getdate(text.c_str(), nullptr); date >= 0)
        wait = seconds(date) - unix_now;
    return std::clamp<Micros>(wait, 0, max_retry_after);
}

}  // namespace outbox
