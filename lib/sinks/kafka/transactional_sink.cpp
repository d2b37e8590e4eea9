// The kafka sink with the option exactly_once (core/transactions.hpp has the protocol with the
// relay).
//
// Waiting batches form a transaction, together with its number, which is the offset of a group that
// only the sink uses. The transaction is committed when the broker has acknowledged every record
// and the relay has noted the transaction. If a record fails, the transaction is rolled back: that
// record has its own fate, and the others are sent again.
//
// A commit without an answer leaves the transaction in doubt. The producer is replaced, and the new
// one makes the broker end the transaction, either way, and asks for the number. Only then are the
// outcomes of the batches reported.
//
// There are three usual lines: one sends, one commits, and one rests, because a broker makes a
// producer wait that begins again at once. Another line is for topics on trial (trials.hpp), whose
// transactions have a single batch. Each line has a thread for calls that wait
// (transaction_thread.hpp); everything else runs in the thread of the sink.
#include "sinks/kafka/transactional_sink.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>

#include "core/backoff.hpp"
#include "core/late.hpp"
#include "core/transactions.hpp"
#include "sinks/kafka/notes.hpp"
#include "sinks/kafka/schemas.hpp"
#include "sinks/kafka/sending.hpp"
#include "sinks/kafka/token.hpp"
#include "sinks/kafka/topic_name.hpp"
#include "sinks/kafka/transaction_thread.hpp"
#include "sinks/kafka/trials.hpp"
#include "sinks/kafka/verdict.hpp"
#include "sinks/wait_set.hpp"

namespace outbox {

namespace {

using Task = TransactionThread::Task;

constexpr std::size_t usual_batches = 64;
constexpr std::size_t usual_batch_bytes = 1024 * 1024;
// The other batches are sent while a transaction ends. While one is in doubt, they show what is
// wrong.
constexpr std::size_t most_batches_of_transaction = usual_batches / 2;
constexpr std::size_t usual_lines = 3;
constexpr std::size_t all_lines = usual_lines + 1;

// A batch that has not been sent.
struct Waiting {
    Batch* batch;
    std::string topic;
    std::vector<SchemaOfEvent> schemas;
};

// A producer, and its transactions one after another.
struct Line {
    enum class State : std::uint8_t {
        closed,    // it has no producer
        starting,  // ends what its predecessor began, and asks for the last number
        idle,      // no transaction
        sending,   // until all records are acknowledged and the transaction is noted
        committing,
        aborting,
    };

    Line(KafkaOptions of, std::size_t number, std::deque<Waiting>& batches)
        : options(std::move(of)), index(number), waiting(batches) {}

    const KafkaOptions options;
    const std::size_t index;
    std::deque<Waiting>& waiting;  // usual lines share one
    State state = State::closed;
    std::deque<std::unique_ptr<Sending>> sendings{};  // of the transaction
    std::unique_ptr<TransactionThread> thread{};      // destroyed before the sendings
    Transaction transaction{};
    bool noted = false;
    bool in_doubt = false;  // in closed or starting: the transaction may have taken effect
    bool is_known = false;  // the number that the broker has
    Micros since = 0;       // when the state began
    std::string trouble{};  // why it is closed
    std::string why_aborted{};
    bool aborted_by_broker = false;  // not because of a record
};

KafkaOptions options_of_line(KafkaOptions options, std::size_t index) {
    options.transactional_id = "pg_outbox." + options.identity + '.' + std::to_string(index);
    options.one_by_one = index >= usual_lines;
    return options;
}

class TransactionalSink final : public Sink, public Transactions {
  public:
    explicit TransactionalSink(const SinkContext& context)
        : options_(kafka_options(context.destination)),
          clock_(context.clock),
          sender_(options_),
          login_(options_, clock_),
          schemas_(options_, clock_),
          wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
          pauses_(milliseconds(100), seconds(10), random_seed()),
          lines_{Line(options_of_line(options_, 0), 0, usual_),
                 Line(options_of_line(options_, 1), 1, usual_),
                 Line(options_of_line(options_, 2), 2, usual_),
                 Line(options_of_line(options_, 3), 3, on_trial_)} {
        ready_.add(wake_);
        ready_.add(login_.descriptor());
        ready_.add(schemas_.descriptor());
    }

