#include "sinks/kafka/schemas.hpp"

#include <algorithm>

#include "core/base64.hpp"
#include "core/percent.hpp"
#include "core/text.hpp"
#include "net/json.hpp"

namespace outbox {

static constexpr std::size_t max_subjects = 1000;
static constexpr std::size_t max_questions = 4;  // at the same time
// An answer has the text of the schema.
static constexpr std::size_t max_schema_answer = 1024 * 1024;
static constexpr std::size_t max_indexes = 32;

// -------------------------------------------------------------------------------------------------
// Frames
// -------------------------------------------------------------------------------------------------

static void append_zigzag(std::string& out, std::uint32_t number) {
    std::uint64_t rest = std::uint64_t{number} << 1;
    for (; rest >= 0x80; rest >>= 7)
        out += static_cast<char>(rest | 0x80);
    out += static_cast<char>(rest);
}

static std::optional<std::uint32_t> parse_id(std::string_view text) {
    const std::optional<std::int64_t> number = parse_integer(text);
    if (!number || *number < 0 || *number > INT32_MAX)
        return std::nullopt;
    return static_cast<std::uint32_t>(*number);
}

std::string encoded_indexes(std::string_view list) {
    std::vector<std::uint32_t> indexes;
    do {
        const std::string_view text = list.substr(0, list.find(','));
        const std::optional<std::uint32_t> index = parse_id(trim(text));
        const bool ends_with_comma = text.size() + 1 == list.size();
        if (!index || indexes.size() == max_indexes || ends_with_comma)
            return "";
        indexes.push_back(*index);
        list.remove_prefix(std::min(list.size(), text.size() + 1));
    } while (!list.empty());
    std::string encoded;
    if (indexes == std::vector<std::uint32_t>{0})
        return std::string(1, '\0');  // the short form
    append_zigzag(encoded, static_cast<std::uint32_t>(indexes.size()));
    for (const std::uint32_t index : indexes)
        append_zigzag(encoded, index);
    return encoded;
}

std::string frame_of(const SchemaOfEvent& schema) {
    std::string frame(1, '\0');
    for (int shift = 24; shift >= 0; shift -= 8)
        frame += static_cast<char>(schema.schema->id >> shift);
    return frame + schema.indexes;
}

static const Header* header_of(const Event& event, const std::string& name) noexcept {
    if (name.empty())
        return nullptr;
    for (const Header& header : event.headers)
        if (header.name == name && header.kind != Header::Kind::null)
            return &header;
    return nullptr;
}

bool are_pending(const std::vector<SchemaOfEvent>& schemas) noexcept {
    return std::any_of(schemas.begin(), schemas.end(), [](const SchemaOfEvent& one) {
        return one.schema != nullptr && one.schema->state == Schema::State::asking;
    });
}

const Schema* failed_one(const std::vector<SchemaOfEvent>& schemas) noexcept {
    for (const SchemaOfEvent& one : schemas)
        if (one.schema != nullptr && one.schema->state == Schema::State::failed)
            return one.schema.get();
    return nullptr;
}

// -------------------------------------------------------------------------------------------------
// Events
// -------------------------------------------------------------------------------------------------

static TransportConfig config_of(const KafkaOptions& options, const Clock& clock) {
    TransportConfig config =
        transport_config(options.https, clock, options.schemas.registry, max_questions);
    if (!options.schemas.user.empty()) {
        config.authorization = "Basic ";
        append_base64(config.authorization, options.schemas.user + ':' + options.schemas.password);
    }
    return config;
}

Schemas::Schemas(const KafkaOptions& options, const Clock& clock)
    : options_(options.schemas), source_(options.source) {
    if (options_.registry.empty())
        return;
    TransportConfig config = config_of(options, clock);
    path_ = ascii_url(config.url.path) + "/subjects/";
    client_ = std::make_unique<HttpClient>();
    client_->use(std::move(config), nullptr);
}

std::vector<SchemaOfEvent> Schemas::of(const Batch& batch, const std::string& topic) {
    std::vector<SchemaOfEvent> schemas;
    if (!options_.are_used())
        return schemas;
    schemas.reserve(batch.events.size());
    for (const Event* event : batch.events)
        schemas.push_back(event->has_payload ? of(*event, topic) : SchemaOfEvent());
    ask_waiting();
    return schemas;
}

static SchemaOfEvent invalid(const std::string& header, const char* what) {
    auto schema = std::make_shared<Schema>();
    schema->state = Schema::State::invalid;
    schema->error = "header \"" + header + "\" of the event is not " + what;
    return {std::move(schema)};
}

static SchemaOfEvent known(std::uint32_t id) {
    auto schema = std::make_shared<Schema>();
    schema->state = Schema::State::known;
    schema->id = id;
    return {std::move(schema)};
}

SchemaOfEvent Schemas::of(const Event& event, const std::string& topic) {
    SchemaOfEvent found;
    if (const Header* header = header_of(event, options_.id_header)) {
        const std::optional<std::uint32_t> id = parse_id(header->value);
        if (!id)
            return invalid(options_.id_header, "the id of a schema");
        found = known(*id);
    } else if (client_ == nullptr) {
        return invalid(options_.id_header, "the id of a schema");
    } else {
        std::string subject;
        options_.subject.append_to(subject, event, source_);
        found.schema = subject.empty() ? of_topic(topic) : look_up(subject);
    }
    if (options_.protobuf) {
        const Header* header = header_of(event, options_.index_header);
        found.indexes = encoded_indexes(header != nullptr ? header->value : "0");
        if (found.indexes.empty())
            return invalid(options_.index_header, "the path to a message, such as 1 or 0,2");
    }
    return found;
}

// -------------------------------------------------------------------------------------------------
// The registry
// -------------------------------------------------------------------------------------------------

std::shared_ptr<const Schema> Schemas::of_topic(const std::string& topic) {
    const std::shared_ptr<Schema> schema = look_up(topic + "-value");
    ask_waiting();
    return schema;
}

std::shared_ptr<Schema> Schemas::look_up(const std::string& subject) {
    if (const auto found = subjects_.find(subject); found != subjects_.end())
        return found->second;
    if (subjects_.size() >= max_subjects)
        std::erase_if(subjects_, [](const auto& entry) {
            return entry.second->state != Schema::State::asking;
        });
    auto schema = std::make_shared<Schema>();
    subjects_.emplace(subject, schema);
    waiting_.push_back(std::make_unique<Question>());
    waiting_.back()->subject = subject;
    waiting_.back()->schema = schema;
    return schema;
}

void Schemas::ask_waiting() {
    for (; !waiting_.empty() && asked_.size() < max_questions; waiting_.pop_front()) {
        asked_.push_back(std::move(waiting_.front()));
        Question& question = *asked_.back();
        question.exchange.method = "GET";
        question.exchange.target = path_;
        append_percent_encoded(question.exchange.target, question.subject);
        question.exchange.target += "/versions/latest";
        question.exchange.content.headers = "Accept: application/vnd.schemaregistry.v1+json\r\n";
        question.exchange.keep_body = max_schema_answer;
        client_->send(question.exchange);
    }
}

void Schemas::step(Micros now) {
    if (client_ == nullptr)
        return;
    client_->step(now, done_);
    for (; !done_.empty(); done_.pop_back()) {
        const auto question = std::find_if(asked_.begin(), asked_.end(), [&](const auto& one) {
            return &one->exchange == done_.back();
        });
        take_answer(**question);
        asked_.erase(question);
    }
    ask_waiting();
}

void Schemas::take_answer(const Question& question) {
    const Exchange& exchange = question.exchange;
    Schema& schema = *question.schema;
    const std::optional<Json::Value> answer = parse_json(exchange.body);
    const auto number = [&](const char* name) {
        const Json::Value* member = answer ? json_member(*answer, name) : nullptr;
        return member != nullptr && member->isInt() ? member->asInt() : -1;
    };
    if (exchange.status == 200 && number("id") >= 0) {
        schema.state = Schema::State::known;
        schema.id = static_cast<std::uint32_t>(number("id"));
        return;
    }
    subjects_.erase(question.subject);  // the next event asks again
    const std::string name = "subject \"" + printable(question.subject, 253) + '"';
    // "Subject not found" and "version not found". Without such a code, the URL is wrong.
    if (exchange.status == 404 &&
        (number("error_code") == 40401 || number("error_code") == 40402)) {
        schema.state = Schema::State::unknown;
        schema.error = name + " is not in the schema registry";
        return;
    }
    schema.state = Schema::State::failed;
    schema.error = "schema registry, " + name + ": ";
    if (exchange.status != 200)
        schema.error += explain(exchange);
    else
        schema.error += exchange.body.size() >= max_schema_answer ? "its answer is too large"
                                                                  : "its answer has no id";
}

}  // namespace outbox
