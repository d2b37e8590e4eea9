#include "sinks/nats/verdict.hpp"

#include <charconv>

#include "core/text.hpp"
#include "net/json.hpp"

namespace outbox {

namespace {

// Reads the usual acknowledgement, {"stream":"S","seq":7}, without the JSON parser, which would
// take longer than everything else. Any other text is left to the parser.
bool read_usual(std::string_view text, NatsVerdict& verdict) {
    const auto skip = [&](std::string_view what) {
        while (text.starts_with(' '))
            text.remove_prefix(1);
        if (!text.starts_with(what))
            return false;
        text.remove_prefix(what.size());
        return true;
    };
    if (!skip("{") || !skip("\"stream\"") || !skip(":") || !skip("\""))
        return false;
    const std::size_t end = text.find_first_of("\"\\");
    if (end == std::string_view::npos || end == 0 || text[end] != '"')
        return false;
    verdict.stream = text.substr(0, end);
    text.remove_prefix(end + 1);
    if (!skip(",") || !skip("\"seq\"") || !skip(":") || !skip(""))
        return false;
    const auto [rest, error] =
        std::from_chars(text.data(), text.data() + text.size(), verdict.sequence);
    if (error != std::errc{} || verdict.sequence == 0)
        return false;
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
    return skip("}") && text.empty();
}

EventOutcome outcome(Fate fate, std::string error, Scope scope = Scope::lane) {
    return {.fate = fate, .error = std::move(error), .permanent = false, .scope = scope};
}

EventOutcome refused(std::string error, bool permanent) {
    return {.fate = Fate::refused, .error = std::move(error), .permanent = permanent};
}

std::uint64_t number(const Json::Value& value, std::string_view name) {
    const Json::Value* const found = json_member(value, name);
    return found != nullptr && found->isUInt64() ? found->asUInt64() : 0;
}

// Returns true if the last sequence is above the expected one, which it will then never be again.
bool is_past(std::string_view description, std::optional<std::uint64_t> expected) {
    const std::size_t colon = description.rfind(':');
    if (!expected || colon == std::string_view::npos)
        return false;
    const auto last = parse_integer(trim(description.substr(colon + 1)));
    return last && static_cast<std::uint64_t>(*last) > *expected;
}

EventOutcome of_error(const Json::Value& error, const std::string& about,
                      std::optional<std::uint64_t> expected) {
    const std::string description = json_text(error, "description");
    const std::uint64_t status = number(error, "code"), code = number(error, "err_code");
    std::string why = about + printable(description, 300) + " (" +
                      (code != 0 ? std::to_string(code) : "status " + std::to_string(status)) + ")";
    const auto says = [&](std::string_view what) {
        return description.find(what) != std::string::npos;
    };
    switch (code) {
        case 10054:  // larger than the stream allows
        case 10097:  // headers of more than 64 kB
            return refused(std::move(why), true);
        case 10071:  // the last sequence of the subject is not the expected one
            return refused(std::move(why), is_past(description, expected));
        case 10164:  // the same, but the server does not say which one it is
            return refused(std::move(why), false);
        case 10077:  // the stream could not store it
            if (says("message too large") || says("message size exceeds"))
                return refused(std::move(why), true);
            if (says("per subject"))
                return refused(std::move(why), false);
            return outcome(Fate::unavailable, std::move(why));
        case 10035:  // the account
        case 10039:  // JetStream, for the account
        case 10076:  // JetStream, on this server
            return outcome(Fate::unavailable, std::move(why), Scope::destination);
        case 10055:  // a mirror
        case 10060:  // another stream than the expected one
        case 10109:  // sealed
        case 10002:  // limits of the account
        case 10120:  // the account has none for streams of this kind
            return outcome(Fate::unavailable, std::move(why));
        case 10158:  // the first copy of the message is on its way
            return outcome(Fate::failed, std::move(why));
        case 10167:
            return outcome(Fate::throttled, std::move(why));
        default:
            break;
    }
    if (status == 429 || status == 408)
        return outcome(Fate::throttled, std::move(why));
    if (status == 404 || status >= 500)
        return outcome(Fate::unavailable, std::move(why));
    return refused(std::move(why), false);
}

}  // namespace

NatsVerdict verdict_of(const NatsInput& answer, std::string_view subject,
                       std::optional<std::uint64_t> expected) {
    NatsVerdict verdict;
    if (read_usual(answer.payload, verdict) && answer.headers.empty())
        return verdict;
    verdict = {};
    const std::string about = "subject \"" + printable(subject, 300) + "\": ";
    if (const int status = nats_status(answer.headers); status == 503) {
        verdict.outcome = outcome(Fate::unavailable, about + "no stream takes it (no responders)");
        return verdict;
    } else if (status != 0 && answer.payload.empty()) {
        verdict.outcome =
            outcome(Fate::failed, about + "status " + std::to_string(status) + ' ' +
                                      printable(nats_status_text(answer.headers), 300));
        return verdict;
    }
    const std::optional<Json::Value> value = parse_json(answer.payload);
    const Json::Value* const error = value ? json_member(*value, "error") : nullptr;
    if (error != nullptr) {
        verdict.outcome = of_error(*error, about, expected);
        return verdict;
    }
    if (!value || json_text(*value, "stream").empty() || number(*value, "seq") == 0) {
        verdict.outcome = outcome(
            Fate::failed, about +
                              "the answer does not come from a stream; does another program "
                              "answer on this subject?");
        return verdict;
    }
    // A view of the text, because the value goes.
    const std::string name = json_text(*value, "stream");
    if (const std::size_t at = answer.payload.find(name); at != std::string_view::npos)
        verdict.stream = answer.payload.substr(at, name.size());
    verdict.sequence = number(*value, "seq");
    return verdict;
}

}  // namespace outbox
