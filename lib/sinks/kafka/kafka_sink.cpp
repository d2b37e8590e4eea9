// The kafka sink: each event of a batch is a record, and the batch is settled when the broker has
// acknowledged, or refused, every one of them.
//
// What was produced cannot be taken back one by one. When a record failed, or a batch takes too long,
// the producer is given up with all that it has in flight: what was acknowledged counts, and the rest
// goes again by the next producer. The pipeline has one batch of a key in flight, and of a partition
// nothing arrives behind a record that failed, so the order of a key holds.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>

#include "core/sink.hpp"
#include "core/text.hpp"
#include "sinks/kafka/producer.hpp"
#include "sinks/kafka/topic_name.hpp"
#include "sinks/kafka/verdict.hpp"
#include "sinks/module_entry.hpp"

namespace outbox {

namespace {

constexpr std::size_t usual_batches = 32;
constexpr std::size_t usual_batch_bytes = 1024 * 1024;
// A producer that stops says so before it says which record was to blame.
constexpr Micros wait_for_blame = milliseconds(200);
// How long each record has a request of its own after a broker has refused some together.
constexpr Micros time_one_by_one = seconds(10);

// A batch in flight.
struct Sending {
    Batch* batch = nullptr;
    std::string topic;
    Micros sent_at = 0;
    std::size_t left = 0;  // records that nothing has been heard of
    std::vector<Delivery> deliveries{};
    std::string complaint{};  // about the event that could not even be made a record
};

class KafkaSink final : public Sink {
  public:
    explicit KafkaSink(const SinkContext& context)
        : options_(kafka_options(context.destination)),
          clock_(context.clock),
          encoder_(options_.format, options_.source),
          wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

    ~KafkaSink() override {
        producer_.reset();
        if (wake_ >= 0)
            close(wake_);
    }

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = usual_batch_bytes,
                .max_batches = usual_batches,
                .more_batches = usual_batches,
                .lanes = !options_.topic.is_constant()};
    }

    int descriptor() const noexcept override { return wake_; }

    Micros deadline() const noexcept override {
        if (!outcomes_.empty())
            return 0;
        if (broken_at_ != never)
            return broken_at_ + wait_for_blame;
        return sendings_.empty() ? never : due(*sendings_.front());
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return RecordEncoder::size_of(event);
    }

    void lane_of(const Event& event, std::string& lane) const override {
        options_.topic.append_to(lane, event, options_.source);
    }

    void submit(Batch& batch) override {
        std::string topic;
        options_.topic.append_to(topic, *batch.events.front(), options_.source);
        if (std::optional<std::string> why = invalid_topic_name(topic)) {
            // A name that no event has a part in is everybody's.
            const bool own = !options_.topic.is_constant();
            outcomes_.push_back(
                {&batch, own ? Fate::refused : Fate::unavailable, std::move(*why), 0, own});
            return;
        }
        waiting_.push_back({&batch, std::move(topic)});
        send_waiting();
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t size = read(wake_, &count, sizeof count);
        if (producer_ != nullptr)
            take_reports(now);
        if (producer_ != nullptr && !sendings_.empty() && now >= due(*sendings_.front()))
            give_up_late(now);
        send_waiting();
        for (Outcome& outcome : outcomes_)
            outcomes.push_back(std::move(outcome));
        outcomes_.clear();
    }

  private:
    struct Waiting {
        Batch* batch;
        std::string topic;
    };

    // -- sending ----------------------------------------------------------------------------------

    void send_waiting() {
        while (!waiting_.empty() && broken_at_ == never) {
            Waiting& next = waiting_.front();
            if (producer_ != nullptr &&
                (!producer_->has_room_for(next.topic) || is_over_cautious())) {
                if (!sendings_.empty())
                    return;
                producer_.reset();
            }
            if (producer_ == nullptr) {
                options_.one_by_one = clock_.now() < one_by_one_until_;
                producer_ = std::make_unique<Producer>(options_, wake_);
            }
            if (const std::string& failure = producer_->failure(); !failure.empty()) {
                outcomes_.push_back({next.batch, Fate::unavailable, failure});
                producer_.reset();
            } else {
                send(*next.batch, std::move(next.topic));
            }
            waiting_.pop_front();
        }
    }

