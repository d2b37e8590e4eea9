#include "sinks/pull/options.hpp"

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

static constexpr std::array<std::string_view, 1> schemes{"pull"};
constinit const SinkDeclaration pull_declaration{
    .name = "pull",
    .schemes = schemes,
    .url = "pull:",
    .title = "relays that fetch events, in any language",
    .order = "per ordering key",
    .options = options,
    .check = "none: events wait for outbox.fetch()",
    .check_url = check_url};

}  // namespace outbox
