#include "core/text_template.hpp"

#include <algorithm>
#include <array>
#include <span>

namespace outbox {

Result<TextTemplate> TextTemplate::parse(std::string_view text, Kind kind) {
    struct Field {
        std::string_view name;
        Part::Kind kind;
    };
    static constexpr std::array all_fields{Field{"topic", Part::Kind::topic},
                                           Field{"aggregate_type", Part::Kind::aggregate_type},
                                           Field{"event_type", Part::Kind::event_type},
                                           Field{"database", Part::Kind::database},
                                           Field{"aggregate_id", Part::Kind::aggregate_id},
                                           Field{"ordering_key", Part::Kind::ordering_key}};
    constexpr std::size_t only_of_routes = 2;
    const std::span fields =
        std::span(all_fields).first(all_fields.size() - (kind == Kind::name ? only_of_routes : 0));
    const auto invalid = [&](std::string message) {
        std::string hint = "Fields are: ";
        for (const Field& field : fields)
            hint.append(&field == fields.data() ? "{" : ", {").append(field.name) += '}';
        return Error{ErrorKind::invalid_value, std::move(message), "", hint + '.'};
    };

    TextTemplate parsed;
    std::string_view rest = text;
    while (!rest.empty()) {
        const std::size_t brace = rest.find_first_of("{}");
        if (brace != 0) {
            parsed.parts_.push_back({Part::Kind::text, std::string(rest.substr(0, brace))});
            rest.remove_prefix(std::min(rest.size(), brace));
            continue;
        }
        const std::size_t end = rest.find('}');
        if (rest.front() == '}' || end == std::string_view::npos)
            return invalid("Unbalanced brace in \"" + std::string(text) + "\"");
        const std::string_view name = rest.substr(1, end - 1);
        const auto field = std::find_if(fields.begin(), fields.end(),
                                        [&](const Field& f) { return f.name == name; });
        if (field == fields.end())
            return invalid("There is no field \"{" + std::string(name) + "}\"");
        parsed.parts_.push_back({field->kind, ""});
        rest.remove_prefix(end + 1);
    }
    if (parsed.parts_.empty())
        return invalid("A name must not be empty");
    return parsed;
}

void TextTemplate::append_to(std::string& out, const Event& event,
                             std::string_view database) const {
    append_encoded(out, event, database,
                   [](std::string& to, std::string_view value, bool) { to += value; });
}

void TextTemplate::append_encoded(std::string& out, const Event& event, std::string_view database,
                                  Encode encode) const {
    for (const Part& part : parts_)
        switch (part.kind) {
            case Part::Kind::text:
                out += part.text;
                break;
            case Part::Kind::topic:
                encode(out, event.topic, false);
                break;
            case Part::Kind::aggregate_type:
                encode(out, event.aggregate_type, false);
                break;
            case Part::Kind::event_type:
                encode(out, event.event_type, false);
                break;
            case Part::Kind::database:
                encode(out, database, false);
                break;
            case Part::Kind::aggregate_id:
                encode(out, event.aggregate_id, true);
                break;
            case Part::Kind::ordering_key:
                encode(out, event.ordering_key, true);
                break;
        }
}

bool TextTemplate::is_constant() const noexcept {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
        return part.kind == Part::Kind::text || part.kind == Part::Kind::database;
    });
}

bool TextTemplate::needs_only_topic() const noexcept {
    return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) {
        return part.kind == Part::Kind::text || part.kind == Part::Kind::topic ||
               part.kind == Part::Kind::database;
    });
}

bool TextTemplate::ends_with(std::string_view suffix) const noexcept {
    return !parts_.empty() && parts_.back().kind == Part::Kind::text &&
           parts_.back().text.ends_with(suffix);
}

}  // namespace outbox
