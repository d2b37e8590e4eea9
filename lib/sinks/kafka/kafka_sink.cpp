// The kafka sink: each event of a batch is a record, and the batch is settled when the broker has
// acknowledged, or refused, every one of them.
//
// Produced records cannot be taken back one by one. When a record fails, or a batch takes too long,
// the sink gives up the producer with everything that it has in flight. Acknowledged records count,
// and the next producer sends the others again. Only one batch of a key is in flight, and after a
// record fails no later one of its partition arrives. So the order of each key holds.
//
// Topics on trial (trials.hpp) use a second producer. One thread drives the sink; client.hpp says
// which callbacks run elsewhere.
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <set>

#include "core/late.hpp"
#include "core/sink.hpp"
#include "core/text.hpp"
#include "net/transport.hpp"
#include "sinks/kafka/notes.hpp"
#include "sinks/kafka/schemas.hpp"
#include "sinks/kafka/sending.hpp"
#include "sinks/kafka/token.hpp"
#include "sinks/kafka/topic_name.hpp"
#include "sinks/kafka/transactional_sink.hpp"
#include "sinks/kafka/trials.hpp"
#include "sinks/kafka/verdict.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/wait_set.hpp"

namespace outbox {

namespace {

constexpr std::size_t usual_batches = 32;
constexpr std::size_t usual_batch_bytes = 1024 * 1024;
// A producer that stops says so before it reports the record that was to blame.
constexpr Micros wait_for_blame = milliseconds(200);

// A producer with the batches that it has in flight.
struct Line {
    explicit Line(KafkaOptions of) : options(std::move(of)) {}

    const KafkaOptions options;
    std::deque<std::unique_ptr<Sending>> sendings{};  // in the order they were sent
    std::unique_ptr<Producer> producer{};             // destroyed before the sendings
    Micros broken_at = never;
    Micros disconnected_at = 0;
};

Line& line_of(const Sending& sending) noexcept {
    return *static_cast<Line*>(sending.line);
}

KafkaOptions one_by_one(KafkaOptions options) {
    options.one_by_one = true;
    return options;
}

class KafkaSink final : public Sink {
  public:
    explicit KafkaSink(const SinkContext& context)
        : options_(kafka_options(context.destination)),
          clock_(context.clock),
          sender_(options_),
          login_(options_, clock_),
          schemas_(options_, clock_),
          wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          usual_(options_),
          trial_(one_by_one(options_)) {
        ready_.add(wake_);
        ready_.add(login_.descriptor());
        ready_.add(schemas_.descriptor());
    }

    ~KafkaSink() override {
        usual_.producer.reset();
        trial_.producer.reset();
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

    int descriptor() const noexcept override { return ready_.descriptor(); }

    Micros deadline() const noexcept override {
        return outcomes_.empty() ? std::min({deadline(usual_), deadline(trial_), login_.deadline(),
                                             schemas_.deadline()})
                                 : 0;
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
            // A constant topic name that is invalid is the destination's fault, not the event's.
            const bool own = !options_.topic.is_constant();
            outcomes_.push_back(
                {&batch, own ? Fate::refused : Fate::unavailable, std::move(*why), 0, own});
            return;
        }
        waiting_.push_back({&batch, topic, schemas_.of(batch, topic)});
        send_waiting();
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t size = read(wake_, &count, sizeof count);
        login_.step(now);
        schemas_.step(now);
        for (Line* line : {&usual_, &trial_})
            step(*line, now);
        send_waiting();
        for (Outcome& outcome : outcomes_)
            outcomes.push_back(std::move(outcome));
        outcomes_.clear();
    }

    bool report(SinkReport& report) override {
        std::size_t queued = 0;
        for (const Line* line : {&usual_, &trial_})
            queued += line->producer != nullptr ? line->producer->queued() : 0;
        report_notes(queued, report);
        return true;
    }

  private:
    struct Waiting {
        Batch* batch;
        std::string topic;
        std::vector<SchemaOfEvent> schemas;
    };

    // -- sending ----------------------------------------------------------------------------------

    void send_waiting() {
        std::erase_if(waiting_, [&](Waiting& next) { return start(next); });
    }

    // Returns false if the batch has to wait: for schemas, for a token, or until a producer can be
    // replaced.
    bool start(Waiting& next) {
        if (are_pending(next.schemas))
            return false;
        if (const Schema* failed = failed_one(next.schemas)) {
            // Other topics may have all the schemas that they need.
            outcomes_.push_back({.batch = next.batch,
                                 .fate = Fate::unavailable,
                                 .error = failed->error,
                                 .scope = Scope::lane});
            return true;
        }
        Line& line = trials_.has(next.topic) ? trial_ : usual_;
        if (line.broken_at != never)
            return false;
        if (line.producer != nullptr && !line.producer->has_room_for(next.topic)) {
            if (!line.sendings.empty())
                return false;
            line.producer.reset();
        }
        if (line.producer == nullptr) {
            const Credentials::State login = login_.need(clock_.now());
            if (login == Credentials::State::pending)
                return false;
            if (login == Credentials::State::failed) {
                outcomes_.push_back({next.batch, Fate::unavailable, login_.error()});
                return true;
            }
            line.producer = std::make_unique<Producer>(line.options, wake_);
            login_.give(line.producer->client());
        }
        if (const std::string& failure = line.producer->failure(); !failure.empty()) {
            outcomes_.push_back({next.batch, Fate::unavailable, failure});
            line.producer.reset();
        } else {
            send(line, next);
        }
        return true;
    }

