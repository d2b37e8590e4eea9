#include "sinks/kafka/schema_options.hpp"

#include "core/url.hpp"

namespace outbox {

std::optional<Error> check_registry_url(const OptionSpec& spec, std::string_view value) {
    const Result<Url> url = Url::parse(value);
    const bool usable = url && (url.value().scheme == "https" || url.value().scheme == "http") &&
                        !url.value().host.empty() && !url.value().user && url.value().query.empty();
    if (usable)
        return std::nullopt;
    return invalid_option_value(
        spec.name,
        "Write for example \"https://registry.example.com\". Set \"registry_user\" and "
        "\"registry_password\" in CREATE USER MAPPING.");
}

static Error invalid(const OptionSpec& spec, std::string hint) {
    return {ErrorKind::invalid_value,
            "option \"" + std::string(spec.name) + "\" has no effect here", "", std::move(hint)};
}

std::optional<Error> check_schemas(const OptionValues& values) {
    const SchemaOptions options = schema_options(values);
    if (values.has(schema_subject_option) && options.registry.empty())
        return invalid(schema_subject_option, "Set the option \"schema_registry\".");
    if (values.has(schema_format_option) && !options.are_used())
        return invalid(schema_format_option,
                       "Set the option \"schema_registry\" or \"schema_id_header\".");
    if (values.has(message_index_header_option) && !options.protobuf)
        return invalid(message_index_header_option,
                       "Set the option \"schema_format\" to \"protobuf\".");
    return std::nullopt;
}

SchemaOptions schema_options(const OptionValues& values) {
    SchemaOptions options{.registry = values.text(schema_registry_option),
                          .user = values.text(registry_user_option),
                          .password = values.text(registry_password_option),
                          .subject = values.name(schema_subject_option),
                          .id_header = values.text(schema_id_header_option),
                          .protobuf = values.text(schema_format_option) == "protobuf",
                          .index_header = values.text(message_index_header_option)};
    while (options.registry.ends_with('/'))
        options.registry.pop_back();
    return options;
}

}  // namespace outbox
