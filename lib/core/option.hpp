// Options of destinations: how they are declared, checked and read.
//
// An option is declared once, as a constant. Sinks declare theirs in lib/sinks/<name>/options.hpp;
// groups that several sinks share have a header of their own. The validator and its hints, the rows
// of outbox.destination_options(), the tables in the docs and the values that a sink reads all come
// from these constants.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.hpp"
#include "core/result.hpp"
#include "core/text_template.hpp"

namespace outbox {

// An option as it is stored in a catalog.
struct Option {
    std::string name;
    std::string value;

    bool operator==(const Option&) const = default;
};

enum class OptionPlace {
    server,        // CREATE SERVER
    user_mapping,  // CREATE USER MAPPING
    url,           // a parameter of the URL
};

enum class OptionType {
    text,        // not empty, no control characters
    number,      // from 1 to `max`
    duration,    // see parse_duration()
    choice,      // one of `choices`
    toggle,      // on, off
    name,        // a template for names, such as "{topic}"
    route,       // a template for what may differ in each event, such as "{topic}.{aggregate_id}"
    topics,      // patterns of topics
    headers,     // lines "Name: value"; see header_lines.hpp
    expression,  // of SQL, about an event; the server checks it
    url,         // the URL of the destination; its sink checks it
};

// Says if the value names a file that the server process reads.
enum class NamesFile { no, yes, unless_system };  // unless_system: not if the value is "system"

struct OptionSpec;
using CheckValue = std::optional<Error> (*)(const OptionSpec& spec, std::string_view value);

struct OptionSpec {
    std::string_view name;
    OptionPlace place = OptionPlace::server;
    OptionType type = OptionType::text;
    std::int64_t max = 0;                       // largest valid number
    std::array<std::string_view, 5> choices{};  // valid choices; unused elements are empty
    std::string_view unit{};                    // of a number
    std::string_view range{};                   // valid values, as far as the type does not say
    // A value, or the name of the setting that is the default, such as "outbox.max_attempts". Empty
    // if the option has no default.
    std::string_view default_value{};
    std::string_view description{};
    bool secret = false;  // concealed in all text about the destination
    // How every secret of this option begins. It says what the secret is, and is not secret itself.
    std::string_view secret_mark{};
    NamesFile names_file = NamesFile::no;
    bool names_host = false;     // its value, too, says who gets the credentials
    CheckValue check = nullptr;  // replaces the check of the type
};

// Returns std::nullopt if the value is valid for the option.
std::optional<Error> check_value(const OptionSpec& spec, std::string_view value);
// The checks of OptionType::text and OptionType::choice, for use in a `check` that extends them.
std::optional<Error> check_text(const OptionSpec& spec, std::string_view value);
std::optional<Error> check_choice(const OptionSpec& spec, std::string_view value);

bool names_file(const OptionSpec& spec, std::string_view value) noexcept;

// Returns "invalid value for option ..." with this hint.
Error invalid_option_value(std::string_view option, std::string hint);

// The options of a destination, all checked. They reach the module of the sink as text, and the
// module reads them by its own declarations. An option that is not set, or whose text is not a
// value of its type, reads as its default.
class OptionValues {
  public:
    OptionValues() = default;
    explicit OptionValues(std::vector<Option> options) : options_(std::move(options)) {}

    const std::vector<Option>& all() const noexcept { return options_; }
    const std::string* find(std::string_view name) const noexcept;  // nullptr if it is not set
    bool has(const OptionSpec& spec) const noexcept { return find(spec.name) != nullptr; }

    std::string text(const OptionSpec& spec) const;
    std::size_t number(const OptionSpec& spec) const noexcept;
    bool toggle(const OptionSpec& spec) const noexcept;
    TextTemplate name(const OptionSpec& spec) const;
    // For options whose default is a setting: `otherwise` is its value.
    Micros duration(const OptionSpec& spec, Micros otherwise) const;
    bool toggle(const OptionSpec& spec, bool otherwise) const noexcept;

  private:
    std::string_view given_or_default(const OptionSpec& spec) const noexcept;

    std::vector<Option> options_;
};

// Reads "500" (milliseconds), "500ms", "10s", "2min" or "1h": at least a millisecond, at most a
// day.
Result<Micros> parse_duration(std::string_view text);

// Returns "a, b, c".
std::string comma_separated(const std::vector<std::string_view>& names);

}  // namespace outbox
