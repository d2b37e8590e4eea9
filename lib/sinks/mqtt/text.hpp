// Texts in packets of MQTT.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace outbox {

constexpr std::size_t max_mqtt_text = 65'535;  // bytes of a text or of a password

// Appends a text as UTF-8 with its length. After max_mqtt_text bytes it is cut off. A character
// that MQTT does not allow, or for which a broker may end the connection (control characters and
// non-characters), becomes U+FFFD.
void append_mqtt_text(std::string& out, std::string_view text);
// Returns true if append_mqtt_text() would not change the text.
bool is_mqtt_text(std::string_view text) noexcept;

}  // namespace outbox
