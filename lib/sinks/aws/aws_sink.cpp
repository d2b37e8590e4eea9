#include "sinks/aws/aws_sink.hpp"

#include <algorithm>

#include "sinks/module_entry.hpp"

namespace outbox {

AwsSink::AwsSink(const AwsSinkOptions& options, const Clock& clock)
    : RequestSink(clock, options.transport),
      names_(options.kind, options.target, options.source),
      service_(options.kind, options.aws),
      batch_size_(std::min(options.batch_size, service_.traits().max_entries)),
      receipts_(options.receipts) {
    auto credentials =
        std::make_unique<AwsCredentials>(options.aws, options.transport.request_timeout, clock);
    credentials_ = credentials.get();
    use(service_.url(), std::move(credentials));
}

Capabilities AwsSink::usual_capabilities() const noexcept {
    return {.max_batch_events = batch_size_,
            .max_batch_bytes = service_.traits().max_bytes,
            .max_batches = connections(),
            .more_batches = more_connections(),
            .lanes = !names_.is_constant()};
}

// -------------------------------------------------------------------------------------------------
// Requests
// -------------------------------------------------------------------------------------------------

std::string AwsSink::name_of(const Exchange& exchange) const {
    std::string name;
    names_.append(name, *exchange.batch->events.front());
    return name;
}

std::string AwsSink::subject(const Exchange& exchange) const {
    return service_.subject(name_of(exchange));
}

std::optional<Outcome> AwsSink::check_name(const Exchange& exchange,
                                           const std::string& name) const {
    if (name.size() <= service_.traits().max_name)
        return std::nullopt;
    Outcome outcome =
        refused(exchange, subject(exchange) + ": the name has " + std::to_string(name.size()) +
                              " characters, at most " + std::to_string(service_.traits().max_name) +
                              " are allowed");
    if (names_.is_constant()) {  // the name is the same for all events, so no event is at fault
        outcome.fate = Fate::unavailable;
        outcome.permanent = false;
    }
    return outcome;
}

void AwsSink::sign(Exchange& exchange, std::string_view action) {
    service_.sign(exchange, credentials_->keys(), clock().unix_now(), action);
}

// -------------------------------------------------------------------------------------------------
// Outcomes
// -------------------------------------------------------------------------------------------------

Outcome AwsSink::refused(const Exchange& exchange, std::string why) {
    return {exchange.batch, Fate::refused, std::move(why), 0, true};
}

Outcome AwsSink::scoped(Outcome outcome, Scope scope) {
    outcome.scope = scope;
    return outcome;
}

Outcome AwsSink::judge_failure(const Exchange& exchange) {
    if (exchange.status == 0)
        return scoped({exchange.batch, exchange.reached ? Fate::failed : Fate::unavailable,
                       explain(exchange)},
                      exchange.scope);
    const AwsFailure failure = service_.failure_in(exchange.body);
    const AwsVerdict verdict = verdict_of_request(exchange.status, failure);
    std::string error = subject(exchange) + ": " + AwsService::describe(exchange, failure);
    if (verdict.bad_credentials)
        credentials_rejected();
    return scoped({exchange.batch, verdict.fate, std::move(error),
                   retry_after_of(exchange.retry_after, clock().unix_now()), verdict.permanent},
                  verdict.scope);
}

Outcome AwsSink::judge_look_up_failure(const Exchange& exchange) {
    Outcome outcome = judge_failure(exchange);
    if (outcome.fate == Fate::throttled)
        return outcome;
    if (outcome.fate != Fate::unavailable)
        outcome.scope = Scope::lane;
    outcome.fate = Fate::unavailable;
    outcome.permanent = false;
    return outcome;
}

Outcome AwsSink::judge_entries(const Exchange& exchange, std::optional<BatchAnswer> answer) {
    if (!answer)
        return {exchange.batch, Fate::failed,
                subject(exchange) + ": HTTP 200, but the answer is malformed"};
    Outcome outcome{.batch = exchange.batch};
    for (EntryAnswer& entry : *answer) {
        if (receipts_)
            outcome.message_ids.push_back(std::move(entry.message_id));
        outcome.of_events.push_back(judge_entry(exchange, entry));
        if (outcome.of_events.back().fate != Fate::confirmed && outcome.error.empty()) {
            outcome.fate = outcome.of_events.back().fate;
            outcome.error = outcome.of_events.back().error;
        }
    }
    if (outcome.fate == Fate::confirmed)
        outcome.of_events.clear();
    return outcome;
}

EventOutcome AwsSink::judge_entry(const Exchange& exchange, const EntryAnswer& entry) {
    switch (entry.state) {
        case EntryAnswer::State::taken:
            return {};
        case EntryAnswer::State::missing:
            return {Fate::failed, subject(exchange) + ": the answer does not mention the event"};
        case EntryAnswer::State::failed:
            break;
    }
    const AwsVerdict verdict = verdict_of_entry(entry.failure);
    if (verdict.bad_credentials)
        credentials_rejected();
    std::string error = subject(exchange) + ": " + explain(entry.failure);
    conceal_secrets(exchange, error);
    return {verdict.fate, std::move(error), verdict.permanent, verdict.scope};
}

static std::unique_ptr<Sink> make_sink(const AwsSinkOptions& options, const Clock& clock) {
    switch (options.kind) {
        case AwsKind::sqs:
            break;
        case AwsKind::sns:
            return make_sns_sink(options, clock);
        case AwsKind::kinesis:
            return make_kinesis_sink(options, clock);
        case AwsKind::eventbridge:
            return make_eventbridge_sink(options, clock);
    }
    return make_sqs_sink(options, clock);
}

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return outbox::make_sink(outbox::aws_sink_options(context.destination), context.clock)
            .release();
    });
}