    void send(Line& line, Waiting& next) {
        Sending& sending = *line.sendings.emplace_back(std::make_unique<Sending>());
        sending.line = &line;
        sending.batch = next.batch;
        sending.topic = std::move(next.topic);
        sending.schemas = std::move(next.schemas);
        sending.sent_at = clock_.now();
        sender_.send(*line.producer, sending);
        if (sending.left == 0)
            finish(sending, clock_.now());
    }

    // -- outcomes ---------------------------------------------------------------------------------

    void step(Line& line, Micros now) {
        if (line.producer != nullptr)
            take_reports(line, now);
        if (line.producer != nullptr)
            login_.renew(line.producer->client(), now);
        if (line.producer != nullptr && !line.sendings.empty() &&
            now >= due(line, *line.sendings.front()))
            give_up_late(line, now);
        if (&line == &trial_ && trials_.empty() && line.sendings.empty())
            line.producer.reset();
    }

    void take_reports(Line& line, Micros now) {
        Producer& producer = *line.producer;
        reported_.clear();
        const bool was_disconnected = producer.is_disconnected();
        producer.poll(reported_);
        throttled_until_ = std::max(throttled_until_, now + producer.take_throttle());
        bool blamed = false, together = false;
        for (const Delivery* delivery : reported_) {
            auto& sending = *static_cast<Sending*>(delivery->owner);
            blamed |=
                delivery->error != RD_KAFKA_RESP_ERR_NO_ERROR && !is_given_up(delivery->error);
            together |= is_refused_together(*delivery, line.options.one_by_one);
            trials_.note(*delivery, sending.topic, now);
            // A record that a stopping producer drops gets its outcome later, with the reason.
            if (!is_dropped(delivery->error) && --sending.left == 0)
                finish(sending, now);
        }
        if (producer.is_disconnected() && !was_disconnected)
            line.disconnected_at = now;
        if (producer.is_broken() && line.broken_at == never)
            line.broken_at = now;
        if (producer.is_overgrown())
            give_up(line, Fate::unavailable);
        else if (together)
            give_up(line, Fate::undone);
        else if (line.broken_at != never && (blamed || now >= line.broken_at + wait_for_blame))
            give_up(line, blamed || producer.has_confirmed() ? Fate::undone : Fate::unavailable);
        else if (producer.is_disconnected() && !producer.has_confirmed())
            give_up(line, Fate::unavailable);  // it has never been connected
    }

    Micros deadline(const Line& line) const noexcept {
        if (line.broken_at != never)
            return line.broken_at + wait_for_blame;
        return line.sendings.empty() ? never : due(line, *line.sendings.front());
    }

    // Returns when the batch will have taken too long.
    Micros due(const Line& line, const Sending& sending) const noexcept {
        const Micros answer = sending.sent_at + options_.limits.request;
        if (line.producer == nullptr || !line.producer->is_disconnected())
            return answer;
        // Until then librdkafka may connect again, and sends nothing twice.
        return std::min(answer,
                        std::max(line.disconnected_at, sending.sent_at) + options_.limits.connect);
    }

    void give_up_late(Line& line, Micros now) {
        if (line.producer->is_disconnected() || !line.producer->trouble().empty()) {
            give_up(line, Fate::unavailable);
            return;
        }
        std::set<const Sending*> late;
        for (const auto& sending : line.sendings)
            if (now >= due(line, *sending))
                late.insert(sending.get());
        give_up(line, Fate::undone, late);
    }

    // Gives up the producer and everything that it has in flight. `fate` is that of records without
    // a report.
    void give_up(Line& line, Fate fate, const std::set<const Sending*>& late = {}) {
        const std::string why = line.producer->trouble();
        if (line.producer->is_refused())
            login_.rejected();
        for (const auto& sending : line.sendings) {
            const bool is_late = late.contains(sending.get());
            report(*sending, is_late ? Fate::failed : fate,
                   is_late ? no_answer_within(options_.limits.request) : why);
            if (fate == Fate::unavailable)
                fate = Fate::undone;  // one batch that reports it is enough
        }
        line.producer.reset();
        line.sendings.clear();
        line.broken_at = never;
    }

    void finish(const Sending& sending, Micros now) {
        report(sending, Fate::failed, "");
        trials_.finished(sending, now);
        std::erase_if(line_of(sending).sendings,
                      [&](const auto& one) { return one.get() == &sending; });
    }

    void report(const Sending& sending, Fate unreported, const std::string& why) {
        Outcome outcome =
            sender_.outcome_of(sending, unreported, why, line_of(sending).options.one_by_one);
        if (any_confirmed(outcome))
            outcome.retry_after = std::max<Micros>(0, throttled_until_ - clock_.now());
        outcomes_.push_back(std::move(outcome));
    }

    const KafkaOptions options_;
    const Clock& clock_;
    BatchSender sender_;
    TokenLogin login_;
    Schemas schemas_;
    const int wake_;
    WaitSet ready_;

    std::deque<Waiting> waiting_;  // for a producer
    Line usual_;
    Line trial_;
    Trials trials_;
    Micros throttled_until_ = 0;
    std::vector<Outcome> outcomes_;
    std::vector<Delivery*> reported_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        outbox::prepare_process_for_kafka();
        if (!outbox::initialize_curl())
            return nullptr;
        return outbox::kafka_options(context.destination).exactly_once
                   ? outbox::new_transactional_sink(context)
                   : new outbox::KafkaSink(context);
    });
}
