#include "message/decode.hpp"

#include <json/json.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>
#include <stdexcept>

#include "core/base64.hpp"
#include "core/json_check.hpp"
#include "core/percent.hpp"
#include "core/text.hpp"
#include "text.hpp"

namespace inbox {

using Texts = std::map<std::string, std::string>;

// ---------------------------------------------------------------------------------------------
// Texts
// ---------------------------------------------------------------------------------------------

// PostgreSQL accepts valid UTF-8 only. An event with other bytes could not even become a dead
// letter.
static std::string clean(std::string_view text) {
    return clean_utf8(text, "\xef\xbf\xbd");  // U+FFFD
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

template <class Number>
static std::optional<Number> parse_number(std::string_view text) {
    Number number{};
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size())
        return std::nullopt;
    return number;
}

static std::optional<std::string> parse_uuid(std::string_view text) {
    if (!is_uuid(text))
        return std::nullopt;
    std::string uuid(text);
    std::transform(uuid.begin(), uuid.end(), uuid.begin(), outbox::ascii_lower);
    return uuid;
}

std::string uuid_of_name(std::string_view name) {
    static constexpr unsigned char urls[] = {0x6b, 0xa7, 0xb8, 0x11, 0x9d, 0xad, 0x11, 0xd1,
                                             0x80, 0xb4, 0x00, 0xc0, 0x4f, 0xd4, 0x30, 0xc8};
    std::string bytes(reinterpret_cast<const char*>(urls), sizeof urls);
    bytes += name;
    std::array<unsigned char, EVP_MAX_MD_SIZE> hash{};
    if (EVP_Digest(bytes.data(), bytes.size(), hash.data(), nullptr, EVP_sha1(), nullptr) != 1)
        throw std::bad_alloc();
    hash[6] = (hash[6] & 0x0f) | 0x50;  // version 5
    hash[8] = (hash[8] & 0x3f) | 0x80;
    outbox::Uuid id;
    std::copy_n(hash.begin(), id.size(), id.begin());
    std::string uuid;
    outbox::append_uuid(uuid, id);
    return uuid;
}

std::string digest_of(const Texts& attributes, std::string_view body) {
    std::string all;
    const auto append = [&all](std::string_view text) {
        all.append(std::to_string(text.size())).append(":").append(text);
    };
    for (const auto& [name, value] : attributes) {
        append(name);
        append(value);
    }
    append(body);
    return uuid_of_name(all);
}

bool is_counted(std::string_view id) {
    return !id.empty() && std::all_of(id.begin(), id.end(), is_digit);
}

// ---------------------------------------------------------------------------------------------
// Times
// ---------------------------------------------------------------------------------------------

// Takes a number of `count` digits off the front.
static std::optional<int> take_digits(std::string_view& text, std::size_t count) {
    if (text.size() < count || !std::all_of(text.begin(), text.begin() + count, is_digit))
        return std::nullopt;
    const std::optional<int> number = parse_number<int>(text.substr(0, count));
    text.remove_prefix(count);
    return number;
}

static bool take(std::string_view& text, std::string_view which) {
    if (text.empty() || which.find(text.front()) == std::string_view::npos)
        return false;
    text.remove_prefix(1);
    return true;
}

static std::optional<std::chrono::microseconds> take_fraction(std::string_view& text) {
    std::int64_t micros = 0;
    int digits = 0;
    while (!text.empty() && is_digit(text.front())) {
        if (digits++ < 6)
            micros = micros * 10 + (text.front() - '0');
        text.remove_prefix(1);
    }
    if (digits == 0)
        return std::nullopt;
    for (; digits < 6; digits++)
        micros *= 10;
    return std::chrono::microseconds(micros);
}

static std::optional<std::chrono::minutes> take_zone(std::string_view& text) {
    if (take(text, "zZ"))
        return std::chrono::minutes(0);
    const bool west = text.starts_with('-');
    if (!take(text, "+-"))
        return std::nullopt;
    const std::optional<int> hours = take_digits(text, 2);
    if (!hours || !take(text, ":"))
        return std::nullopt;
    const std::optional<int> minutes = take_digits(text, 2);
    if (!minutes || *hours > 23 || *minutes > 59)
        return std::nullopt;
    return std::chrono::minutes((west ? -1 : 1) * (*hours * 60 + *minutes));
}

std::optional<Time> parse_time(std::string_view text) {
    using namespace std::chrono;
    std::array<int, 6> parts{};
    for (std::size_t i = 0; i < parts.size(); i++) {
        static constexpr std::string_view before[] = {"", "-", "-", "Tt ", ":", ":"};
        if (i > 0 && !take(text, before[i]))
            return std::nullopt;
        const std::optional<int> number = take_digits(text, i == 0 ? 4 : 2);
        if (!number)
            return std::nullopt;
        parts[i] = *number;
    }
    const auto [year_, month_, day_, hour, minute, second] = parts;
    const year_month_day date{year(year_), month(month_), day(day_)};
    if (!date.ok() || hour > 23 || minute > 59 || second > 60)
        return std::nullopt;
    microseconds fraction{0};
    if (take(text, ".")) {
        const auto taken = take_fraction(text);
        if (!taken)
            return std::nullopt;
        fraction = *taken;
    }
    const auto zone = take_zone(text);
    if (!zone || !text.empty())
        return std::nullopt;
    return Time(sys_days(date) + hours(hour) + minutes(minute) + seconds(second) + fraction -
                *zone);
}

// ---------------------------------------------------------------------------------------------
// JSON
// ---------------------------------------------------------------------------------------------

namespace {

// As they are written, so that the digits of numbers and the order of members are kept. Only texts
// are parsed: in memory a value takes a hundred bytes, however short it is.
struct Member {
    std::string name;
    std::string_view value;

