// Constants of the C++ code in SQL: files of SQL write @{max_key_length}, and scripts have 1024.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <string>
#include <string_view>

#include "core/advisory_locks.hpp"
#include "core/limits.hpp"
#include "core/reserved_headers.hpp"

struct Constant {
    std::string_view name;
    std::string text;
};

// Returns strings of SQL, with commas between them.
template <std::size_t count>
std::string list_of(const std::string_view (&texts)[count]) {
    std::string list;
    for (const std::string_view text : texts)
        list.append(list.empty() ? "'" : ", '").append(text).append("'");
    return list;
}

#define CONSTANT(name)                      \
    Constant {                              \
#name, std::to_string(outbox::name) \
    }
inline const Constant constants[] = {
    CONSTANT(max_name_length),
    CONSTANT(max_key_length),
    CONSTANT(max_headers),
    CONSTANT(max_headers_size),
    CONSTANT(max_header_name_length),
    CONSTANT(max_length_before_suffix),
    CONSTANT(min_payload_limit),
    CONSTANT(max_message_headers_kb),
    CONSTANT(max_message_headers_size),
    CONSTANT(max_message_payload_mb),
    CONSTANT(max_message_payload_size),
    CONSTANT(max_held_keys),
    CONSTANT(max_endpoints),
    CONSTANT(max_endpoint_text_size),
    CONSTANT(endpoint_topic_size),
    CONSTANT(lock_class),
    CONSTANT(wake_lock),
    CONSTANT(restore_lock),
    CONSTANT(maintain_lock),
    {"topic_suffix", "'" + std::string(outbox::topic_suffix) + "'"},
    {"reserved_headers", list_of(outbox::reserved_headers)},
};
#undef CONSTANT

inline const std::string& constant(std::string_view name) {
    for (const Constant& known : constants)
        if (known.name == name)
            return known.text;
    std::fprintf(stderr, "there is no constant \"%.*s\" in sql/constants.hpp\n",
                 static_cast<int>(name.size()), name.data());
    std::exit(1);
}

// Returns the script with the values of constants in place of their names.
inline std::string with_constants(std::string_view script) {
    constexpr std::string_view mark = "@{";
    std::string result;
    for (std::size_t begin; (begin = script.find(mark)) != std::string_view::npos;) {
        result += script.substr(0, begin);
        script.remove_prefix(begin + mark.size());
        const std::size_t end = script.find('}');
        result += constant(script.substr(0, end));
        script.remove_prefix(end + 1);
    }
    return result.append(script);
}