    bool is_over_cautious() const noexcept {
        return options_.one_by_one && sendings_.empty() && clock_.now() >= one_by_one_until_;
    }

    void send(Batch& batch, std::string topic) {
        Sending& sending = *sendings_.emplace_back(std::make_unique<Sending>());
        sending.batch = &batch;
        sending.topic = std::move(topic);
        sending.sent_at = clock_.now();
        sending.left = batch.events.size();
        sending.deliveries.resize(batch.events.size());
        std::map<std::string_view, rd_kafka_resp_err_t> held;  // keys of which one was not sent
        for (std::size_t i = 0; i < batch.events.size(); i++) {
            const Event& event = *batch.events[i];
            Delivery& delivery = sending.deliveries[i];
            delivery.owner = &sending;
            const auto behind = held.find(event.ordering_key);
            delivery.error =
                behind != held.end() ? behind->second : produce(sending, event, delivery);
            if (delivery.error == RD_KAFKA_RESP_ERR_NO_ERROR)
                continue;
            delivery.reported = true;
            sending.left--;
            // What is wrong with an event is not wrong with those behind it.
            const bool own = delivery.error == RD_KAFKA_RESP_ERR__INVALID_ARG ||
                             verdict_on(delivery.error).fate == Fate::refused;
            if (!event.ordering_key.empty() && behind == held.end())
                held[event.ordering_key] = own ? RD_KAFKA_RESP_ERR__PURGE_QUEUE : delivery.error;
        }
        if (sending.left == 0)
            finish(sending);
    }

    rd_kafka_resp_err_t produce(Sending& sending, const Event& event, Delivery& delivery) {
        std::int32_t partition = RD_KAFKA_PARTITION_UA;
        if (!options_.partition_header.empty()) {
            const std::optional<std::int32_t> named = named_partition(event);
            if (!named) {
                sending.complaint = "header \"" + options_.partition_header +
                                    "\" of the event is not the number of a partition";
                return RD_KAFKA_RESP_ERR__INVALID_ARG;
            }
            partition = *named;
        }
        return producer_->produce(sending.topic, event, partition, encoder_, delivery);
    }

    std::optional<std::int32_t> named_partition(const Event& event) const {
        for (const Header& header : event.headers)
            if (header.name == options_.partition_header && header.kind != Header::Kind::null) {
                const std::optional<std::int64_t> number = parse_integer(header.value);
                if (number && *number >= 0 && *number <= INT32_MAX)
                    return static_cast<std::int32_t>(*number);
            }
        return std::nullopt;
    }

    // -- outcomes ---------------------------------------------------------------------------------

    void take_reports(Micros now) {
        reported_.clear();
        const bool was_disconnected = producer_->is_disconnected();
        producer_->poll(reported_);
        throttled_until_ = std::max(throttled_until_, now + producer_->take_throttle());
        bool blamed = false, together = false;
        for (Delivery* delivery : reported_) {
            auto& sending = *static_cast<Sending*>(delivery->owner);
            blamed |=
                delivery->error != RD_KAFKA_RESP_ERR_NO_ERROR && !is_given_up(delivery->error);
            together |= is_refused_together(*delivery);
            if (--sending.left == 0)
                finish(sending);
        }
        if (producer_->is_disconnected() && !was_disconnected)
            disconnected_at_ = now;
        if (producer_->is_broken() && broken_at_ == never)
            broken_at_ = now;
        if (together) {
            one_by_one_until_ = now + time_one_by_one;
            give_up(Fate::undone);
        } else if (broken_at_ != never && (blamed || now >= broken_at_ + wait_for_blame)) {
            give_up(blamed || producer_->has_confirmed() ? Fate::undone : Fate::unavailable);
        } else if (producer_->is_disconnected() && !producer_->has_confirmed()) {
            give_up(Fate::unavailable);  // it never was connected
        }
    }