    bool is_text() const { return value.starts_with('"'); }
    bool is_null() const { return value == "null"; }
};

}  // namespace

static constexpr std::size_t max_members = 10'000;

// Takes everything before a comma, a colon or a bracket that was not opened.
static std::string_view take_value(std::string_view& text) {
    std::size_t depth = 0, end = 0;
    bool in_string = false;
    for (; end < text.size(); end++) {
        const char c = text[end];
        if (c == '"')
            in_string = !in_string;
        else if (in_string)
            end += c == '\\';
        else if (c == '[' || c == '{')
            depth++;
        else if (depth == 0 && (c == ',' || c == ':' || c == ']' || c == '}'))
            break;
        else if (c == ']' || c == '}')
            depth--;
    }
    const std::string_view value = text.substr(0, end);
    text.remove_prefix(value.size());
    return outbox::trim(value);
}

static std::string parse_text(std::string_view string) {
    static thread_local const std::unique_ptr<Json::CharReader> reader(
        Json::CharReaderBuilder().newCharReader());
    Json::Value value;
    const bool is_valid =
        reader->parse(string.data(), string.data() + string.size(), &value, nullptr);
    return is_valid && value.isString() ? value.asString() : std::string();
}

static std::string text_of(const Member& member) {
    return member.is_text() ? parse_text(member.value) : std::string(member.value);
}

static std::optional<std::vector<Member>> members_in(std::string_view object) {
    const auto is_value = [](std::string_view text) {
        return outbox::is_json_value(text) || outbox::is_json_value(clean(text));
    };
    object = outbox::trim(object);
    if (!object.starts_with('{') || !object.ends_with('}'))
        return std::nullopt;
    std::string_view rest = outbox::trim(object.substr(1, object.size() - 2));
    std::vector<Member> members;
    while (!rest.empty() || !members.empty()) {
        const std::string_view name = take_value(rest);
        if (!name.starts_with('"') || !is_value(name) || !take(rest, ":"))
            return std::nullopt;
        const std::string_view value = take_value(rest);
        if (!is_value(value) || members.size() == max_members)
            return std::nullopt;
        members.push_back({parse_text(name), value});
        if (rest.empty())
            break;
        if (!take(rest, ","))
            return std::nullopt;
    }
    return members;
}

std::optional<Texts> members_of_json(std::string_view document) {
    const std::optional<std::vector<Member>> members = members_in(document);
    if (!members)
        return std::nullopt;
    Texts headers;
    for (const Member& member : *members)
        if (!member.is_null())
            headers[clean(member.name)] = clean(text_of(member));
    return headers;
}

void take_headers(Event& event) {
    const auto found = event.headers.find("headers");
    if (found == event.headers.end())
        return;
    std::optional<Texts> headers = members_of_json(found->second);
    if (!headers)
        return;
    event.headers.erase(found);
    event.headers.merge(*headers);
}

// ---------------------------------------------------------------------------------------------
// Events
// ---------------------------------------------------------------------------------------------

static std::string take_text(Texts& texts, const std::string& name) {
    auto node = texts.extract(name);
    return node.empty() ? std::string() : std::move(node.mapped());
}

// Moves a text to its field if it can be parsed. Otherwise it stays with the headers.
template <class Field, class Parse>
static void take_parsed(Texts& texts, const std::string& name, Field& field, Parse parse) {
    const auto found = texts.find(name);
    if (found == texts.end())
        return;
    if (const auto parsed = parse(found->second)) {
        field = *parsed;
        texts.erase(found);
    }
}

static void take_numbers(Event& event, Texts& texts, const std::string& version,
                         const std::string& schema_version) {
    take_parsed(texts, version, event.version, parse_number<std::int64_t>);
    take_parsed(texts, schema_version, event.schema_version, parse_number<std::int32_t>);
}

static bool is_structured(std::string_view content_type) {
    static constexpr std::string_view type = "application/cloudevents+json";
    return content_type.size() >= type.size() &&
           std::equal(type.begin(), type.end(), content_type.begin(),
                      [](char a, char b) { return a == outbox::ascii_lower(b); });
}

static bool is_json(std::string_view content_type) {
    const std::string_view type = content_type.substr(0, content_type.find(';'));
    return type.empty() || type.ends_with("json");
}

// pg_outbox writes the source as /<database>/<aggregate type>, percent-encoded.
static std::string last_path_segment(std::string_view source) {
    const std::string_view segment = source.substr(source.rfind('/') + 1);
    std::string text;
    for (std::size_t i = 0; i < segment.size(); i++) {
        if (const std::optional<char> byte = outbox::percent_byte(segment.substr(i))) {
            text += *byte;
            i += 2;
        } else {
            text += segment[i];
        }
    }
    return clean(text);
}

// `attributes` has no prefix, and none of the attributes of the data. Attributes without a field in
// Event, such as `source` and `sequence`, become headers.
static void take_cloud_event(Event& event, Texts attributes) {
    const std::string id = take_text(attributes, "id");
    const auto found = attributes.find("source");
    const std::string source = found == attributes.end() ? "" : found->second;
    const std::optional<std::string> uuid = parse_uuid(id);
    // By the specification, the two are unique together.
    event.id = uuid ? *uuid : uuid_of_name(source + '#' + id);
    event.aggregate_type = last_path_segment(source);
    event.type = take_text(attributes, "type");
    event.aggregate_id = take_text(attributes, "subject");
    if (std::string topic = take_text(attributes, "topic"); !topic.empty())
        event.topic = std::move(topic);
    if (std::string key = take_text(attributes, "partitionkey"); event.ordering_key.empty())
        event.ordering_key = std::move(key);
    take_parsed(attributes, "time", event.occurred_at, parse_time);
    take_parsed(attributes, "sourceeventid", event.source_event_id, parse_uuid);
    take_numbers(event, attributes, "aggregateversion", "schemaversion");
    attributes.erase("specversion");
    event.headers.merge(attributes);
}

// Returns nullptr if there is no such member. Of several, the last one counts.
static const Member* find(const std::vector<Member>& members, std::string_view name) {
    const auto found = std::find_if(members.rbegin(), members.rend(),
                                    [&](const Member& member) { return member.name == name; });
    return found == members.rend() ? nullptr : &*found;
}

static std::optional<std::string> payload_of(const std::vector<Member>& event,
                                             std::string_view content_type) {
    if (const Member* encoded = find(event, "data_base64"); encoded && encoded->is_text())
        return outbox::base64_decoded(text_of(*encoded));
    const Member* data = find(event, "data");
    if (data == nullptr)
        return std::nullopt;
    return is_json(content_type) ? std::string(data->value) : text_of(*data);
}

// Returns false, without a change to the event, if the body is not a CloudEvent.
static bool take_document(Event& event, const std::string& body) {
    const std::optional<std::vector<Member>> document = members_in(body);
    if (!document || !find(*document, "id") || !find(*document, "specversion"))
        return false;
    Texts attributes;
    for (const Member& member : *document)
        if (member.name != "data" && member.name != "data_base64" && !member.is_null())
            attributes[clean(member.name)] = clean(text_of(member));
    if (std::string type = take_text(attributes, "datacontenttype"); !type.empty())
        event.content_type = std::move(type);
    event.payload = payload_of(*document, event.content_type);
    take_cloud_event(event, std::move(attributes));
    return true;
}

static Texts take_prefixed(Texts& texts, std::string_view prefix) {
    Texts taken;
    for (auto at = texts.begin(); at != texts.end();) {
        if (at->first.starts_with(prefix)) {
            taken[at->first.substr(prefix.size())] = std::move(at->second);
            at = texts.erase(at);
        } else {
            ++at;
        }
    }
    return taken;
}

static void take_binary(Event& event, Texts& texts) {
    Texts attributes = take_prefixed(texts, "ce-");
    std::string type = take_text(texts, "content-type");
    std::string in_attributes = take_text(attributes, "datacontenttype");
    event.headers = std::move(texts);
    if (type.empty())
        type = std::move(in_attributes);
    event.content_type = type.empty() ? event.content_type : std::move(type);
    take_cloud_event(event, std::move(attributes));
}

static void take_plain(Event& event, Texts& texts) {
    take_parsed(texts, "event_id", event.id, parse_uuid);
    event.type = take_text(texts, "event_type");
    event.aggregate_type = take_text(texts, "aggregate_type");
    event.aggregate_id = take_text(texts, "aggregate_id");
    take_parsed(texts, "occurred_at", event.occurred_at, parse_time);
    take_numbers(event, texts, "version", "schema_version");
    const char* name = texts.contains("content_type") ? "content_type" : "content-type";
    if (std::string type = take_text(texts, name); !type.empty())
        event.content_type = std::move(type);
    event.headers = std::move(texts);
}

Event decode_message(const Texts& attributes, std::string body, const Fallback& fallback) {
    Texts texts;
    for (const auto& [name, value] : attributes)
        texts[clean(name)] = clean(value);

    Event event;
    event.topic = clean(fallback.topic);
    event.ordering_key = clean(fallback.ordering_key);
    event.occurred_at = fallback.published_at;

    const auto type = texts.find("content-type");
    if (type != texts.end() && is_structured(type->second) && take_document(event, body)) {
        texts.erase(type);
        event.headers.merge(texts);
        return event;
    }
    // An empty payload must have a type; otherwise there is no payload.
    if (!body.empty() || type != texts.end() || texts.contains("content_type"))
        event.payload = std::move(body);
    if (texts.contains("ce-id") && texts.contains("ce-specversion"))
        take_binary(event, texts);
    else
        take_plain(event, texts);
    if (event.id.empty())
        event.id = uuid_of_name(fallback.source + '/' + fallback.message_id);
    return event;
}

}  // namespace inbox
