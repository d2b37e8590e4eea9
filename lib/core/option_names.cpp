#include "core/option_names.hpp"

namespace outbox {

std::string_view place_name(OptionPlace place) {
    switch (place) {
        case OptionPlace::server:
            return "server";
        case OptionPlace::user_mapping:
            return "user mapping";
        case OptionPlace::url:
            break;
    }
    return "URL";
}

std::string_view type_name(const OptionSpec& spec) {
    if (spec.names_file != NamesFile::no)
        return "file";
    switch (spec.type) {
        case OptionType::text:
            return "text";
        case OptionType::number:
            return "number";
        case OptionType::duration:
            return "duration";
        case OptionType::choice:
            return "choice";
        case OptionType::toggle:
            return "switch";
        case OptionType::name:
        case OptionType::route:
            return "template";
        case OptionType::topics:
            return "patterns";
        case OptionType::headers:
            return "headers";
        case OptionType::expression:
            return "expression";
        case OptionType::url:
            break;
    }
    return "URL";
}

std::string_view unit_of(const OptionSpec& spec) {
    return spec.type == OptionType::duration ? "ms" : spec.unit;
}

}  // namespace outbox
