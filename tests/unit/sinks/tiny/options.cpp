#include "unit/sinks/tiny/options.hpp"

namespace outbox {

static constexpr OptionSpec prefix{
    .name = "prefix", .default_value = "tiny-", .description = "beginning of all message ids"};
static constexpr std::array options{prefix};

static std::optional<Error> check_url(const Url&, std::string_view text) {
    if (text == "tiny:")
        return std::nullopt;
    return Error{ErrorKind::invalid_value, "nothing may follow \"tiny:\"", "", "Write \"tiny:\"."};
}

static constexpr std::array<std::string_view, 1> schemes{"tiny"};
constinit const SinkDeclaration tiny_declaration{.name = "tiny",
                                                 .schemes = schemes,
                                                 .url = "tiny:",
                                                 .title = "a test",
                                                 .order = "of the log",
                                                 .options = options,
                                                 .ordered = true,
                                                 .check = "the option prefix",
                                                 .check_url = check_url,
                                                 .module = "pg_outbox_tiny.so"};

TinyOptions tiny_options(const Destination& destination) {
    return {.prefix = destination.options.text(prefix)};
}

}  // namespace outbox
