// Reads relay.toml. No error has a value in it: values may be secret.
#include <toml++/toml.h>

#include <algorithm>
#include <filesystem>

#include "core/small_file.hpp"
#include "core/text.hpp"
#include "core/text_values.hpp"
#include "relay/configure/settings.hpp"
#include "relay/configure/sources.hpp"
#include "sinks/registry.hpp"

namespace outbox::relay {

namespace {

constexpr std::size_t max_file = 1024 * 1024;
constexpr std::ptrdiff_t max_dots = 1000;

// toml++ limits the depth of values, but not that of keys (a.a.a.a), each of which is a call
// deeper.
std::optional<std::size_t> line_with_deep_keys(std::string_view text) {
    for (std::size_t number = 1; !text.empty(); number++) {
        const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
        if (std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '.') >
            max_dots)
            return number;
        text.remove_prefix(end);
    }
    return std::nullopt;
}

class Reader {
  public:
    Reader(const std::string& path, const Environment& environment, Errors& errors)
        : path_(path), environment_(environment), errors_(errors) {}

    FileContents read();

  private:
    void read_top(const toml::table& top, FileContents& contents);
    void read_databases(const toml::node& node, FileContents& contents);
    void read_credentials(const toml::node& node, FileContents& contents);
    Values read_settings(const toml::table& table, std::span<const Setting> settings,
                         const std::vector<std::string_view>& sections);
    std::vector<Option> read_options(const toml::table& table);
    CredentialScope read_scope(const toml::table& table);

    std::optional<std::string> text_of(const std::string& key, const toml::node& node);
    std::optional<std::string> any_text_of(const std::string& key, const toml::node& node);
    std::optional<std::string> text_elsewhere(const std::string& key, const toml::table& table);
    std::optional<std::string> text_of_list(const std::string& key, const toml::array& list);
    std::optional<std::string> text_of_variable(const std::string& key, const toml::node& node,
                                                const std::string& name);
    std::optional<std::string> text_of_file(const std::string& key, const toml::node& node,
                                            const std::string& name);
    const toml::table* table_of(const std::string& name, const toml::node& node);

    std::string origin(const toml::source_region& place) const {
        return path_ + ':' + std::to_string(place.begin.line);
    }
    std::nullopt_t wrong(const toml::source_region& place, std::string message,
                         std::string detail = "", std::string hint = "");