    ~TransactionalSink() override {
        for (Line& line : lines_)
            line.thread.reset();
        if (wake_ >= 0)
            close(wake_);
    }

    // -- Sink -------------------------------------------------------------------------------------

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = usual_batch_bytes,
                .max_batches = usual_batches,
                .more_batches = usual_batches,
                .lanes = !options_.topic.is_constant()};
    }

    int descriptor() const noexcept override { return ready_.descriptor(); }

    Micros deadline() const noexcept override {
        if (!outcomes_.empty())
            return 0;
        Micros next = std::min(login_.deadline(), schemas_.deadline());
        for (const Line& line : lines_)
            next = std::min(next, deadline(line));
        return next;
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
            const bool own = !options_.topic.is_constant();
            outcomes_.push_back(
                {&batch, own ? Fate::refused : Fate::unavailable, std::move(*why), 0, own});
            return;
        }
        asking_.push_back({&batch, topic, schemas_.of(batch, topic)});
        take_asking();
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        std::uint64_t count = 0;
        [[maybe_unused]] const ssize_t size = read(wake_, &count, sizeof count);
        login_.step(now);
        schemas_.step(now);
        take_asking();
        for (Line& line : lines_)
            step(line, now);
        if (std::none_of(lines_.begin(), lines_.end(),
                         [](const Line& line) { return line.state == State::starting; }))
            asker_.reset();
        for (Outcome& outcome : outcomes_)
            outcomes.push_back(std::move(outcome));
        outcomes_.clear();
    }

    Transactions* transactions() noexcept override { return this; }

    bool report(SinkReport& report) override {
        std::size_t queued = 0;
        for (const Line& line : lines_)
            queued += line.thread != nullptr ? line.thread->producer().queued() : 0;
        report_notes(queued, report);
        return true;
    }

    // -- Transactions -----------------------------------------------------------------------------

    bool is_known() const noexcept override {
        return std::all_of(lines_.begin(), lines_.end(),
                           [](const Line& line) { return line.is_known; });
    }

    const std::string& trouble() const noexcept override {
        for (const Line& line : lines_)
            if (!line.trouble.empty())
                return line.trouble;
        return lines_.front().trouble;
    }

    std::span<const std::optional<std::int64_t>> committed() const noexcept override {
        return committed_;
    }

    const Transaction* to_note() const noexcept override {
        for (const Line& line : lines_)
            if (line.state == Line::State::sending && !line.noted)
                return &line.transaction;
        return nullptr;
    }

    void noted() override {
        Line& line = lines_[to_note()->line];
        line.noted = true;
        commit_if_ready(line, clock_.now());
    }

  private:
    using State = Line::State;

    // Returns true if the line must have a producer.
    static bool is_needed(const Line& line) noexcept {
        return !line.is_known || line.in_doubt || !line.waiting.empty();
    }

    static bool is_reported(const Line& line) {
        return std::all_of(line.sendings.begin(), line.sendings.end(),
                           [](const auto& sending) { return sending->left == 0; });
    }

    static void enter(Line& line, State state, Micros now) {
        line.state = state;
        line.since = now;
    }

    void step(Line& line, Micros now) {
        if (line.thread != nullptr) {
            login_.renew(line.thread->producer().client(), now);
            take_reports(line, now);
            take_result(line, now);
        }
        if (line.state == State::closed && now >= again_at_ && is_needed(line))
            open(line, now);
        if (line.state == State::idle && may_begin(line))
            begin(line, now);
        if (line.state == State::idle && line.options.one_by_one && trials_.empty())
            shut(line, now);
        if (line.state != State::closed && line.state != State::idle && now >= due(line))
            take_too_long(line, now);
    }

    // -- schemas ----------------------------------------------------------------------------------

    void take_asking() {
        std::erase_if(asking_, [&](Waiting& next) {
            if (are_pending(next.schemas))
                return false;
            if (const Schema* failed = failed_one(next.schemas)) {
                outcomes_.push_back({.batch = next.batch,
                                     .fate = Fate::unavailable,
                                     .error = failed->error,
                                     .scope = Scope::lane});
                return true;
            }
            std::deque<Waiting>& waiting = trials_.has(next.topic) ? on_trial_ : usual_;
            waiting.push_back(std::move(next));
            return true;
        });
    }

    // -- the producer -----------------------------------------------------------------------------

    void open(Line& line, Micros now) {
        const Credentials::State login = login_.need(now);
        waits_for_token_ = login == Credentials::State::pending;
        if (waits_for_token_)
            return;
        if (login == Credentials::State::failed) {
            fail(line, login_.error(), now);
            return;
        }
        auto producer = std::make_unique<Producer>(line.options, wake_);
        if (!producer->failure().empty()) {
            fail(line, std::string(producer->failure()), now);
            return;
        }
        login_.give(producer->client());
        if (!need_asker()) {
            fail(line, std::string(asker_->failure()), now);
            return;
        }
        line.thread = std::make_unique<TransactionThread>(std::move(producer), asker_,
                                                          line.options.transactional_id, wake_);
        line.thread->begin(Task::start);
        enter(line, State::starting, now);
    }

    // Lines that start share one client for questions. The group it is configured with does not
    // matter.
    bool need_asker() {
        if (asker_ == nullptr) {
            asker_ = std::make_shared<KafkaClient>(lines_.front().options, -1, RD_KAFKA_CONSUMER);
            login_.give(*asker_);
        }
        return asker_->failure().empty();
    }

    void shut(Line& line, Micros now) {
        line.thread.reset();
        enter(line, State::closed, now);
    }

    // Nothing can be sent. Records in flight have been reported, or are in doubt.
    void fail(Line& line, std::string why, Micros now) {
        if (line.thread != nullptr && line.thread->producer().is_refused())
            login_.rejected();
        shut(line, now);
        line.trouble = std::move(why);
        again_at_ = now + pauses_.next();
        for (const Waiting& next : line.waiting)
            outcomes_.push_back({next.batch, Fate::unavailable, line.trouble});
        line.waiting.clear();
    }

    // The number is lower than before if somebody has deleted the offsets of the group.
    void started(Line& line, const std::optional<std::int64_t>& number, Micros now) {
        std::optional<std::int64_t>& known = committed_[line.index];
        const bool is_lost = known && number.value_or(0) < *known;
        known = is_lost ? known : number;
        line.is_known = true;
        line.trouble.clear();
        pauses_.reset();
        if (std::exchange(line.in_doubt, false)) {
            if (known && *known >= line.transaction.number)
                report_committed(line, now);
            else if (is_lost)
                report_undone(line, Fate::failed,
                              "the offsets of the group \"" + line.options.transactional_id +
                                  "\" are gone: events may arrive twice");
            else
                report_undone(line, Fate::undone, "");
        }
        enter(line, State::idle, now);
    }

    // -- a transaction ----------------------------------------------------------------------------

    // One line sends at a time, so that batches that wait meanwhile make the next transaction
    // larger. The line that has rested longest is next.
    bool may_begin(const Line& line) const noexcept {
        return !line.waiting.empty() &&
               std::none_of(lines_.begin(), lines_.end(), [&](const Line& other) {
                   return &other.waiting == &line.waiting &&
                          (other.state == State::sending ||
                           (other.state == State::idle && other.since < line.since));
               });
    }

    void take_waiting(Line& line, Micros now) {
        const std::size_t most = line.options.one_by_one ? 1 : max_batches_of_transaction;
        while (!line.waiting.empty() && line.sendings.size() < most &&
               line.thread->producer().has_room_for(line.waiting.front().topic)) {
            Waiting next = std::move(line.waiting.front());
            line.waiting.pop_front();
            if (trials_.has(next.topic) && !line.options.one_by_one) {
                on_trial_.push_back(std::move(next));
                continue;
            }
            Sending& sending = *line.sendings.emplace_back(std::make_unique<Sending>());
            sending.line = &line;
            sending.batch = next.batch;
            sending.topic = std::move(next.topic);
            sending.schemas = std::move(next.schemas);
            sending.sent_at = now;
        }
    }

    void begin(Line& line, Micros now) {
        take_waiting(line, now);
        if (line.sendings.empty()) {
            if (!line.waiting.empty())
                shut(line, now);  // it knows too many topics
            return;
        }
        Producer& producer = line.thread->producer();
        rd_kafka_error_t* error = rd_kafka_begin_transaction(producer.handle());
        if (error != nullptr) {
            std::string why =
                producer.explain(rd_kafka_error_code(error), rd_kafka_error_string(error));
            rd_kafka_error_destroy(error);
            report_undone(line, Fate::unavailable, why);
            fail(line, std::move(why), now);
            return;
        }
        line.transaction.line = line.index;
        line.transaction.number = committed_[line.index].value_or(0) + 1;
        line.transaction.batches.clear();
        for (const auto& sending : line.sendings)
            line.transaction.batches.push_back(sending->batch);
        line.noted = false;
        enter(line, State::sending, now);
        for (const auto& sending : line.sendings)
            sender_.send(producer, *sending);
        look_at(line, now);
    }

    void take_reports(Line& line, Micros now) {
        Producer& producer = line.thread->producer();
        reported_.clear();
        producer.poll(reported_);
        throttled_until_ = std::max(throttled_until_, now + producer.take_throttle());
        for (const Delivery* delivery : reported_)
            static_cast<Sending*>(delivery->owner)->left--;
        if (line.state == State::sending)
            look_at(line, now);
    }

    // Aborts the transaction, or commits it if it is ready, after records of it were reported.
    void look_at(Line& line, Micros now) {
        bool failed = false;
        for (const auto& sending : line.sendings)
            for (const Delivery& first : sending->deliveries) {
                const Delivery& delivery = decisive(first);
                if (delivery.error != RD_KAFKA_RESP_ERR_NO_ERROR) {
                    failed = true;
                    trials_.note_failed(delivery, sending->topic, now);
                }
            }
        if (failed)
            abort(line, "", false, now);
        else
            commit_if_ready(line, now);
    }

    void commit_if_ready(Line& line, Micros now) {
        if (!is_reported(line) || !line.noted)
            return;
        line.thread->begin(Task::commit, line.transaction.number, line.sendings.front()->topic);
        enter(line, State::committing, now);
    }

    void abort(Line& line, std::string why, bool by_broker, Micros now) {
        line.why_aborted = std::move(why);
        line.aborted_by_broker = by_broker;
        line.thread->begin(Task::abort);
        enter(line, State::aborting, now);
    }

    void take_result(Line& line, Micros now) {
        std::optional<TransactionThread::Result> result = line.thread->take_result();
        if (!result)
            return;
        const bool failed = result->error != RD_KAFKA_RESP_ERR_NO_ERROR;
        std::string why = failed
                              ? line.thread->producer().explain(result->error, result->text.c_str())
                              : std::string();
        switch (line.state) {
            case State::starting:
                failed ? fail(line, std::move(why), now) : started(line, result->committed, now);
                break;
            case State::committing:
                if (!failed) {
                    committed_[line.index] = line.transaction.number;
                    report_committed(line, now);
                    enter(line, State::idle, now);
                } else if (result->must_abort) {
                    abort(line, std::move(why), true, now);
                } else {
                    line.in_doubt = true;
                    fail(line, std::move(why), now);
                }
                break;
            case State::aborting: {
                // The producer still points to what it has not reported.
                const bool is_done = is_reported(line);
                report_aborted(line);
                if (failed)
                    fail(line, std::move(why), now);
                else if (is_done)
                    enter(line, State::idle, now);
                else
                    shut(line, now);
                break;
            }
            default:
                break;
        }
    }

    // -- time -------------------------------------------------------------------------------------

    Micros due(const Line& line) const noexcept {
        const Producer& producer = line.thread->producer();
        // It has never been connected, or what it has learned so far must be enough.
        if ((line.state == State::starting && producer.is_disconnected()) ||
            producer.is_overgrown())
            return line.since;
        const Micros answer = line.since + options_.limits.request;
        return line.state != State::committing && producer.is_disconnected()
                   ? std::min(answer, line.since + options_.limits.connect)
                   : answer;
    }

    Micros deadline(const Line& line) const noexcept {
        switch (line.state) {
            case State::closed:
                return is_needed(line) && !waits_for_token_ ? again_at_ : never;
            case State::idle:
                return may_begin(line) ? 0 : never;
            default:
                return due(line);
        }
    }

    void take_too_long(Line& line, Micros now) {
        const Producer& producer = line.thread->producer();
        std::string why = producer.trouble().empty() ? no_answer_within(options_.limits.request)
                                                     : producer.trouble();
        switch (line.state) {
            case State::sending: {  // without a commit it cannot take effect
                const bool is_down = producer.is_disconnected() || !producer.trouble().empty();
                report_undone(line, is_down ? Fate::unavailable : Fate::failed, why);
                break;
            }
            case State::committing:
                line.in_doubt = true;
                break;
            case State::aborting:
                report_aborted(line);
                break;
            default:
                break;
        }
        fail(line, std::move(why), now);
    }

    // -- outcomes ---------------------------------------------------------------------------------

    void report_committed(Line& line, Micros now) {
        for (const auto& sending : line.sendings) {
            trials_.finished(*sending, now);
            Outcome outcome = sender_.outcome_of(*sending, Fate::confirmed, "", true);
            outcome.retry_after = std::max<Micros>(0, throttled_until_ - now);
            outcomes_.push_back(std::move(outcome));
        }
        line.sendings.clear();
    }

    void report_aborted(Line& line) {
        report_undone(line, line.aborted_by_broker ? Fate::unavailable : Fate::undone,
                      line.why_aborted);
    }

    // Records that did not fail by themselves are undone with the others. `fate` is that of the
    // first batch without a failed record; one batch that reports it is enough.
    void report_undone(Line& line, Fate fate, const std::string& why) {
        for (const auto& sending : line.sendings) {
            for (Delivery& delivery : sending->deliveries)
                if (!is_of_record(decisive(delivery).error))
                    delivery.reported = false;
            if (sending->deliveries.empty())
                outcomes_.push_back({sending->batch, fate, why});
            else
                outcomes_.push_back(
                    sender_.outcome_of(*sending, fate, why, line.options.one_by_one));
            fate = Fate::undone;
        }
        line.sendings.clear();
    }

    const KafkaOptions options_;
    const Clock& clock_;
    BatchSender sender_;
    TokenLogin login_;
    Schemas schemas_;
    const int wake_;
    WaitSet ready_;

    Backoff pauses_;       // between attempts to open a producer
    Micros again_at_ = 0;  // when the next attempt may begin
    bool waits_for_token_ = false;
    std::deque<Waiting> asking_;  // wait for schemas
    std::deque<Waiting> usual_;
    std::deque<Waiting> on_trial_;
    std::array<Line, all_lines> lines_;
    std::array<std::optional<std::int64_t>, all_lines> committed_;
    std::shared_ptr<KafkaClient> asker_;  // while a line starts
    Trials trials_;
    Micros throttled_until_ = 0;
    std::vector<Outcome> outcomes_;
    std::vector<Delivery*> reported_;
};

}  // namespace

Sink* new_transactional_sink(const SinkContext& context) {
    return new TransactionalSink(context);
}

}  // namespace outbox
