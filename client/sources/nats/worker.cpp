#include "nats/worker.hpp"

#include <algorithm>
#include <climits>

#include "core/late.hpp"
#include "core/text.hpp"
#include "inbox/error.hpp"
#include "nats/delivery.hpp"
#include "net/json.hpp"

namespace inbox::nats {

using outbox::Micros;
using std::chrono::milliseconds;

// After this many refusals in a row the source fails.
static constexpr int max_refusals = 3;
// The server ends a pull after this time. Until then it sends heartbeats at this interval.
static constexpr Micros pull_time = outbox::seconds(30), heartbeat = outbox::seconds(5);
// Largest message that a server can be configured to accept, with its headers.
static constexpr std::size_t max_message = 64 * 1024 * 1024 + 64 * 1024;
// It asks for no more than what is expected to fit into this.
static constexpr std::size_t max_waiting_bytes = 64 * 1024 * 1024;
static constexpr std::size_t usual_message = 1024 * 1024;
// A server that sends but does not read must not make commands pile up.
static constexpr std::size_t max_unsent = 16 * 1024 * 1024;

Worker::Worker(Setup setup)
    : setup_(std::move(setup)),
      inbox_(setup_.inbox_prefix),
      pauses_(setup_.retry_base, setup_.retry_max, outbox::random_seed()),
      message_size_(usual_message) {
    const outbox::NatsLogin& login = setup_.config.login;
    for (const std::string& secret : {login.password, login.token, login.jwt})
        keep_secret(secret);
}

Worker::~Worker() {
    close(milliseconds(0));
}

void Worker::starts() {
    is_known_ = false;
    stage_ = Stage::disconnected;
    connect_at_ = 0;
    refusals_ = 0;
}

// Has no effect while the source is open.
void Worker::load_incarnation(const LoadPositions& load) {
    {
        const std::lock_guard lock(mutex_);
        if (!load || phase_ != Phase::closed)
            return;
    }
    try {
        for (const Position& position : load({setup_.subscription})) {
            const std::lock_guard lock(mutex_);
            incarnation_ = saved_incarnation_ = position.incarnation;
            saved_at_ = position.published_at;
        }
    } catch (const DatabaseError& error) {
        throw SourceError(std::string("cannot load the position: ") + error.what(), true);
    }
}

// A consumer that was made again may begin with earlier messages, whose times would not be saved.
Position Worker::position_of(Position newest) {
    const std::lock_guard lock(mutex_);
    newest.incarnation = incarnation_;
    if (incarnation_ != saved_incarnation_)
        newest.published_at = saved_at_ =
            std::max(newest.published_at, saved_at_ + std::chrono::microseconds(1));
    return newest;
}

std::vector<Gap> Worker::gaps() {
    const std::lock_guard lock(mutex_);
    return std::exchange(gaps_, {});
}

// ---------------------------------------------------------------------------------------------
// The thread
// ---------------------------------------------------------------------------------------------

int Worker::prepare() {
    connection_.emplace(setup_.config, clock_, outbox::NatsLimits{.message = max_message});
    return connection_->descriptor();
}

void Worker::clean_up() noexcept {
    pulls_.clear();
    confirmations_.clear();
    arrived_.clear();
    connection_.reset();
}

bool Worker::turn() {
    Micros until = 0;
    bool ends = false;
    step_connection(clock_.now());
    {
        const std::lock_guard lock(mutex_);
        const Micros now = clock_.now();
        until = std::min(work(now), close_by_);
        ends = phase_ == Phase::closing && (is_settled() || now >= close_by_);
        if (ends && !is_settled())
            note(Level::warning, "some messages could not be settled before the end");
    }
    tell();
    if (!ends)
        wait(std::min(until, connection_->deadline()));
    return !ends;
}

void Worker::step_connection(Micros now) {
    if (stage_ != Stage::disconnected)
        connection_->step(now, *this);
}

bool Worker::is_settled() const noexcept {
    return !claims_.has_commands() && confirmations_.empty();
}

// Enters what has arrived, and does what can be done. Returns when there will be more to do.
Micros Worker::work(Micros now) {
    take_arrived(now);
    if (phase_ == Phase::closing) {
        claims_.give_back_all();
        if (!pulls_.empty())
            end_pulls(now);
    }
    if (stage_ != Stage::disconnected &&
        connection_->state() == outbox::NatsConnection::State::closed)
        lost(connection_->failure(), connection_->scope() == outbox::Scope::destination, now);
    if (stage_ != Stage::disconnected && !trouble_.empty())
        lost(std::exchange(trouble_, {}), false, now);
    const bool is_wanted = phase_ == Phase::open ? !failure_ : !is_settled();
    if (stage_ == Stage::disconnected && is_wanted && now >= connect_at_)
        connect(now);
    if (stage_ == Stage::connecting && connection_->state() == outbox::NatsConnection::State::ready)
        ask_for_consumer(now);
    if (stage_ == Stage::asking && consumer_answer_)
        take_consumer(*std::exchange(consumer_answer_, {}), std::exchange(no_responders_, false),
                      now);
    if (stage_ == Stage::asking && now >= answer_due_)
        lost("JetStream: " + outbox::no_answer_within(setup_.request_timeout), false, now);
    if (stage_ != Stage::working)
        return stage_ == Stage::disconnected ? (is_wanted ? connect_at_ : outbox::never)
                                             : answer_due_;
    send_commands(now);
    if (phase_ == Phase::open && !failure_)
        send_pulls(now);
    connection_->flush();
    if (connection_->unsent() > max_unsent)
        lost("the server does not read what it is sent", false, now);
    Micros until = claims_.deadline();
    for (const auto& [request, pull] : pulls_)
        until = std::min(until, pull.due);
    for (const auto& [request, confirmation] : confirmations_)
        until = std::min(until, confirmation.due);
    return until;
}

void Worker::connect(Micros now) {
    stage_ = Stage::connecting;
    answer_due_ = outbox::never;
    trouble_.clear();
    connect_at_ = now;
    connection_->open(inbox_.subscription());
}

void Worker::disconnect(Micros now) {
    connection_->close();
    stage_ = Stage::disconnected;
    answer_due_ = outbox::never;
    consumer_answer_.reset();
    forget_requests();
    connect_at_ = now + pauses_.next();
}

// What has no answer is sent again.
void Worker::forget_requests() {
    pulls_.clear();
    std::vector<Claims::Command> unanswered;
    for (auto& [request, confirmation] : confirmations_)
        unanswered.push_back(std::move(confirmation.command));
    confirmations_.clear();
    claims_.again(std::move(unanswered));
}

// The server would send what is given back to a waiting pull. It forgets pulls when nobody
// subscribes to their answers, and it takes commands in order. (If the connection ended instead, it
// could take them over the next one first.)
void Worker::end_pulls(Micros now) {
    forget_requests();
    connection_->output() += inbox_.end();
    inbox_ = outbox::NatsInbox(setup_.inbox_prefix);
    connection_->output() += inbox_.subscription();
    // Acknowledgements before had no confirmation. The answer says that they have been read.
    const std::uint64_t request = publish(consumer_info(), "", true);
    confirmations_[request] = {{consumer_info(), "", true}, now + setup_.request_timeout};
}

void Worker::lost(std::string why, bool is_refusal, Micros now) {
    disconnect(now);
    refusals_ = is_refusal ? refusals_ + 1 : 0;
    const std::string text = setup_.subscription + ": " + why;
    if (!is_known_)
        give_up(text, has_worked_ || !is_refusal);
    else if (refusals_ >= max_refusals)
        give_up(text, has_worked_);
    else
        note(Level::warning, text);
}

void Worker::give_up(std::string message, bool transient) {
    is_known_ = false;
    fail(std::move(message), transient);
}

// ---------------------------------------------------------------------------------------------
// The consumer of the stream
// ---------------------------------------------------------------------------------------------

std::string Worker::consumer_info() const {
    return "$JS.API.CONSUMER.INFO." + setup_.stream + '.' + setup_.consumer;
}

void Worker::ask_for_consumer(Micros now) {
    stage_ = Stage::asking;
    consumer_answer_.reset();
    consumer_request_ = publish(consumer_info(), "", true);
    connection_->flush();
    answer_due_ = now + setup_.request_timeout;
}

// Returns why the source cannot use the consumer, or an empty text.
static std::string unusable(const Json::Value& config) {
    if (!outbox::json_text(config, "deliver_subject").empty())
        return "it pushes messages; a pull consumer is needed";
    if (const std::string policy = outbox::json_text(config, "ack_policy"); policy != "explicit")
        return "its acknowledgement policy is \"" + outbox::printable(policy, 50) +
               "\"; \"explicit\" is needed";
    return "";
}

static std::optional<Place> last_delivery_in(const Json::Value& consumer) {
    const Json::Value* const delivered = outbox::json_member(consumer, "delivered");
    if (delivered == nullptr)
        return std::nullopt;
    const Json::Value* const of_consumer = outbox::json_member(*delivered, "consumer_seq");
    const Json::Value* const sequence = outbox::json_member(*delivered, "stream_seq");
    if (of_consumer == nullptr || sequence == nullptr || !of_consumer->isUInt64() ||
        !sequence->isUInt64())
        return std::nullopt;
    return Place{.sequence = sequence->asUInt64(), .of_consumer = of_consumer->asUInt64()};
}

// A consumer ends with its stream. Returns false if the source has to stop.
bool Worker::take_incarnation(const std::string& created, Micros now) {
    const std::string before = std::exchange(incarnation_, created);
    if (before.empty() || created.empty() || before == created)
        return true;
    const std::string why = "the consumer was created at " + outbox::printable(created, 50) +
                            ", and the one before at " + outbox::printable(before, 50) +
                            ": it was made again, and perhaps its stream";
    gaps_.push_back({.subscription = setup_.subscription,
                     .why = why,
                     .recreated = true,
                     .incarnation = created});
    if (setup_.on_recreated == OnRecreated::stop) {
        incarnation_ = before;
        disconnect(now);
        give_up(setup_.subscription + ": " + why + "; start once with on_recreated = begin_again",
                false);
        return false;
    }
    note(Level::warning, setup_.subscription + ": " + why);
    claims_.consumer_was_replaced();
    return true;
}

void Worker::take_consumer(const std::string& answer, bool no_responders, Micros now) {
    answer_due_ = outbox::never;
    const std::optional<Json::Value> value = outbox::parse_json(answer);
    const Json::Value* const error = value ? outbox::json_member(*value, "error") : nullptr;
    const Json::Value* const config = value ? outbox::json_member(*value, "config") : nullptr;
    if (no_responders) {
        lost("JetStream is not enabled, or does not answer", false, now);
        return;
    }
    if (error != nullptr) {
        lost(outbox::json_text(*error, "description"), true, now);
        return;
    }
    if (config == nullptr) {
        lost("JetStream gave a malformed answer about the consumer", false, now);
        return;
    }
    if (std::string why = unusable(*config); !why.empty()) {
        lost(std::move(why), true, now);
        return;
    }
    if (!take_incarnation(outbox::json_text(*value, "created"), now))
        return;
    has_filter_ = !outbox::json_text(*config, "filter_subject").empty() ||
                  outbox::json_member(*config, "filter_subjects") != nullptr;
    last_delivery_ = last_delivery_in(*value);
    const Json::Value* const ack_wait = outbox::json_member(*config, "ack_wait");
    if (ack_wait != nullptr && ack_wait->isUInt64() && ack_wait->asUInt64() >= 1'000'000)
        claims_.set_ack_wait(
            static_cast<Micros>(std::min<std::uint64_t>(ack_wait->asUInt64() / 1000, INT_MAX)));
    stage_ = Stage::working;
    is_known_ = has_worked_ = true;
    refusals_ = 0;
    pauses_.reset();
    changed_.notify_all();
}

// ---------------------------------------------------------------------------------------------
// Messages
// ---------------------------------------------------------------------------------------------

std::uint64_t Worker::publish(const std::string& subject, const std::string& body,
                              bool with_reply) {
    std::string& out = connection_->output();
    out.append("PUB ").append(subject);
    if (with_reply) {
        out += ' ';
        inbox_.append_reply(out, ++request_);
    }
    out.append(" ").append(std::to_string(body.size())).append("\r\n");
    out.append(body).append("\r\n");
    return request_;
}

// Messages of the stream have the subject that they were published to. They do not say which pull
// they answer, but the server serves pulls in order.
void Worker::take_message(const outbox::NatsInput& message, const Place& place) {
    look_for_skipped(place);
    arrived_.push_back(delivery_from(message, place, setup_.subscription));
    const Micros due = clock_.now() + 3 * heartbeat;
    for (auto& [request, pull] : pulls_)
        pull.due = due;
    const auto served = std::find_if(pulls_.begin(), pulls_.end(),
                                     [](const auto& one) { return one.second.left > 0; });
    if (served != pulls_.end() && --served->second.left == 0)
        pulls_.erase(served);
}

// The consumer numbers its deliveries. If two have adjacent numbers, no process has got the messages
// between them.
void Worker::look_for_skipped(const Place& place) {
    const std::optional<Place> last = std::exchange(last_delivery_, place);
    const bool is_next = last && last->of_consumer + 1 == place.of_consumer;
    if (is_next && place.delivered == 1 && !has_filter_ && place.sequence > last->sequence + 1)
        skipped_ += place.sequence - last->sequence - 1;
    if (place.delivered == 1)
        return;
    last_delivery_.reset();  // an earlier message came again
    if (is_next && last->sequence > place.sequence)
        last_delivery_ = Place{.sequence = last->sequence, .of_consumer = place.of_consumer};
}

void Worker::on_message(const outbox::NatsInput& message) {
    if (const std::optional<Place> place = place_of(message.reply)) {
        take_message(message, *place);
        return;
    }
    const std::optional<std::uint64_t> request = inbox_.request_of(message);
    if (!request)
        return;
    const int status = outbox::nats_status(message.headers);
    if (*request == consumer_request_ && stage_ == Stage::asking) {
        no_responders_ = status == 503;
        consumer_answer_ = std::string(message.payload);
        return;
    }
    if (confirmations_.erase(*request) > 0)
        return;
    const auto pull = pulls_.find(*request);
    if (pull == pulls_.end())
        return;
    pull->second.due = std::max(pull->second.due, clock_.now() + 3 * heartbeat);
    if (status != 0)
        take_status(pull, status, outbox::nats_status_text(message.headers));
}

// Status 100 is a heartbeat; all others end the pull.
void Worker::take_status(std::map<std::uint64_t, Pull>::iterator pull, int status,
                         std::string_view text) {
    if (status == 100)
        return;
    pulls_.erase(pull);
    if (status == 404 || status == 408)
        return;
    // The consumer has reached a limit until messages are acknowledged, or it has gone, which the
    // next question will show.
    if (status == 409 && (text.starts_with("Exceeded Max") || text.find("Batch") != text.npos))
        return;
    trouble_ = "the server ended a request for messages: " + std::to_string(status) + ' ' +
               outbox::printable(text, 200);
}

void Worker::on_error(std::string_view text) {
    trouble_ = "the server says: " + outbox::printable(text, 300);
}

void Worker::take_arrived(Micros now) {
    if (const std::uint64_t skipped = std::exchange(skipped_, 0); skipped > 0) {
        const std::string why =
            std::to_string(skipped) + " messages were deleted before they were delivered";
        note(Level::warning, setup_.subscription + ": " + why);
        gaps_.push_back({.subscription = setup_.subscription, .why = why, .skipped = skipped});
    }
    if (arrived_.empty())
        return;
    bool has_room = true;
    for (Delivery& delivery : arrived_) {
        // At once up to a large message, then slowly down again.
        message_size_ = std::max(delivery.size, message_size_ - message_size_ / 64);
        has_room = claims_.buffered() < setup_.prefetch &&
                   claims_.buffered_bytes() < 2 * max_waiting_bytes;
        if (!has_room)
            break;
        claims_.add(std::move(delivery), now);
    }
    arrived_.clear();
    changed_.notify_all();
    if (!has_room)  // the rest comes again
        lost("the server sent more messages than were asked for, or larger ones", false, now);
}

void Worker::send_commands(Micros now) {
    std::vector<Claims::Command> late;
    for (auto at = confirmations_.begin(); at != confirmations_.end();)
        if (at->second.due <= now) {
            late.push_back(std::move(at->second.command));
            at = confirmations_.erase(at);
        } else {
            ++at;
        }
    claims_.again(std::move(late));
    // At the end everything is confirmed, so that nothing is lost with the connection.
    const bool confirms = setup_.double_ack || phase_ == Phase::closing;
    for (Claims::Command& command : claims_.next(now)) {
        const bool with_reply = confirms && command.settles;
        const std::uint64_t request = publish(command.subject, command.body, with_reply);
        if (with_reply)
            confirmations_[request] = {std::move(command), now + setup_.request_timeout};
    }
}

std::size_t Worker::coming() const noexcept {
    std::size_t count = 0;
    for (const auto& [request, pull] : pulls_)
        count += pull.left;
    return count;
}

void Worker::send_pulls(Micros now) {
    for (const auto& [request, pull] : pulls_)
        if (now >= pull.due) {  // neither messages nor heartbeats
            lost("the server gives no sign of life", false, now);
            return;
        }
    const std::size_t expected = claims_.buffered() + coming();
    const std::size_t bytes = claims_.buffered_bytes() + coming() * message_size_;
    if (expected > setup_.prefetch / 2 || (expected > 0 && bytes > max_waiting_bytes / 2))
        return;
    const std::size_t fit =
        (max_waiting_bytes - std::min(bytes, max_waiting_bytes)) / message_size_;
    const std::size_t batch = std::clamp<std::size_t>(fit, 1, setup_.prefetch - expected);
    const auto nanoseconds = [](Micros time) { return std::to_string(time * 1000); };
    const std::uint64_t request =
        publish("$JS.API.CONSUMER.MSG.NEXT." + setup_.stream + '.' + setup_.consumer,
                "{\"batch\":" + std::to_string(batch) + ",\"expires\":" + nanoseconds(pull_time) +
                    ",\"idle_heartbeat\":" + nanoseconds(heartbeat) + "}",
                true);
    pulls_[request] = {batch, now + 3 * heartbeat};
}

}  // namespace inbox::nats
