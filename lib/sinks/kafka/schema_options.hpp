// Options for the frame that names the schema of a payload (Confluent's wire format).
#pragma once

#include <optional>
#include <string>

#include "core/destination.hpp"

namespace outbox {

struct SchemaOptions {
    std::string registry;  // its URL, without a slash at the end; if empty, ids come from headers
    std::string user, password;  // of basic authentication
    TextTemplate subject;        // if empty, the topic with "-value"
    std::string id_header;       // header with the id; if empty, the registry is asked
    bool protobuf = false;       // the frame has message indexes
    std::string index_header;    // header with the indexes; if empty, always the first message

    bool are_used() const noexcept { return !registry.empty() || !id_header.empty(); }
};

std::optional<Error> check_registry_url(const OptionSpec& spec, std::string_view value);

inline constexpr OptionSpec schema_registry_option{
    .name = "schema_registry",
    .range = "URL",
    .description =
        "where the id of a subject's latest schema is looked up, which is put before each "
        "payload",
    .names_host = true,
    .check = check_registry_url};
inline constexpr OptionSpec schema_subject_option{
    .name = "schema_subject",
    .type = OptionType::name,
    .range = "{topic}, {aggregate_type}, {event_type}, {database} and text",
    .description = "subject to look up; if not set, the topic of the record with -value"};
inline constexpr OptionSpec schema_id_header_option{
    .name = "schema_id_header",
    .description =
        "header of the event with the id of its schema; the registry is asked for events "
        "without it"};
inline constexpr OptionSpec schema_format_option{
    .name = "schema_format",
    .type = OptionType::choice,
    .choices = {"avro", "json", "protobuf"},
    .default_value = "avro",
    .description = "kind of the schemas; with protobuf, message indexes follow the id"};
inline constexpr OptionSpec message_index_header_option{
    .name = "message_index_header",
    .description =
        "header of the event with the indexes of its message in the schema, such as 1 or "
        "0,2; without it, it is the first one"};
inline constexpr OptionSpec registry_user_option{
    .name = "registry_user",
    .place = OptionPlace::user_mapping,
    .description = "user of basic authentication at the schema registry"};
inline constexpr OptionSpec registry_password_option{.name = "registry_password",
                                                     .place = OptionPlace::user_mapping,
                                                     .description = "password of that user",
                                                     .secret = true};

// Rules between the options.
std::optional<Error> check_schemas(const OptionValues& values);

SchemaOptions schema_options(const OptionValues& values);

}  // namespace outbox
