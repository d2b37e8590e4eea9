#include "sinks/null/options.hpp"

#include "sinks/null/null_sink.hpp"

namespace outbox {

static std::optional<Error> check_url(const Url&, std::string_view text) {
    if (text.size() == std::string_view("null:").size())
        return std::nullopt;
    return Error{ErrorKind::invalid_value, "nothing may follow \"null:\"", "", "Write \"null:\"."};
}

static constexpr std::array<std::string_view, 1> schemes{"null"};
constinit const SinkDeclaration null_declaration{
    .name = "null",
    .schemes = schemes,
    .url = "null:",
    .title = "nowhere: confirms everything at once, for benchmarks and tests",
    .order = "of the log",
    .options = {},
    .ordered = true,
    .check = "none: events are confirmed at once",
    .check_url = check_url,
    .create = create_null_sink};

}  // namespace outbox
