#include "sinks/mqtt/reasons.hpp"

#include <algorithm>
#include <array>

namespace outbox {

namespace {

struct Name {
    std::uint8_t code;
    std::string_view name;
};

constexpr std::array names{Name{0x00, "success"},
                           Name{0x10, "no matching subscribers"},
                           Name{0x80, "unspecified error"},
                           Name{0x81, "malformed packet"},
                           Name{0x82, "protocol error"},
                           Name{0x83, "implementation specific error"},
                           Name{0x84, "unsupported protocol version"},
                           Name{0x85, "client identifier not valid"},
                           Name{0x86, "bad user name or password"},
                           Name{0x87, "not authorized"},
                           Name{0x88, "server unavailable"},
                           Name{0x89, "server busy"},
                           Name{0x8a, "banned"},
                           Name{0x8b, "server shutting down"},
                           Name{0x8c, "bad authentication method"},
                           Name{0x8d, "keep alive timeout"},
                           Name{0x8e, "session taken over"},
                           Name{0x8f, "topic filter invalid"},
                           Name{0x90, "topic name invalid"},
                           Name{0x91, "packet identifier in use"},
                           Name{0x92, "packet identifier not found"},
                           Name{0x93, "receive maximum exceeded"},
                           Name{0x94, "topic alias invalid"},
                           Name{0x95, "packet too large"},
                           Name{0x96, "message rate too high"},
                           Name{0x97, "quota exceeded"},
                           Name{0x98, "administrative action"},
                           Name{0x99, "payload format invalid"},
                           Name{0x9a, "retain not supported"},
                           Name{0x9b, "QoS not supported"},
                           Name{0x9c, "use another server"},
                           Name{0x9d, "server moved"},
                           Name{0x9e, "shared subscriptions not supported"},
                           Name{0x9f, "connection rate exceeded"},
                           Name{0xa0, "maximum connect time"},
                           Name{0xa1, "subscription identifiers not supported"},
                           Name{0xa2, "wildcard subscriptions not supported"}};

}  // namespace

MqttVerdict verdict_on_publish(std::uint8_t code, bool needs_subscribers, bool own_topic) noexcept {
    const MqttVerdict of_topic =
        own_topic ? MqttVerdict{Fate::refused} : MqttVerdict{Fate::unavailable, Scope::lane};
    if (code == mqtt_reason::no_matching_subscribers)
        return needs_subscribers ? of_topic : MqttVerdict{};
    if (code < mqtt_reason::first_failure)
        return {};
    switch (code) {
        case 0x87:
            return of_topic;
        case 0x90:
        case 0x95:
        case 0x99:
            return {Fate::refused, Scope::destination, true};
        case 0x83:
            return {Fate::refused};
        case 0x89:
        case 0x96:
        case 0x97:
            return {Fate::throttled, Scope::lane};
        case 0x88:
        case 0x8b:
            return {Fate::unavailable, Scope::destination};
        default:
            return {Fate::failed, Scope::lane};
    }
}

MqttVerdict verdict_on_connect(std::uint8_t code) noexcept {
    switch (code) {
        case 0x80:
        case 0x83:
        case 0x88:
        case 0x89:
        case 0x97:
        case 0x9f:
            return {Fate::unavailable, Scope::connection};
        default:
            return {Fate::unavailable, Scope::destination};
    }
}

MqttVerdict verdict_on_disconnect(std::uint8_t code) noexcept {
    switch (code) {
        case 0x80:
        case 0x81:
        case 0x82:
        case 0x83:
        case 0x90:
        case 0x95:
        case 0x99:
            return {Fate::failed, Scope::connection};
        case 0x96:
        case 0x97:
            return {Fate::throttled, Scope::lane};
        case 0x87:  // about a message, from a broker that does not answer it
            return {Fate::unavailable, Scope::lane};
        case 0x86:
        case 0x8a:
        case 0x8e:
        case 0x98:
        case 0x9a:
        case 0x9b:
        case 0x9c:
        case 0x9d:
            return {Fate::unavailable, Scope::destination};
        default:
            return {Fate::unavailable, Scope::connection};
    }
}

std::string describe_reason(std::uint8_t code, std::string_view said) {
    static constexpr std::string_view digits = "0123456789abcdef";
    std::string text = "0x";
    text += digits[code >> 4];
    text += digits[code & 0xf];
    const auto found = std::find_if(names.begin(), names.end(),
                                    [&](const Name& name) { return name.code == code; });
    if (found != names.end())
        text.append(" (").append(found->name) += ')';
    if (!said.empty())
        text.append(": ").append(said);
    return text;
}

}  // namespace outbox
