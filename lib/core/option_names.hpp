// Names for people of what an option is: the columns of outbox.destination_options(), which both
// editions make from the declarations of the sinks.
#pragma once

#include <charconv>
#include <string_view>

#include "core/option.hpp"

namespace outbox {

std::string_view place_name(OptionPlace place);
std::string_view type_name(const OptionSpec& spec);
std::string_view unit_of(const OptionSpec& spec);  // empty if it has none

// Appends the valid values part by part, so that the extension can use memory of the server; nothing
// here has a destructor. `url` is the form of the URLs of the sink.
template <class Append>
void append_range(const OptionSpec& spec, std::string_view url, Append append) {
    char digits[24];
    std::string_view separator = "";
    switch (spec.type) {
        case OptionType::number:
            append("1 to ");
            append({digits,
                    static_cast<std::size_t>(
                        std::to_chars(digits, digits + sizeof digits, spec.max).ptr - digits)});
            break;
        case OptionType::duration:
            append("1ms to 24h");
            break;
        case OptionType::choice:
            for (const std::string_view choice : spec.choices) {
                if (choice.empty())
                    break;
                append(separator);
                append(choice);
                separator = ", ";
            }
            break;
        case OptionType::toggle:
            append("on, off");
            break;
        case OptionType::url:
            append(url);
            break;
        case OptionType::text:
        case OptionType::name:
        case OptionType::route:
        case OptionType::topics:
        case OptionType::headers:
        case OptionType::expression:
            append(spec.range);
            break;
    }
}

}  // namespace outbox
