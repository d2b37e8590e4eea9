#include "net/json.hpp"

#include <memory>

namespace outbox {

static constexpr int max_depth = 32;
// A value takes about a hundred bytes, however short its text is.
static constexpr std::size_t max_values = 100'000;

static std::unique_ptr<Json::CharReader> make_reader() {
    Json::CharReaderBuilder builder;
    Json::CharReaderBuilder::strictMode(&builder.settings_);
    builder["stackLimit"] = max_depth;
    return std::unique_ptr<Json::CharReader>(builder.newCharReader());
}

// Each value is the first of an array or object, or comes behind a comma.
static bool has_too_many_values(std::string_view text) {
    std::size_t values = 0;
    bool in_string = false;
    for (std::size_t i = 0; i < text.size() && values <= max_values; i++) {
        const char c = text[i];
        if (c == '"')
            in_string = !in_string;
        else if (in_string)
            i += c == '\\';
        else
            values += c == ',' || c == '[' || c == '{';
    }
    return values > max_values;
}

std::optional<Json::Value> parse_json(std::string_view text) {
    if (has_too_many_values(text))
        return std::nullopt;
    // One reader per thread, because making one takes longer than reading the answer to one event.
    static thread_local const std::unique_ptr<Json::CharReader> reader = make_reader();
    Json::Value value;
    try {
        if (!reader->parse(text.data(), text.data() + text.size(), &value, nullptr))
            return std::nullopt;
    } catch (const Json::Exception&) {  // nested too deeply
        return std::nullopt;
    }
    return value;
}

const Json::Value* json_member(const Json::Value& value, std::string_view name) {
    return value.isObject() ? value.find(name.data(), name.data() + name.size()) : nullptr;
}

std::string json_text(const Json::Value& value, std::string_view name) {
    const Json::Value* member = json_member(value, name);
    return member != nullptr && member->isString() ? member->asString() : "";
}

}  // namespace outbox
