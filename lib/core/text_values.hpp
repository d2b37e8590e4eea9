// Texts as libpq takes them: its functions read up to the first NUL byte, and would pass on a part of
// a text that has one. Everything that gives libpq texts makes them here.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace outbox {

// The message about a NUL byte in a text.
inline constexpr std::string_view nul_in_text = "invalid byte sequence for encoding \"UTF8\": 0x00";
inline constexpr std::string_view nul_in_text_state = "22021";

inline bool has_nul(std::string_view text) noexcept {
    return text.find('\0') != std::string_view::npos;
}

// Returns the parameters of a statement, or std::nullopt if one of them has a NUL byte. Without a
// value a parameter is NULL. They point into the texts.
inline std::optional<std::vector<const char*>> text_values(
    std::span<const std::optional<std::string>> texts) {
    std::vector<const char*> values;
    values.reserve(texts.size());
    for (const std::optional<std::string>& text : texts) {
        if (text && has_nul(*text))
            return std::nullopt;
        values.push_back(text ? text->c_str() : nullptr);
    }
    return values;
}

using LibpqParameters = std::vector<std::pair<std::string, std::string>>;

// Names and values of parameters of a connection, as PQconnectStartParams() takes them. They point into the
// parameters.
struct ConnectionTexts {
    std::vector<const char*> names, values;
};

// Returns std::nullopt and says why if a parameter has a NUL byte: a part of a password or of a name must not
// be taken for all of it.
inline std::optional<ConnectionTexts> connection_texts(const LibpqParameters& parameters,
                                                       std::string& failure) {
    ConnectionTexts texts;
    for (const auto& [name, value] : parameters) {
        if (has_nul(name) || has_nul(value)) {
            failure = "connection parameter \"" + std::string(name.c_str()) + "\" has a zero byte";
            return std::nullopt;
        }
        texts.names.push_back(name.c_str());
        texts.values.push_back(value.c_str());
    }
    texts.names.push_back(nullptr);
    texts.values.push_back(nullptr);
    return texts;
}

}  // namespace outbox
