#include "sinks/http/event_requests.hpp"

#include <algorithm>

#include "core/header_lines.hpp"
#include "core/text.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

static constexpr std::string_view authorization_name = "authorization";

// Takes the header out of lines "name: value\r\n".
static void remove_header(std::string& lines, std::string_view name) {
    for (std::size_t begin = 0, end; begin < lines.size(); begin = end) {
        end = lines.find("\r\n", begin) + 2;
        const std::size_t colon = begin + name.size();
        if (colon < end && lines[colon] == ':' &&
            equal_ignoring_case(std::string_view(lines).substr(begin, name.size()), name)) {
            lines.erase(begin, end - begin);
            end = begin;
        }
    }
}

static bool is_signature_header(std::string_view name) {
    return std::any_of(signature_headers.begin(), signature_headers.end(),
                       [&](std::string_view one) { return equal_ignoring_case(one, name); });
}

EventRequests::EventRequests(EventFormat format, std::string_view source,
                             const std::string& headers, bool are_signed)
    : format_(format), source_prefix_(source_prefix(source)) {
    if (are_signed)
        fixed_names_.assign(signature_headers.begin(), signature_headers.end());
    const Result<std::vector<HeaderLine>> fixed = parse_header_lines(headers);
    if (!fixed)
        return;
    for (const HeaderLine& header : fixed.value()) {
        if (equal_ignoring_case(header.name, authorization_name)) {
            if (authorization_.empty())
                authorization_ = header.value;
        } else if (!are_signed || !is_signature_header(header.name)) {
            fixed_names_.emplace_back(header.name);
            fixed_headers_.append(header.name).append(": ").append(header.value).append("\r\n");
        }
    }
}

void EventRequests::encode(std::span<Event* const> events, RequestContent& content) const {
    switch (format_) {
        case EventFormat::structured:
            encode_structured(*events.front(), source_prefix_, content);
            break;
        case EventFormat::batched:
            encode_batched(events, source_prefix_, content);
            break;
        default:
            encode_binary(*events.front(), source_prefix_, content);
            break;
    }
    for (const std::string& name : fixed_names_)
        remove_header(content.headers, name);
    content.headers += fixed_headers_;
}

void EventRequests::sign(std::span<Event* const> events, WebhookSigner& signer, Micros unix_now,
                         RequestContent& content) {
    id_.clear();
    append_webhook_id(id_, events);
    signer.append_headers(content.headers, id_, unix_now, content.body);
}

}  // namespace outbox
