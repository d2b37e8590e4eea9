#include "sinks/kafka/sending.hpp"

#include <algorithm>
#include <map>

#include "core/text.hpp"
#include "sinks/kafka/verdict.hpp"

namespace outbox {

// An earlier event of its key was not sent. The library does not report this error.
static constexpr rd_kafka_resp_err_t held_back = RD_KAFKA_RESP_ERR__DESTROY;

// Its schema is not known. The library reports this error only for values that it encodes itself.
static constexpr rd_kafka_resp_err_t without_schema = RD_KAFKA_RESP_ERR__VALUE_SERIALIZATION;

BatchSender::BatchSender(const KafkaOptions& options)
    : partition_header_(options.partition_header),
      tombstone_after_(options.tombstone_after),
      receipts_(options.receipts),
      encoder_(options.form, options.source) {}

// -------------------------------------------------------------------------------------------------
// Events become records
// -------------------------------------------------------------------------------------------------

void BatchSender::send(Producer& producer, Sending& sending) {
    const std::vector<Event*>& events = sending.batch->events;
    sending.left = events.size();
    sending.deliveries.resize(events.size());
    producer.begin_batch(sending.topic);
    std::map<std::string_view, rd_kafka_resp_err_t> held;  // by key: why an event was not sent
    for (std::size_t i = 0; i < events.size(); i++) {
        const Event& event = *events[i];
        Delivery& delivery = sending.deliveries[i];
        delivery.owner = &sending;
        const auto behind = held.find(event.ordering_key);
        delivery.error = behind != held.end() ? behind->second : produce(producer, sending, i);
        rd_kafka_resp_err_t error = delivery.error;
        if (error == RD_KAFKA_RESP_ERR_NO_ERROR && wants_tombstone(event))
            error = produce_tombstone(producer, sending, i);
        if (error == RD_KAFKA_RESP_ERR_NO_ERROR)
            continue;
        // A producer that has already failed refuses all: its reason comes with its next event.
        if (delivery.error != RD_KAFKA_RESP_ERR_NO_ERROR && !is_dropped(delivery.error)) {
            delivery.reported = true;
            sending.left--;
        }
        // An event that is wrong does not make those behind it wrong.
        const bool own =
            error == RD_KAFKA_RESP_ERR__INVALID_ARG || verdict_on(error).fate == Fate::refused;
        if (!event.ordering_key.empty() && behind == held.end())
            held[event.ordering_key] = own ? held_back : error;
    }
}

rd_kafka_resp_err_t BatchSender::produce(Producer& producer, Sending& sending, std::size_t i) {
    const Event& event = *sending.batch->events[i];
    std::int32_t partition = RD_KAFKA_PARTITION_UA;
    if (!partition_header_.empty()) {
        const std::optional<std::int32_t> named = named_partition(event);
        if (!named) {
            sending.complaint = "header \"" + partition_header_ +
                                "\" of the event is not the number of a partition";
            return RD_KAFKA_RESP_ERR__INVALID_ARG;
        }
        partition = *named;
    }
    std::string frame;
    if (!sending.schemas.empty() && sending.schemas[i].schema != nullptr) {
        if (sending.schemas[i].schema->state != Schema::State::known)
            return without_schema;
        frame = frame_of(sending.schemas[i]);
    }
    return producer.produce(sending.topic, event, partition, encoder_, sending.deliveries[i],
                            {.frame = frame});
}

// Without a key a tombstone deletes nothing. An event without payload is a tombstone itself.
bool BatchSender::wants_tombstone(const Event& event) const {
    return tombstone_after_ && event.has_payload && !event.ordering_key.empty() &&
           tombstone_after_->matches(event.event_type);
}

// The tombstone has the headers of its event, so that consumers that remove duplicates ignore it.
// It is only for the compaction of the topic.
rd_kafka_resp_err_t BatchSender::produce_tombstone(Producer& producer, Sending& sending,
                                                   std::size_t i) {
    Event event = *sending.batch->events[i];
    event.has_payload = false;
    event.payload = {};
    Delivery& tombstone = sending.tombstones.emplace_back();
    tombstone.owner = &sending;
    sending.deliveries[i].tombstone = &tombstone;
    tombstone.error = producer.produce(
        sending.topic, event,
        partition_header_.empty() ? RD_KAFKA_PARTITION_UA : named_partition(event).value(),
        encoder_, tombstone, {.is_null = true});
    tombstone.reported = tombstone.error != RD_KAFKA_RESP_ERR_NO_ERROR;
    sending.left += !tombstone.reported;
    return tombstone.error;
}

std::optional<std::int32_t> BatchSender::named_partition(const Event& event) const {
    for (const Header& header : event.headers)
        if (header.name == partition_header_ && header.kind != Header::Kind::null) {
            const std::optional<std::int64_t> number = parse_integer(header.value);
            if (number && *number >= 0 && *number <= INT32_MAX)
                return static_cast<std::int32_t>(*number);
        }
    return std::nullopt;
}

// -------------------------------------------------------------------------------------------------
// Reports become an outcome
// -------------------------------------------------------------------------------------------------

bool is_refused_together(const Delivery& delivery, bool one_by_one) noexcept {
    return !one_by_one && delivery.partition >= 0 &&
           verdict_on(delivery.error).fate == Fate::refused;
}

bool any_confirmed(const Outcome& outcome) noexcept {
    return outcome.of_events.empty()
               ? outcome.fate == Fate::confirmed
               : std::any_of(outcome.of_events.begin(), outcome.of_events.end(),
                             [](const EventOutcome& own) { return own.fate == Fate::confirmed; });
}

const Delivery& decisive(const Delivery& delivery) noexcept {
    const bool arrived = delivery.reported && delivery.error == RD_KAFKA_RESP_ERR_NO_ERROR;
    return arrived && delivery.tombstone != nullptr ? *delivery.tombstone : delivery;
}

static EventOutcome outcome_of(const Sending& sending, std::size_t i, Fate unreported,
                               const std::string& why, bool one_by_one) {
    const Delivery& delivery = decisive(sending.deliveries[i]);
    if (!delivery.reported || is_dropped(delivery.error))
        return {unreported, why};
    if (delivery.error == RD_KAFKA_RESP_ERR__INVALID_ARG && !sending.complaint.empty())
        return {Fate::refused, sending.complaint, true};
    if (delivery.error == without_schema && !sending.schemas.empty()) {
        // A subject may be registered later, but a header never changes.
        const Schema& schema = *sending.schemas[i].schema;
        return {Fate::refused, schema.error, schema.state == Schema::State::invalid};
    }
    const std::string error = delivery.error != RD_KAFKA_RESP_ERR_NO_ERROR
                                  ? explain(delivery.error, sending.topic)
                                  : std::string();
    const Verdict verdict = verdict_on(delivery.error);
    if (is_refused_together(delivery, one_by_one))
        return {Fate::undone, error};
    return {verdict.fate, error, verdict.permanent, verdict.scope};
}

// If the topic or the destination is the reason for one event of a batch, it is the reason for
// those that were given up because of it, too.
static void blame_the_topic(Outcome& outcome) {
    const auto blamed =
        std::find_if(outcome.of_events.begin(), outcome.of_events.end(),
                     [](const EventOutcome& own) { return own.fate == Fate::unavailable; });
    if (blamed == outcome.of_events.end())
        return;
    const EventOutcome verdict = *blamed;
    for (EventOutcome& own : outcome.of_events)
        if (own.fate == Fate::undone)
            own = verdict;
}

// Each event has its own outcome, unless all have the same.
static void judge_events(Outcome& outcome, const Sending& sending, Fate unreported,
                         const std::string& why, bool one_by_one) {
    outcome.of_events.reserve(sending.deliveries.size());
    for (std::size_t i = 0; i < sending.deliveries.size(); i++)
        outcome.of_events.push_back(outcome_of(sending, i, unreported, why, one_by_one));
    blame_the_topic(outcome);
    const EventOutcome& first = outcome.of_events.front();
    const bool all_alike =
        std::all_of(outcome.of_events.begin(), outcome.of_events.end(),
                    [&](const EventOutcome& own) { return own.fate == first.fate; });
    if (all_alike && first.fate != Fate::refused) {
        outcome.fate = first.fate;
        outcome.error = first.error;
        outcome.scope = first.scope;
        outcome.of_events.clear();
    }
}

static bool all_confirmed(const Sending& sending) {
    return std::all_of(sending.deliveries.begin(), sending.deliveries.end(),
                       [](const Delivery& delivery) {
                           const Delivery& last = decisive(delivery);
                           return last.reported && last.error == RD_KAFKA_RESP_ERR_NO_ERROR;
                       });
}

Outcome BatchSender::outcome_of(const Sending& sending, Fate unreported, const std::string& why,
                                bool one_by_one) const {
    Outcome outcome{.batch = sending.batch};
    if (!all_confirmed(sending))
        judge_events(outcome, sending, unreported, why, one_by_one);
    if (receipts_ && any_confirmed(outcome))
        for (const Delivery& delivery : sending.deliveries)
            outcome.message_ids.push_back(std::to_string(delivery.partition) + '/' +
                                          std::to_string(delivery.offset));
    return outcome;
}

}  // namespace outbox
