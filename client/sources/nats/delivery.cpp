#include "nats/delivery.hpp"

#include <array>
#include <map>

#include "core/percent.hpp"
#include "core/text.hpp"
#include "message/decode.hpp"

namespace inbox::nats {

// $JS.ACK.<stream>.<consumer>.<delivered>.<sequence>.<of the consumer>.<time>.<pending>, or with
// domain and account before the stream, and perhaps with more parts at the end.
std::optional<Place> place_of(std::string_view subject) noexcept {
    constexpr std::string_view prefix = "$JS.ACK.";
    constexpr std::size_t short_form = 7, long_form = 9;  // number of parts after the prefix
    constexpr std::size_t longest = 1024;                 // names have at most 255 bytes
    if (!subject.starts_with(prefix) || subject.size() > longest)
        return std::nullopt;
    subject.remove_prefix(prefix.size());
    std::array<std::string_view, 12> parts{};
    std::size_t count = 0;
    while (count < parts.size()) {
        const std::size_t dot = subject.find('.');
        parts[count++] = subject.substr(0, dot);
        if (dot == std::string_view::npos)
            break;
        subject.remove_prefix(dot + 1);
    }
    if (count != short_form && count < long_form)
        return std::nullopt;
    const std::size_t first = count == short_form ? 2 : 4;
    const auto delivered = outbox::parse_integer(parts[first]);
    const auto sequence = outbox::parse_integer(parts[first + 1]);
    const auto of_consumer = outbox::parse_integer(parts[first + 2]);
    const auto nanoseconds = outbox::parse_integer(parts[first + 3]);
    if (!delivered || !sequence || !of_consumer || !nanoseconds || *delivered < 1 || *sequence < 1)
        return std::nullopt;
    return Place{static_cast<std::uint64_t>(*delivered), static_cast<std::uint64_t>(*sequence),
                 static_cast<std::uint64_t>(*of_consumer), *nanoseconds};
}

// The sink encodes values (docs/destinations/nats.md). A value that is not encoded stays as it is.
static std::string decoded(std::string_view value) {
    if (std::optional<std::string> text = outbox::percent_decoded(value))
        return std::move(*text);
    return std::string(value);
}

static constexpr std::size_t max_headers = 10'000;  // others are left out

static std::map<std::string, std::string> headers_in(std::string_view headers) {
    std::map<std::string, std::string> found;
    std::size_t end = headers.find("\r\n");
    while (end != std::string_view::npos && found.size() < max_headers) {
        headers.remove_prefix(end + 2);
        end = headers.find("\r\n");
        const std::string_view line = headers.substr(0, end);
        const std::size_t colon = line.find(':');
        if (colon == std::string_view::npos || colon == 0)
            continue;
        const std::string_view name = line.substr(0, colon);
        if (!name.starts_with("Nats-"))
            found.try_emplace(decoded(name), decoded(outbox::trim(line.substr(colon + 1))));
    }
    return found;
}

Delivery delivery_from(const outbox::NatsInput& message, const Place& place,
                       const std::string& source) {
    std::map<std::string, std::string> attributes = headers_in(message.headers);
    // The NATS binding of CloudEvents has these names.
    if (const auto type = attributes.find("Content-Type"); type != attributes.end()) {
        attributes["content-type"] = type->second;
        attributes.erase("Content-Type");
    }
    if (const auto type = attributes.find("ce-datacontenttype"); type != attributes.end()) {
        attributes.try_emplace("content-type", type->second);
        attributes.erase("ce-datacontenttype");
    }
    std::string key;
    for (const char* name : {"ordering_key", "ce-partitionkey"})
        if (const auto found = attributes.find(name); found != attributes.end() && key.empty())
            key = found->second;
    attributes.erase("ordering_key");
    const std::string id = std::to_string(place.sequence);
    const Time stored_at{std::chrono::microseconds(place.stored_at / 1000)};
    Delivery delivery{.event = {},
                      .source = source,
                      .message_id = id,
                      .published_at = stored_at,
                      .handle = std::string(message.reply),
                      .size = message.headers.size() + message.payload.size()};
    delivery.event = decode_message(attributes, std::string(message.payload),
                                    {.source = source,
                                     .message_id = id + '@' + std::to_string(place.stored_at),
                                     .topic = std::string(message.subject),
                                     .ordering_key = key,
                                     .published_at = stored_at});
    return delivery;
}

}  // namespace inbox::nats
