#include "core/option.hpp"

#include <algorithm>

#include "core/header_lines.hpp"
#include "core/text.hpp"
#include "core/topic_filter.hpp"

namespace outbox {

// -------------------------------------------------------------------------------------------------
// Checking
// -------------------------------------------------------------------------------------------------

Error invalid_option_value(std::string_view option, std::string hint) {
    return {ErrorKind::invalid_value, "invalid value for option \"" + std::string(option) + "\"",
            "", std::move(hint)};
}

std::optional<Error> check_text(const OptionSpec& spec, std::string_view value) {
    const bool printable = std::all_of(value.begin(), value.end(), [](char c) {
        return static_cast<unsigned char>(c) >= ' ' && c != 0x7f;
    });
    if (!value.empty() && printable)
        return std::nullopt;
    return Error{
        ErrorKind::invalid_value,
        "option \"" + std::string(spec.name) + "\" must not be empty or contain control characters",
        "", "Omit the option if you do not need it."};
}

// The rest is checked where there is a parser of SQL.
static std::optional<Error> check_expression(const OptionSpec& spec, std::string_view value) {
    if (!trim(value).empty())
        return std::nullopt;
    return Error{ErrorKind::invalid_value,
                 "option \"" + std::string(spec.name) + "\" must not be empty", "",
                 "Omit the option if you do not need it."};
}

static std::optional<Error> check_number(const OptionSpec& spec, std::string_view value) {
    const auto number = parse_integer(value);
    if (number && *number >= 1 && *number <= spec.max)
        return std::nullopt;
    return invalid_option_value(spec.name,
                                "Write a number from 1 to " + std::to_string(spec.max) + ".");
}

static std::optional<Error> check_duration(const OptionSpec& spec, std::string_view value) {
    const Result<Micros> duration = parse_duration(value);
    if (duration)
        return std::nullopt;
    Error error = invalid_option_value(spec.name, duration.error().hint);
    error.detail = duration.error().message;
    return error;
}

static std::optional<Error> check_one_of(const OptionSpec& spec, std::string_view value,
                                         std::vector<std::string_view> choices) {
    if (std::find(choices.begin(), choices.end(), value) != choices.end())
        return std::nullopt;
    std::string hint = "Write ";
    for (std::size_t i = 0; i < choices.size(); i++) {
        if (i > 0)
            hint += i + 1 == choices.size() ? " or " : ", ";
        hint += '"' + std::string(choices[i]) + '"';
    }
    return invalid_option_value(spec.name, hint + '.');
}

std::optional<Error> check_choice(const OptionSpec& spec, std::string_view value) {
    const auto end = std::find(spec.choices.begin(), spec.choices.end(), std::string_view());
    return check_one_of(spec, value, {spec.choices.begin(), end});
}

static TextTemplate::Kind template_kind(const OptionSpec& spec) {
    return spec.type == OptionType::route ? TextTemplate::Kind::route : TextTemplate::Kind::name;
}

static std::optional<Error> check_name(const OptionSpec& spec, std::string_view value) {
    const Result<TextTemplate> parsed = TextTemplate::parse(value, template_kind(spec));
    if (parsed)
        return std::nullopt;
    Error error = invalid_option_value(spec.name, parsed.error().hint);
    error.detail = parsed.error().message + '.';
    return error;
}

static std::optional<Error> check_topics(std::string_view value) {
    const Result<TopicFilter> parsed = TopicFilter::parse(value);
    return parsed ? std::nullopt : std::optional(parsed.error());
}

static std::optional<Error> check_headers(const OptionSpec& spec, std::string_view value) {
    const Result<std::vector<HeaderLine>> parsed = parse_header_lines(value);
    if (parsed)
        return std::nullopt;
    Error error = invalid_option_value(spec.name, parsed.error().hint);
    error.detail = parsed.error().message + '.';
    return error;
}

std::optional<Error> check_value(const OptionSpec& spec, std::string_view value) {
    if (spec.check != nullptr)
        return spec.check(spec, value);
    switch (spec.type) {
        case OptionType::text:
            return check_text(spec, value);
        case OptionType::number:
            return check_number(spec, value);
        case OptionType::duration:
            return check_duration(spec, value);
        case OptionType::choice:
            return check_choice(spec, value);
        case OptionType::toggle:
            return check_one_of(spec, value, {"on", "off"});
        case OptionType::name:
        case OptionType::route:
            return check_name(spec, value);
        case OptionType::topics:
            return check_topics(value);
        case OptionType::headers:
            return check_headers(spec, value);
        case OptionType::expression:
            return check_expression(spec, value);
        case OptionType::url:
            break;
    }
    return std::nullopt;
}

bool names_file(const OptionSpec& spec, std::string_view value) noexcept {
    return spec.names_file == NamesFile::yes ||
           (spec.names_file == NamesFile::unless_system && value != "system");
}

Result<Micros> parse_duration(std::string_view text) {
    struct Unit {
        std::string_view suffix;
        Micros length;
    };
    static constexpr std::array units{Unit{"ms", milliseconds(1)}, Unit{"min", seconds(60)},
                                      Unit{"h", seconds(3600)}, Unit{"s", seconds(1)},
                                      Unit{"", milliseconds(1)}};
    const std::string_view value = trim(text);
    for (const Unit& unit : units) {
        if (!value.ends_with(unit.suffix))
            continue;
        const auto number = parse_integer(trim(value.substr(0, value.size() - unit.suffix.size())));
        if (number && *number >= 1 && *number <= seconds(86'400) / unit.length)
            return *number * unit.length;
        break;
    }
    return Error{
        ErrorKind::invalid_value, "Invalid duration \"" + std::string(text) + "\".", "",
        "Write a number of milliseconds, or a number with the unit ms, s, min or h; at least "
        "1 ms and at most a day."};
}

std::string comma_separated(const std::vector<std::string_view>& names) {
    std::string text;
    for (std::string_view name : names) {
        if (!text.empty())
            text += ", ";
        text += name;
    }
    return text;
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

const std::string* OptionValues::find(std::string_view name) const noexcept {
    for (const Option& option : options_)
        if (option.name == name)
            return &option.value;
    return nullptr;
}

std::string_view OptionValues::given_or_default(const OptionSpec& spec) const noexcept {
    const std::string* given = find(spec.name);
    return given != nullptr ? std::string_view(*given) : spec.default_value;
}

std::string OptionValues::text(const OptionSpec& spec) const {
    return std::string(given_or_default(spec));
}

std::size_t OptionValues::number(const OptionSpec& spec) const noexcept {
    const auto given = parse_integer(given_or_default(spec));
    return static_cast<std::size_t>(given ? *given : parse_integer(spec.default_value).value_or(1));
}

bool OptionValues::toggle(const OptionSpec& spec) const noexcept {
    return given_or_default(spec) == "on";
}

bool OptionValues::toggle(const OptionSpec& spec, bool otherwise) const noexcept {
    return has(spec) ? toggle(spec) : otherwise;
}

TextTemplate OptionValues::name(const OptionSpec& spec) const {
    Result<TextTemplate> given = TextTemplate::parse(given_or_default(spec), template_kind(spec));
    if (!given)
        given = TextTemplate::parse(spec.default_value, template_kind(spec));
    return given ? std::move(given.value()) : TextTemplate();
}

Micros OptionValues::duration(const OptionSpec& spec, Micros otherwise) const {
    const std::string* given = find(spec.name);
    if (given == nullptr)
        return otherwise;
    const Result<Micros> duration = parse_duration(*given);
    return duration ? duration.value() : otherwise;
}

}  // namespace outbox
