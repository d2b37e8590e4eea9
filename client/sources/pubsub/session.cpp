#include "pubsub/session.hpp"

#include <algorithm>

#include "core/text.hpp"
#include "pubsub/answer.hpp"

namespace inbox::pubsub {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

static constexpr std::chrono::milliseconds request_limit = 10s;
static constexpr std::chrono::milliseconds seek_limit = 60s;
static constexpr Duration finish_limit = 1s;
static constexpr std::chrono::milliseconds first_pause = 200ms;
static constexpr std::chrono::milliseconds max_pause = 30s;
// A stream that lived this long was healthy, whether or not messages came.
static constexpr Duration good_life = 30s;

static std::string random_name() {
    static constexpr char digits[] = "0123456789abcdef";
    std::random_device device;
    std::string name;
    for (int i = 0; i < 32; i++)
        name += digits[device() % 16];
    return name;
}

Session::Session(const PubSubOptions& options, Log log)
    : options_(options),
      log_(std::move(log)),
      subscription_("projects/" + options.project + "/subscriptions/" + options.subscription),
      client_id_(options.client_id.empty() ? random_name() : options.client_id),
      channel_(make_channel(options)),
      pauses_(first_pause, max_pause),
      leases_({options.min_ack_deadline, options.max_ack_deadline, options.max_lease}),
      housekeeper_([this] { keep_house(); }) {}

Session::~Session() {
    close(0ms);
}

void Session::tell_notes(Lock& lock) {
    if (notes_.empty())
        return;
    const auto notes = std::exchange(notes_, {});
    lock.unlock();
    if (log_)
        for (const auto& [level, text] : notes)
            log_(level, text);
    lock.lock();
}

// ---------------------------------------------------------------------------------------------
// The keeper
// ---------------------------------------------------------------------------------------------

void Session::keep_house() {
    Lock lock(mutex_);
    while (!housekeeper_may_end_) {
        keep_stream(lock);
        extend_leases();
        send(lock);
        tell_notes(lock);
        const SteadyTime next = next_task();
        if (housekeeper_may_end_ || next <= Clock::now())
            continue;
        if (next == SteadyTime::max())
            work_.wait(lock);
        else
            work_.wait_until(lock, next);
    }
}

SteadyTime Session::next_task() const {
    const SteadyTime settle = std::min(settlements_.due(), leases_.next_round());
    if (!notes_.empty() || (to_resume_ && stream_))
        return SteadyTime::min();
    const SteadyTime reopen = suspended_ ? SteadyTime::max() : reopen_at_;
    return std::min(settle, stream_ ? heartbeat_at_ : reopen);
}

void Session::keep_stream(Lock& lock) {
    const SteadyTime now = Clock::now();
    const std::shared_ptr<Stream> stream = stream_;
    if (!stream) {
        if (!suspended_ && now >= reopen_at_)
            open_stream(lock);
        return;
    }
    const bool resume = std::exchange(to_resume_, false);
    const bool heartbeat = now >= heartbeat_at_;
    if (heartbeat)
        heartbeat_at_ = now + options_.heartbeat;
    lock.unlock();
    if (resume)
        stream->resume();
    if (heartbeat)
        stream->send_heartbeat();
    lock.lock();
}

void Session::open_stream(Lock& lock) {
    StreamingPullRequest first;
    first.set_subscription(subscription_);
    first.set_client_id(client_id_);
    // The service accepts nothing shorter here. Each message gets its real lease when it arrives.
    first.set_stream_ack_deadline_seconds(
        static_cast<std::int32_t>(std::max(leases_.deadline(), std::chrono::seconds(10)).count()));
    first.set_max_outstanding_messages(
        static_cast<std::int64_t>(options_.max_outstanding_messages));
    first.set_max_outstanding_bytes(static_cast<std::int64_t>(options_.max_outstanding_bytes));

    const std::uint64_t number = ++stream_number_;
    const auto stream = std::make_shared<Stream>(
        std::move(first),
        [this, number](StreamingPullResponse& response) { return take(number, response); },
        [this, number](const grpc::Status& status) { stream_ended(number, status); });
    stream_ = stream;
    streams_alive_++;
    stats_.streams++;
    stream_since_ = Clock::now();
    heartbeat_at_ = stream_since_ + options_.heartbeat;
    lock.unlock();
    Stream::start(stream, channel_);
    lock.lock();
}

void Session::extend_leases() {
    const SteadyTime now = Clock::now();
    if (now < leases_.next_round())
        return;
    const Leases::Round round = leases_.begin_round(now, part());
    for (const std::string& ack_id : round.extend)
        settlements_.add(Action::extend, ack_id, now);
    if (round.expired == 0)
        return;
    stats_.expired += round.expired;
    note(Level::warning, std::to_string(round.expired) +
                             " messages were held for longer than max_lease; others get them now");
}

void Session::send(Lock& lock) {
    while (std::optional<Batch> batch = settlements_.next(Clock::now())) {
        // Messages settled meanwhile must be left out: an extension would undo that.
        if (batch->action == Action::extend)
            std::erase_if(batch->ack_ids, [&](auto& ack_id) { return !leases_.has(ack_id); });
        if (batch->ack_ids.empty()) {
            settlements_.done(batch->action);
            continue;
        }
        // It stays in calls_ until answered(). If the callback owned it, too, a thread of gRPC
        // could be the last to let go of the channel.
        const std::shared_ptr<Call> call =
            batch->action == Action::ack
                ? acknowledge(subscription_, batch->ack_ids)
                : modify_deadline(subscription_, batch->ack_ids,
                                  batch->action == Action::nack ? 0s : leases_.deadline());
        calls_[Settlements::lane(batch->action)] = call;
        lock.unlock();
        call->start(channel_, request_limit,
                    [this, batch = *batch](const grpc::Status& status) mutable {
                        answered(std::move(batch), status);
                    });
        lock.lock();
    }
}

// ---------------------------------------------------------------------------------------------
// The stream
// ---------------------------------------------------------------------------------------------

bool Session::is_full(double part) const {
    const auto of = [&](std::size_t limit) { return part * static_cast<double>(limit); };
    return static_cast<double>(waiting_.size() + unconfirmed_.size()) >=
               of(options_.max_outstanding_messages) ||
           static_cast<double>(read_bytes_) >= of(options_.max_outstanding_bytes);
}

bool Session::take(std::uint64_t stream, StreamingPullResponse& response) {
    const Lock lock(mutex_);
    const SteadyTime now = Clock::now();
    if (stream != stream_number_) {  // the stream must end, and these messages came too late
        for (const ReceivedMessage& message : response.received_messages())
            settlements_.add(Action::nack, message.ack_id(), now);
        work_.notify_one();
        return true;
    }
    pauses_.reset();
    if (response.has_subscription_properties()) {
        exactly_once_ = response.subscription_properties().exactly_once_delivery_enabled();
        ordered_ = response.subscription_properties().message_ordering_enabled();
        leases_.set_exactly_once(exactly_once_);
    }
    for (ReceivedMessage& message : *response.mutable_received_messages())
        arrive(message, now);
    arrived_.notify_one();
    work_.notify_one();
    paused_ = is_full(1);
    return !paused_;
}

void Session::arrive(ReceivedMessage& message, SteadyTime now) {
    const std::string ack_id = message.ack_id();
    stats_.received++;
    leases_.add(ack_id, now, part());
    settlements_.add(Action::extend, ack_id, now);
    read_bytes_ += message.ByteSizeLong();
    if (exactly_once_)
        unconfirmed_[ack_id] = std::move(message);
    else
        hand_over(std::move(message), now);
}

void Session::hand_over(ReceivedMessage message, SteadyTime now) {
    const std::string& key = message.message().ordering_key();
    if (!ordered_ || key_order_.may_pass(key, message.message().message_id())) {
        waiting_.push_back(std::move(message));
        return;
    }
    stats_.overtaken++;
    read_bytes_ -= message.ByteSizeLong();
    leases_.remove(message.ack_id());
    settlements_.add(Action::nack, message.ack_id(), now);
}

void Session::stream_ended(std::uint64_t stream, const grpc::Status& status) {
    const Lock lock(mutex_);
    streams_alive_--;
    quiet_.notify_one();
    if (stream != stream_number_)
        return;
    stream_.reset();
    paused_ = to_resume_ = false;
    if (is_fatal(status)) {
        fatal_ = "cannot read " + subscription_ + ": " + describe(status);
        reopen_at_ = SteadyTime::max();
        arrived_.notify_one();
        return;
    }
    const SteadyTime now = Clock::now();
    if (now - stream_since_ >= good_life)
        pauses_.reset();
    // The service ends streams now and then to move them, which needs no warning.
    const Level level = pauses_.steps() == 0 ? Level::debug : Level::warning;
    const std::chrono::milliseconds pause = pauses_.next();
    note(level, "the stream ended, and is opened again in " + std::to_string(pause.count()) +
                    " ms: " + describe(status));
    reopen_at_ = now + pause;
    work_.notify_one();
}

// Ends the stream before messages are given back and before a seek. Otherwise the service would
// send messages on a stream that nobody reads.
void Session::end_stream(Lock& lock, Duration limit) {
    suspended_ = true;
    stream_number_++;
    paused_ = to_resume_ = false;
    const std::shared_ptr<Stream> stream = std::exchange(stream_, nullptr);
    const SteadyTime until = Clock::now() + limit;
    if (stream) {
        lock.unlock();
        stream->finish();
        lock.lock();
    }
    if (quiet_.wait_until(lock, until, [&] { return streams_alive_ == 0; }) || !stream)
        return;
    lock.unlock();
    stream->cancel();
    lock.lock();
}

grpc::Status Session::seek(Call& call) {
    Lock lock(mutex_);
    end_stream(lock, finish_limit);
    give_back_read(Clock::now());
    key_order_.clear();
    work_.notify_one();
    lock.unlock();
    grpc::Status status = call.wait(channel_, seek_limit);
    lock.lock();
    suspended_ = closing_;
    if (fatal_.empty())
        reopen_at_ = SteadyTime::min();
    work_.notify_one();
    return status;
}

// ---------------------------------------------------------------------------------------------
// Messages
// ---------------------------------------------------------------------------------------------

std::vector<ReceivedMessage> Session::receive(std::size_t max_messages,
                                              std::chrono::milliseconds wait) {
    Lock lock(mutex_);
    arrived_.wait_for(lock, wait, [&] { return !waiting_.empty() || !fatal_.empty() || closing_; });
    std::vector<ReceivedMessage> messages;
    while (!waiting_.empty() && messages.size() < max_messages) {
        read_bytes_ -= waiting_.front().ByteSizeLong();
        messages.push_back(std::move(waiting_.front()));
        waiting_.pop_front();
    }
    if (messages.empty() && !fatal_.empty() && !closing_)
        throw SourceError(fatal_, false);
    resume_if_room();
    return messages;
}

void Session::resume_if_room() {
    if (!paused_ || is_full(0.8))
        return;
    paused_ = false;
    to_resume_ = true;
    work_.notify_one();
}

void Session::ack(std::span<const Delivery> deliveries) {
    const Lock lock(mutex_);
    const SteadyTime now = Clock::now();
    for (const Delivery& delivery : deliveries)
        if (leases_.acked(delivery.handle, now))
            settlements_.add(Action::ack, delivery.handle, now);
    work_.notify_one();
}

void Session::nack(std::span<const Delivery> deliveries) {
    const Lock lock(mutex_);
    const SteadyTime now = Clock::now();
    std::set<std::string> keys;
    for (const Delivery& delivery : deliveries) {
        if (!leases_.has(delivery.handle))
            continue;
        stats_.nacked++;
        give_back(delivery.handle, delivery.event.ordering_key, delivery.message_id, now);
        keys.insert(delivery.event.ordering_key);
    }
    if (ordered_)
        give_back_waiting(keys, now);
    resume_if_room();
    work_.notify_one();
}

void Session::give_back(const std::string& ack_id, const std::string& key,
                        const std::string& message_id, SteadyTime now) {
    settlements_.add(Action::nack, ack_id, now);
    if (ordered_)
        key_order_.given_back(key, message_id);
    leases_.remove(ack_id);
}

// Gives back waiting messages of these keys, because earlier ones of the keys were given back.
void Session::give_back_waiting(const std::set<std::string>& keys, SteadyTime now) {
    std::erase_if(waiting_, [&](const ReceivedMessage& message) {
        const std::string& key = message.message().ordering_key();
        if (key.empty() || !keys.contains(key))
            return false;
        stats_.overtaken++;
        read_bytes_ -= message.ByteSizeLong();
        give_back(message.ack_id(), key, message.message().message_id(), now);
        return true;
    });
}

// Gives back the messages that were read and not received.
void Session::give_back_read(SteadyTime now) {
    for (const ReceivedMessage& message : waiting_)
        give_back(message.ack_id(), {}, {}, now);
    for (const auto& [ack_id, message] : unconfirmed_)
        give_back(ack_id, {}, {}, now);
    waiting_.clear();
    unconfirmed_.clear();
    read_bytes_ = 0;
}

// ---------------------------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------------------------

void Session::answered(Batch batch, const grpc::Status& status) {
    const Lock lock(mutex_);
    const SteadyTime now = Clock::now();
    calls_[Settlements::lane(batch.action)].reset();
    settlements_.done(batch.action);

    const auto reasons = failed_ack_ids(status);
    const std::string why =
        describe(status) +
        (reasons.empty() ? "" : ", " + outbox::printable(reasons.begin()->second, 100));
    const std::vector<std::string> ack_ids = std::exchange(batch.ack_ids, {});
    Batch again = batch, lost = batch;
    for (const std::string& ack_id : ack_ids) {
        const auto reason = reasons.find(ack_id);
        const bool alone = reason != reasons.end();
        if (status.ok() || (!reasons.empty() && !alone)) {
            taken(batch.action, ack_id, now);
            continue;
        }
        const bool transient = alone ? is_transient_reason(reason->second) : is_transient(status);
        // It is unknown in which order the others will be confirmed, so these are not tried again.
        if (batch.action == Action::extend && refuse(ack_id, transient, now))
            continue;
        (transient ? again : lost).ack_ids.push_back(ack_id);
        if (batch.action == Action::extend && alone && !transient)
            stats_.expired += leases_.remove(ack_id);
    }
    try_again(std::move(again), why, now);
    give_up(lost, why);
    resume_if_room();
    arrived_.notify_one();
    work_.notify_one();
    quiet_.notify_one();
}

void Session::taken(Action action, const std::string& ack_id, SteadyTime now) {
    stats_.acked += action == Action::ack;
    stats_.extended += action == Action::extend;
    if (auto confirmed = unconfirmed_.extract(ack_id); !confirmed.empty())
        hand_over(std::move(confirmed.mapped()), now);
}

// A message whose lease is not confirmed may belong to another consumer. Returns false if it was
// confirmed before.
bool Session::refuse(const std::string& ack_id, bool transient, SteadyTime now) {
    const auto node = unconfirmed_.extract(ack_id);
    if (node.empty())
        return false;
    const ReceivedMessage& message = node.mapped();
    stats_.refused++;
    read_bytes_ -= message.ByteSizeLong();
    leases_.remove(ack_id);
    if (ordered_)
        key_order_.given_back(message.message().ordering_key(), message.message().message_id());
    if (transient)
        settlements_.add(Action::nack, ack_id, now);
    return true;
}

static std::string cannot(const Batch& batch) {
    static constexpr const char* what[] = {"acknowledge ", "give back ", "extend the leases of "};
    return std::string("cannot ") + what[static_cast<int>(batch.action)] +
           std::to_string(batch.ack_ids.size()) + " messages: ";
}

void Session::try_again(Batch batch, const std::string& why, SteadyTime now) {
    if (batch.ack_ids.empty())
        return;
    if (batch.attempts == 0)
        note(Level::debug, cannot(batch) + why);
    if (!settlements_.again(batch, now, part()))
        give_up(batch, why);
}

void Session::give_up(const Batch& batch, const std::string& why) {
    if (batch.ack_ids.empty())
        return;
    if (batch.action == Action::ack)
        stats_.lost_acks += batch.ack_ids.size();
    note(Level::warning, cannot(batch) + why);
}

// ---------------------------------------------------------------------------------------------
// The end
// ---------------------------------------------------------------------------------------------

void Session::close(std::chrono::milliseconds limit) {
    Lock lock(mutex_);
    if (!housekeeper_.joinable())
        return;
    closing_ = true;
    arrived_.notify_all();
    const SteadyTime until = Clock::now() + limit;
    end_stream(lock, std::min<Duration>(limit, finish_limit));
    const SteadyTime now = Clock::now();
    for (const std::string& ack_id : leases_.all())
        settlements_.add(Action::nack, ack_id, now);
    leases_.clear();
    waiting_.clear();
    unconfirmed_.clear();
    settlements_.hurry(now);
    work_.notify_one();
    quiet_.wait_until(lock, until, [&] { return settlements_.idle(); });

    housekeeper_may_end_ = true;
    work_.notify_one();
    lock.unlock();
    housekeeper_.join();
    lock.lock();
    const auto calls = calls_;
    lock.unlock();
    for (const auto& call : calls)
        if (call)
            call->cancel();
    lock.lock();
    quiet_.wait(lock, [&] { return !calls_[0] && !calls_[1] && streams_alive_ == 0; });
}

PubSubStats Session::stats() const {
    const Lock lock(mutex_);
    PubSubStats stats = stats_;
    stats.leased = leases_.size();
    stats.waiting = waiting_.size();
    return stats;
}

}  // namespace inbox::pubsub