    // A broker refuses records that travelled together, and does not say which of them was no good.
    bool is_refused_together(const Delivery& delivery) const noexcept {
        return !options_.one_by_one && delivery.partition >= 0 &&
               verdict_on(delivery.error).fate == Fate::refused;
    }

    // When the batch has taken too long.
    Micros due(const Sending& sending) const noexcept {
        const Micros answer = sending.sent_at + options_.limits.request;
        if (producer_ == nullptr || !producer_->is_disconnected())
            return answer;
        // The library connects again, and then nothing is sent twice.
        return std::min(answer,
                        std::max(disconnected_at_, sending.sent_at) + options_.limits.connect);
    }

    void give_up_late(Micros now) {
        if (producer_->is_disconnected() || !producer_->trouble().empty()) {
            give_up(Fate::unavailable);
            return;
        }
        for (const auto& sending : sendings_)
            if (now >= due(*sending))
                late_.insert(sending.get());
        give_up(Fate::undone);
    }

    // With the producer. `fate`: of what has not been reported.
    void give_up(Fate fate) {
        const std::string why = producer_->trouble();
        while (!sendings_.empty()) {
            Sending& sending = *sendings_.front();
            const bool late = late_.contains(&sending);
            report(sending, late ? Fate::failed : fate, late ? "no answer in time" : why);
            sendings_.pop_front();
            if (fate == Fate::unavailable)
                fate = Fate::undone;  // it has been said once
        }
        late_.clear();
        producer_.reset();
        broken_at_ = never;
    }

    void finish(Sending& sending) {
        report(sending, Fate::failed, "");
        std::erase_if(sendings_, [&](const auto& one) { return one.get() == &sending; });
    }

    // `unreported`: the fate of records that nothing was heard of, and why.
    void report(const Sending& sending, Fate unreported, const std::string& why) {
        Outcome outcome{.batch = sending.batch};
        outcome.of_events.reserve(sending.deliveries.size());
        std::size_t confirmed = 0;
        for (const Delivery& delivery : sending.deliveries) {
            outcome.of_events.push_back(outcome_of(delivery, sending, unreported, why));
            const EventOutcome& own = outcome.of_events.back();
            confirmed += own.fate == Fate::confirmed;
        }
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
        if (options_.receipts && confirmed > 0)
            for (const Delivery& delivery : sending.deliveries)
                outcome.message_ids.push_back(std::to_string(delivery.partition) + '/' +
                                              std::to_string(delivery.offset));
        if (confirmed > 0)
            outcome.retry_after = std::max<Micros>(0, throttled_until_ - clock_.now());
        outcomes_.push_back(std::move(outcome));
    }

    // What the topic, or the destination, did to one event of a batch holds for those that were given
    // up because of it.
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

    EventOutcome outcome_of(const Delivery& delivery, const Sending& sending, Fate unreported,
                            const std::string& why) const {
        if (!delivery.reported)
            return {unreported, why};
        if (delivery.error == RD_KAFKA_RESP_ERR__INVALID_ARG && !sending.complaint.empty())
            return {Fate::refused, sending.complaint, true};
        const std::string error = delivery.error != RD_KAFKA_RESP_ERR_NO_ERROR
                                      ? explain(delivery.error, sending.topic)
                                      : std::string();
        const Verdict verdict = verdict_on(delivery.error);
        if (is_refused_together(delivery))
            return {Fate::undone, error};
        return {verdict.fate, error, verdict.permanent, verdict.scope};
    }

    KafkaOptions options_;
    const Clock& clock_;
    RecordEncoder encoder_;
    const int wake_;

    std::deque<Waiting> waiting_;                    // for a producer
    std::deque<std::unique_ptr<Sending>> sendings_;  // in the order they were sent
    std::set<const Sending*> late_;
    std::unique_ptr<Producer> producer_;  // must go before what it was given
    Micros broken_at_ = never;
    Micros disconnected_at_ = 0;
    Micros throttled_until_ = 0;
    Micros one_by_one_until_ = 0;
    std::vector<Outcome> outcomes_;
    std::vector<Delivery*> reported_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        outbox::prepare_process_for_kafka();
        return new outbox::KafkaSink(context);
    });
}
