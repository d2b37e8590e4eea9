#include "net/json.hpp"

#include <memory>

namespace outbox {

static constexpr int max_depth = 32;

static std::unique_ptr<Json::CharReader> make_reader() {
    Json::CharReaderBuilder builder;
    Json::CharReaderBuilder::strictMode(&builder.settings_);
    builder["stackLimit"] = max_depth;
    return std::unique_ptr<Json::CharReader>(builder.newCharReader());
}

std::optional<Json::Value> parse_json(std::string_view text) {
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
