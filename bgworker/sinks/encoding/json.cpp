#include "sinks/encoding/json.hpp"

#include <memory>

namespace outbox {

static constexpr int max_depth = 32;

std::optional<Json::Value> parse_json(std::string_view text) {
    Json::CharReaderBuilder builder;
    Json::CharReaderBuilder::strictMode(&builder.settings_);
    builder["stackLimit"] = max_depth;
    const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
    Json::Value value;
    try {
        if (!reader->parse(text.data(), text.data() + text.size(), &value, nullptr))
            return std::nullopt;
    } catch (const Json::Exception&) {  // too deep
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
