#include "sinks/pull/options.hpp"

#include "core/destination.hpp"

namespace outbox {

static constexpr std::array options{OptionSpec{
    .name = "lanes",
    .type = OptionType::number,
    .max = 1'024,
    .unit = "lanes",
    .default_value = "8",
    .description = "parts that ordering keys are divided into; each is fetched by one relay "
                   "at a time"}};

static std::optional<Error> check_url(const Url&, std::string_view text) {
    if (text == "pull:")
        return std::nullopt;
    return Error{ErrorKind::invalid_value,
                 "the URL of a pull destination is \"pull:\", and nothing else", "",
                 "Write \"pull:\"."};
}

// Relays that fetch have the event, and can do both themselves.
static std::optional<Error> check_options(const OptionValues& options) {
    if (!has_expressions(options))
        return std::nullopt;
    const std::string_view name =
        options.has(filter_option) ? filter_option.name : payload_option.name;
    return Error{ErrorKind::invalid_option,
                 "option \"" + std::string(name) + "\" is not valid for a pull destination", "",
                 "Filter and change events where they are fetched."};
}

static constexpr std::array<std::string_view, 1> schemes{"pull"};
constinit const SinkDeclaration pull_declaration{
    .name = "pull",
    .schemes = schemes,
    .url = "pull:",
    .title = "relays that fetch events, in any language",
    .order = "per ordering key",
    .options = options,
    .check = "none: events wait for outbox.fetch()",
    .check_url = check_url,
    .check_options = check_options};

}  // namespace outbox
