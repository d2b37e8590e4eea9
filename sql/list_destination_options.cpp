// Prints outbox.destination_options() of the SQL edition: the declarations of the sinks as rows.
// extension/destinations/destination_options.cpp does the same for the extension, with memory of
// the server.
#include <cstdio>
#include <string>

#include "core/option_names.hpp"
#include "sinks/registry.hpp"

using namespace outbox;

static std::string quoted(std::string_view text) {
    if (text.empty())
        return "NULL";
    std::string result = "'";
    for (const char c : text)
        result.append(c == '\'' ? 2 : 1, c);
    return result + "'";
}

static std::string range_of(const SinkDeclaration& sink, const OptionSpec& spec) {
    std::string range;
    append_range(spec, sink.url, [&](std::string_view part) { range += part; });
    return range;
}

static void print_option(const SinkDeclaration& sink, const OptionSpec& spec) {
    static bool first = true;
    const std::string_view unit = unit_of(spec);
    std::printf("%s        (%s, %s, %s, %s, %s, %s, %s, %s)", first ? "" : ",\n",
                quoted(sink.name).c_str(), quoted(spec.name).c_str(),
                quoted(place_name(spec.place)).c_str(), quoted(type_name(spec)).c_str(),
                quoted(unit).c_str(), quoted(range_of(sink, spec)).c_str(),
                quoted(spec.default_value).c_str(), quoted(spec.description).c_str());
    first = false;
}

int main() {
    std::puts(
        "-- Returns every option that a destination can have: where it is set, its valid values "
        "and\n"
        "-- its default. They come from the declarations of the sinks\n"
        "-- (lib/sinks/<name>/options.cpp). What is set in a user mapping in the extension is "
        "among\n"
        "-- the credentials of outbox-relay here.\n"
        "CREATE FUNCTION outbox.destination_options(\n"
        "    OUT sink          text,\n"
        "    OUT option        text,\n"
        "    OUT set_in        text,\n"
        "    OUT type          text,\n"
        "    OUT unit          text,\n"
        "    OUT range         text,\n"
        "    OUT default_value text,\n"
        "    OUT description   text)\n"
        "RETURNS SETOF record\n"
        "LANGUAGE sql IMMUTABLE PARALLEL SAFE\n"
        "SET search_path = pg_catalog, pg_temp\n"
        "BEGIN ATOMIC\n"
        "    SELECT * FROM (VALUES");
    for (const SinkDeclaration* sink : all_sinks()) {
        for (const OptionSpec& spec : common_options)
            print_option(*sink, spec);
        for (const OptionSpec& spec : sink->options)
            print_option(*sink, spec);
        for (const OptionSpec& spec : sink->parameters)
            print_option(*sink, spec);
    }
    std::puts(
        "\n      ) AS o(sink, option, set_in, type, unit, range, default_value, description);\n"
        "END;");
}