    const std::string& path_;
    const Environment& environment_;
    Errors& errors_;
};

std::string in_quotes(std::string_view name) {
    return '"' + printable(name, 100) + '"';
}

std::nullopt_t Reader::wrong(const toml::source_region& place, std::string message,
                             std::string detail, std::string hint) {
    errors_.push_back({ErrorKind::invalid_value, origin(place) + ": " + std::move(message),
                       std::move(detail), std::move(hint)});
    return std::nullopt;
}

// -------------------------------------------------------------------------------------------------
// Values
// -------------------------------------------------------------------------------------------------

// Keys of [credentials.NAME] that are not options of a user mapping.
constexpr std::string_view databases_key = "databases";
constexpr std::string_view urls_key = "urls";
constexpr std::string_view identity_key = "machine_identity";

bool is_list(std::string_view key) {
    return key == "destinations" || key == databases_key || key == urls_key;
}

constexpr const char* forms = "Write \"text\", { env = \"VARIABLE\" } or { file = \"/path\" }.";

std::optional<std::string> Reader::text_of_variable(const std::string& key, const toml::node& node,
                                                    const std::string& name) {
    const char* value = environment_(name.c_str());
    if (value == nullptr)
        return wrong(node.source(), "environment variable " + in_quotes(name) + " for " +
                                        in_quotes(key) + " is not set");
    return value;
}

// Paths are relative to the directory of relay.toml. The end of the last line is not part of the
// text, because editors and `echo` add one.
std::optional<std::string> Reader::text_of_file(const std::string& key, const toml::node& node,
                                                const std::string& name) {
    const auto path = std::filesystem::path(path_).parent_path() / name;
    Result<std::string> text = read_small_file(path.string());
    if (!text)
        return wrong(node.source(), "could not read the file for " + in_quotes(key),
                     path.string() + ": " + text.error().detail,
                     "It must be a regular file of at most 64 kB that this user may read.");
    std::string& value = text.value();
    if (value.ends_with('\n'))
        value.pop_back();
    if (value.ends_with('\r'))
        value.pop_back();
    return std::move(value);
}

std::optional<std::string> Reader::text_elsewhere(const std::string& key,
                                                  const toml::table& table) {
    const toml::node* variable = table.get("env");
    const toml::node* file = table.get("file");
    const toml::node* place = variable != nullptr ? variable : file;
    if (place == nullptr || table.size() != 1 || !place->is_string() ||
        has_nul(place->ref<std::string>()))
        return wrong(table.source(), "invalid value for " + in_quotes(key), "", forms);
    const std::string name = place->ref<std::string>();
    return variable != nullptr ? text_of_variable(key, *place, name)
                               : text_of_file(key, *place, name);
}

std::optional<std::string> Reader::text_of_list(const std::string& key, const toml::array& list) {
    std::string text;
    for (const toml::node& element : list) {
        const auto one = element.value_exact<std::string>();
        if (!one || one->find(',') != std::string::npos)
            return wrong(element.source(), "invalid element of " + in_quotes(key), "",
                         "Write texts without commas.");
        text += (text.empty() ? "" : ", ") + *one;
    }
    return text;
}

std::optional<std::string> Reader::any_text_of(const std::string& key, const toml::node& node) {
    if (const auto* text = node.as_string())
        return text->get();
    if (const auto* number = node.as_integer())
        return std::to_string(number->get());
    if (const auto* toggle = node.as_boolean())
        return toggle->get() ? "on" : "off";
    if (const auto* table = node.as_table())
        return text_elsewhere(key, *table);
    if (const auto* list = node.as_array(); list != nullptr && is_list(key))
        return text_of_list(key, *list);
    return wrong(node.source(), "invalid value for " + in_quotes(key), "", forms);
}

// Most values become C strings, which would end at a zero byte.
std::optional<std::string> Reader::text_of(const std::string& key, const toml::node& node) {
    std::optional<std::string> text = any_text_of(key, node);
    if (text && has_nul(*text))
        return wrong(node.source(), "value for " + in_quotes(key) + " has a zero byte");
    return text;
}

// -------------------------------------------------------------------------------------------------
// Sections
// -------------------------------------------------------------------------------------------------

const toml::table* Reader::table_of(const std::string& name, const toml::node& node) {
    if (!node.is_table())
        wrong(node.source(), in_quotes(name) + " is not a section", "",
              "Write it as [" + printable(name, 100) + "].");
    return node.as_table();
}

Values Reader::read_settings(const toml::table& table, std::span<const Setting> settings,
                             const std::vector<std::string_view>& sections) {
    std::vector<std::string_view> valid;
    for (const Setting& setting : settings)
        valid.push_back(setting.spec.name);
    valid.insert(valid.end(), sections.begin(), sections.end());

    Values values;
    for (const auto& [key, node] : table) {
        const std::string name(key.str());
        if (std::find(sections.begin(), sections.end(), name) != sections.end())
            continue;
        if (std::find(valid.begin(), valid.end(), name) == valid.end()) {
            wrong(key.source(), "unknown key " + in_quotes(name), "",
                  hint_for_unknown(name, "keys", valid));
            continue;
        }
        const std::optional<std::string> text = text_of(name, node);
        values[name] = {text.value_or(""), origin(node.source()), !text};
    }
    return values;
}

std::vector<Option> Reader::read_options(const toml::table& table) {
    std::vector<Option> options;
    for (const auto& [key, node] : table) {
        const std::string name(key.str());
        if (name == databases_key || name == urls_key || name == identity_key)
            continue;
        auto text = text_of(name, node);
        if (!text)
            continue;
        options.push_back({name, std::move(*text)});
        if (std::optional<Error> error = validate_mapping_options({options.back()}))
            wrong(node.source(), printable(error->message), "", error->hint);
    }
    return options;
}

CredentialScope Reader::read_scope(const toml::table& table) {
    const auto list = [&](std::string_view key) {
        const toml::node* node = table.get(key);
        const auto text = node != nullptr ? text_of(std::string(key), *node) : std::nullopt;
        return split_list(text.value_or(""));
    };
    CredentialScope scope{.urls = list(urls_key)};
    if (table.contains(databases_key))
        scope.databases = list(databases_key);
    if (!table.contains(urls_key))
        wrong(table.source(), "\"urls\" is required",
              "A role that creates a destination would be sent the credentials.",
              "Write for example urls = [\"https://search.example.com/*\"]; [\"*\"] is any URL.");
    if (const toml::node* identity = table.get(identity_key)) {
        if (!identity->is_boolean())
            wrong(identity->source(), "invalid value for " + in_quotes(identity_key), "",
                  "Write true or false.");
        scope.machine_identity = identity->value_or(false);
    }
    return scope;
}

void Reader::read_databases(const toml::node& node, FileContents& contents) {
    const toml::table* databases = table_of("databases", node);
    if (databases == nullptr)
        return;
    for (const auto& [key, section] : *databases)
        if (const auto* table = table_of("databases." + std::string(key.str()), section))
            contents.databases[std::string(key.str())] =
                read_settings(*table, database_settings(), {});
}

void Reader::read_credentials(const toml::node& node, FileContents& contents) {
    const toml::table* credentials = table_of("credentials", node);
    if (credentials == nullptr)
        return;
    for (const auto& [key, section] : *credentials)
        if (const auto* table = table_of("credentials." + std::string(key.str()), section)) {
            contents.credentials[std::string(key.str())] = read_options(*table);
            contents.credential_scopes[std::string(key.str())] = read_scope(*table);
        }
}

void Reader::read_top(const toml::table& top, FileContents& contents) {
    contents.process = read_settings(top, process_settings(), {"databases", "credentials"});
    if (const toml::node* databases = top.get("databases"))
        read_databases(*databases, contents);
    if (const toml::node* credentials = top.get("credentials"))
        read_credentials(*credentials, contents);
}

FileContents Reader::read() {
    FileContents contents;
    const Result<std::string> text = read_small_file(path_, max_file);
    if (!text) {
        errors_.push_back(
            {ErrorKind::unavailable, text.error().message, "",
             "relay.toml must be a regular file of at most 1 MB that this user may read."});
        return contents;
    }
    if (const auto line = line_with_deep_keys(text.value())) {
        errors_.push_back({ErrorKind::invalid_value,
                           path_ + ':' + std::to_string(*line) + ": invalid TOML",
                           "The line has too many dots."});
        return contents;
    }
    try {
        read_top(toml::parse(text.value(), path_), contents);
    } catch (const toml::parse_error& error) {
        wrong(error.source(), "invalid TOML", printable(error.description()) + '.');
    }
    return contents;
}

}  // namespace

FileContents read_toml(const std::string& path, const Environment& environment, Errors& errors) {
    return Reader(path, environment, errors).read();
}

}  // namespace outbox::relay
