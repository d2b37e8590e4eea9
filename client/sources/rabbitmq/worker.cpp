#include "rabbitmq/worker.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "core/late.hpp"
#include "core/text.hpp"
#include "inbox/error.hpp"
#include "message/decode.hpp"

namespace inbox::rabbitmq {

using outbox::AmqpConnection;
using outbox::Micros;
using std::chrono::milliseconds;

// After this many refusals in a row the source fails.
static constexpr int max_refusals = 3;
// RabbitMQ always sends the whole chunk of a stream.
static constexpr std::size_t max_chunk = 65'535;
// If this many messages of a stream were read from its position on, the source asks for no more.
static constexpr std::size_t max_read_ahead = 50'000;
// A server that sends but does not read must not make acknowledgements pile up.
static constexpr std::size_t max_unsent = 1024 * 1024;

static constexpr const char* created_again =
    "; was it created again? inbox.reset_offset() sets where to begin";

static Time time_of_day(const outbox::Clock& clock) {
    return Time(std::chrono::microseconds(clock.unix_now()));
}

Worker::Worker(Setup setup)
    : setup_(std::move(setup)),
      instance_(std::to_string(outbox::random_seed())),
      offsets_(setup_.subscription),
      channel_(setup_.queue, setup_.prefetch, setup_.max_message_size),
      pauses_(setup_.retry_base, setup_.retry_max, outbox::random_seed()) {
    if (setup_.config.password != setup_.config.user)  // guest
        keep_secret(setup_.config.password);
}

Worker::~Worker() {
    close(milliseconds(0));
}

// ---------------------------------------------------------------------------------------------
// For other threads
// ---------------------------------------------------------------------------------------------

void Worker::starts() {
    begin_claims();
    is_known_ = wants_restart_ = false;
    stage_ = Stage::disconnected;
    connect_at_ = 0;
    refusals_ = 0;
}

void Worker::settle(std::span<const Delivery> deliveries) {
    for (const Delivery& delivery : deliveries)
        if (claims_.is_out(delivery)) {
            stats_.acked++;
            if (setup_.is_stream)
                offsets_.apply(outbox::parse_integer(delivery.message_id).value_or(-1));
        }
    claims_.ack(deliveries);
}

void Worker::give_back(std::span<const Delivery> deliveries) {
    stats_.nacked += static_cast<std::uint64_t>(std::ranges::count_if(
        deliveries, [&](const Delivery& delivery) { return claims_.is_out(delivery); }));
    claims_.nack(deliveries);
    changed_.notify_all();
}

void Worker::forget_all() {
    begin_claims();
}

void Worker::load_position(const LoadPositions& load) {
    {
        const std::lock_guard lock(mutex_);
        if (!setup_.is_stream || phase_ != Phase::closed)
            return;
    }
    if (!load)
        throw SourceError("a stream needs a consumer with a database, for its offset", false);
    std::vector<Position> saved;
    try {
        saved = load({setup_.subscription});
    } catch (const DatabaseError& error) {
        throw SourceError(std::string("cannot load the offset: ") + error.what(), true);
    }
    const std::lock_guard lock(mutex_);
    if (saved.empty()) {
        begins_at_end_ = setup_.starts_at_end;
        if (begins_at_end_)
            offsets_.begin(time_of_day(clock_));
        return;
    }
    if (saved.front().message_id.empty()) {  // a time to begin at
        offsets_.load(saved.front().published_at, time_of_day(clock_));
        return;
    }
    const std::optional<std::int64_t> offset = outbox::parse_integer(saved.front().message_id);
    if (!offset || *offset < 0)
        throw SourceError("the saved offset \"" + outbox::printable(saved.front().message_id, 50) +
                              "\" is not a number",
                          false);
    offsets_.load(*offset, saved.front().published_at, Mark::parse(saved.front().incarnation));
}

std::vector<Position> Worker::positions(std::span<const Delivery* const> deliveries) {
    const std::lock_guard lock(mutex_);
    std::set<std::int64_t> applied;
    for (const Delivery* const delivery : deliveries)
        if (!claims_.is_stale(*delivery))
            applied.insert(outbox::parse_integer(delivery->message_id).value_or(-1));
    return offsets_.positions(applied);
}

std::vector<Position> Worker::moved_positions() {
    const std::lock_guard lock(mutex_);
    return offsets_.moved_positions();
}

std::vector<Gap> Worker::gaps() {
    const std::lock_guard lock(mutex_);
    return std::exchange(gaps_, {});
}

std::function<bool(const Delivery&)> Worker::recall() {
    const std::lock_guard lock(mutex_);
    if (!std::exchange(wants_recall_, false))
        return {};
    return [this](const Delivery& delivery) {
        const std::lock_guard lock(mutex_);
        return claims_.is_stale(delivery);
    };
}

void Worker::seek(Time to) {
    {
        const std::lock_guard lock(mutex_);
        begin_claims();
        offsets_.move(to);
        wants_restart_ = true;
    }
    wake();
}

RabbitmqStats Worker::stats() {
    const std::lock_guard lock(mutex_);
    RabbitmqStats stats = stats_;
    stats.waiting = claims_.waiting();
    stats.outstanding = claims_.outstanding();
    return stats;
}

// Needs the mutex.
void Worker::begin_claims() {
    claims_.begin_channel();
    offsets_.rewind();
    stats_.is_active = false;
    wants_recall_ = true;
}

// ---------------------------------------------------------------------------------------------
// The thread
// ---------------------------------------------------------------------------------------------

int Worker::prepare() {
    connection_.emplace(setup_.config, clock_);
    return connection_->descriptor();
}

void Worker::clean_up() noexcept {
    channel_.forget();
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
        ends = phase_ == Phase::closing && (stage_ == Stage::disconnected || now >= close_by_);
        if (ends && stage_ != Stage::disconnected) {
            note(Level::warning, setup_.subscription +
                                     ": the server has not confirmed the end; the last "
                                     "acknowledgements may be lost");
            disconnect(now);
        }
    }
    tell();
    if (!ends)
        wait(std::min(until, connection_->deadline()));
    return !ends;
}

void Worker::step_connection(Micros now) {
    if (stage_ == Stage::disconnected)
        return;
    connection_->step(now);
    while (const std::optional<outbox::Frame> frame = connection_->next())
        channel_.take(*connection_, *frame, arrived_);
}

// Enters what has arrived, and does what can be done. Returns when there will be more to do.
Micros Worker::work(Micros now) {
    if (std::exchange(wants_restart_, false) && stage_ != Stage::disconnected) {
        disconnect(now);
        connect_at_ = now;
    }
    take_arrived(now);
    if (stage_ != Stage::disconnected && connection_->state() == AmqpConnection::State::closed)
        lost(connection_->failure(), connection_->scope() == outbox::Scope::destination, now);
    if (stage_ != Stage::disconnected && channel_.end())
        ended(*channel_.end(), now);
    if (phase_ == Phase::closing && stage_ == Stage::working) {
        send_acks();
        channel_.close(*connection_);
        stage_ = Stage::closing;
    }
    if (phase_ == Phase::closing && stage_ != Stage::disconnected &&
        (stage_ != Stage::closing || channel_.state() == Channel::State::closed))
        disconnect(now);
    if (phase_ == Phase::open && !failure_ && stage_ == Stage::disconnected && now >= connect_at_)
        connect();
    if (stage_ == Stage::connecting && connection_->state() == AmqpConnection::State::ready)
        open_channel(now);
    if (stage_ == Stage::opening && channel_.state() == Channel::State::consuming &&
        !asked_offset_ && !looks_at_end_) {
        stage_ = Stage::working;
        answer_due_ = outbox::never;
        begins_at_end_ = false;
        is_known_ = has_worked_ = true;
        refusals_ = 0;
        pauses_.reset();
        changed_.notify_all();
    }
    if (stage_ == Stage::opening && now >= answer_due_)
        asks_too_long(now);
    if (stage_ == Stage::working)
        send_acks();
    if (stage_ == Stage::disconnected)
        return phase_ == Phase::open && !failure_ ? connect_at_ : outbox::never;
    return answer_due_;
}

void Worker::connect() {
    stage_ = Stage::connecting;
    stats_.connections++;
    connection_->open();
}

void Worker::disconnect(Micros now) {
    connection_->close();
    channel_.forget();
    arrived_.clear();
    if (stage_ != Stage::disconnected && stage_ != Stage::connecting)
        begin_claims();  // there was a channel
    stage_ = Stage::disconnected;
    answer_due_ = outbox::never;
    connect_at_ = now + pauses_.next();
}

void Worker::lost(const std::string& why, bool is_refusal, Micros now) {
    const std::string text = setup_.subscription + ": " + outbox::printable(why, 500);
    disconnect(now);
    refusals_ = is_refusal ? refusals_ + 1 : 0;
    if (phase_ != Phase::open || failure_)
        return;
    if (!is_known_ || refusals_ >= max_refusals) {
        is_known_ = false;
        fail(text, has_worked_ || !is_refusal);
    } else {
        note(Level::warning, text);
    }
}

void Worker::ended(const Channel::End& end, Micros now) {
    const std::string why = end.why;
    if (end.kind == Channel::End::Kind::too_large)
        give_up(why, now);
    else
        lost(why, end.kind == Channel::End::Kind::refused, now);
}

// Another attempt would end the same way.
void Worker::give_up(const std::string& why, Micros now) {
    disconnect(now);
    is_known_ = false;
    fail(setup_.subscription + ": " + why, false);
}

void Worker::open_channel(Micros now) {
    stage_ = Stage::opening;
    answer_due_ = now + setup_.config.transport.request_timeout;
    asked_offset_.reset();
    std::optional<Begin> begin;
    if (setup_.is_stream && looks_at_end_)
        begin = {.at_last = true};
    else if (setup_.is_stream && begins_at_end_)
        begin = {.at_end = true};
    else if (setup_.is_stream)
        begin = {.offset = offsets_.position(), .time = offsets_.time()};
    seen_end_.reset();
    // Asks for the message before the position, because it must be there if this is the same
    // stream. In another stream, RabbitMQ would wait silently until it has grown up to the offset.
    if (begin && begin->offset && *begin->offset > 0)
        asked_offset_ = --*begin->offset;
    channel_.open(*connection_, begin);
}

// ---------------------------------------------------------------------------------------------
// A stream that was made again
// ---------------------------------------------------------------------------------------------

void Worker::asks_too_long(Micros now) {
    const bool has_looked = std::exchange(looks_at_end_, asked_offset_.has_value());
    const std::optional<std::int64_t> end = seen_end_, position = offsets_.position();
    if (has_looked && end && position && *end + 1 < *position)
        return recreated("the last message of the stream has offset " + std::to_string(*end) +
                             ", and offset " + std::to_string(*position) + " should come next",
                         now);
    lost(outbox::no_answer_within(setup_.config.transport.request_timeout) +
             (asked_offset_ || has_looked ? " for a message before the saved offset of the stream" +
                                                std::string(created_again)
                                          : ""),
         false, now);
}

void Worker::recreated(const std::string& why, Micros now) {
    const std::string text = "the stream was made again or cut back: " + why;
    looks_at_end_ = false;
    if (setup_.on_recreated == OnRecreated::stop) {
        gaps_.push_back({.subscription = setup_.subscription, .why = text, .recreated = true});
        give_up(text + created_again, now);
        return;
    }
    disconnect(now);
    connect_at_ = now;
    const std::size_t dropped = offsets_.begin_again();
    const std::string more =
        dropped > 0 ? "; " + std::to_string(dropped) + " messages of the old one were not applied"
                    : "";
    note(Level::warning,
         setup_.subscription + ": " + text + more + "; the source begins with its first message");
    gaps_.push_back({.subscription = setup_.subscription,
                     .why = text + more,
                     .skipped = dropped,
                     .recreated = true});
}

// Compares the first message with what was asked for. Returns false if the connection was given up.
bool Worker::follows(std::int64_t offset, const std::optional<Time>& stamp,
                     const std::string& event_id, Micros now) {
    if (looks_at_end_) {
        seen_end_ = std::max(seen_end_.value_or(-1), offset);
        if (*seen_end_ + 1 < offsets_.position().value_or(0))
            return false;  // it is only looked at
        looks_at_end_ = false;
        lost("the server was slow to send the stream", false, now);
        connect_at_ = now;
        return false;
    }
    const std::optional<std::int64_t> asked = std::exchange(asked_offset_, {});
    if (!asked)
        return true;
    // If the stream is shorter than that and grows at this moment, RabbitMQ 3.10 may begin one or
    // two messages later. It does not do so twice, because the message is there then.
    if (offset > *asked && !std::exchange(has_asked_again_, true)) {
        disconnect(now);
        connect_at_ = now;
        return false;
    }
    has_asked_again_ = false;
    if (offset < *asked || (offset == *asked && !offsets_.is_mark(offset, event_id, stamp))) {
        recreated("offset " + std::to_string(offset) + " has another message than before", now);
        return false;
    }
    if (!offsets_.follows(offset)) {
        const std::int64_t next = *offsets_.position();
        const std::string text = std::to_string(offset - next) +
                                 " messages were deleted before they were applied, from offset " +
                                 std::to_string(next) + " on";
        note(Level::warning, setup_.subscription + ": " + text);
        gaps_.push_back({.subscription = setup_.subscription,
                         .why = text,
                         .skipped = static_cast<std::uint64_t>(offset - next)});
    }
    return true;
}

// ---------------------------------------------------------------------------------------------
// Messages
// ---------------------------------------------------------------------------------------------

void Worker::take_arrived(Micros now) {
    if (arrived_.empty() || stage_ == Stage::disconnected)
        return;
    const std::size_t most = setup_.prefetch + (setup_.is_stream ? max_chunk : 0);
    if (claims_.unacknowledged() + arrived_.size() > most) {
        lost("the server sent more messages than were asked for", false, now);
        return;
    }
    for (Message& message : std::exchange(arrived_, {})) {
        if (std::string why = unusable(message.envelope); !why.empty()) {
            give_up(why, now);
            return;
        }
        if (!enter(std::move(message), now) && stage_ == Stage::disconnected)
            return;
    }
    changed_.notify_all();
}

// Returns why the source cannot continue with such a message, or an empty text.
std::string Worker::unusable(const Envelope& envelope) const {
    if (!setup_.is_stream)
        return envelope.offset ? "the queue is a stream; set is_stream" : "";
    if (!envelope.offset || *envelope.offset < 0)
        return "the queue is not a stream; do not set is_stream";
    return "";
}

// Without an id, or with one that another sender gives as well, deduplication is wrong.
void Worker::warn_of_ids(const Envelope& envelope) {
    const bool is_ours =
        envelope.attributes.contains("event_id") || envelope.attributes.contains("ce-id");
    if (!is_ours && !envelope.offset && envelope.message_id.empty() &&
        !std::exchange(has_unnamed_, true))
        note(Level::warning, setup_.subscription +
                                 ": there are messages without a message_id; if the broker sends "
                                 "one of them again, it will be applied again");
    if (is_ours || !is_counted(envelope.message_id) || std::exchange(has_counted_, true))
        return;
    const bool is_completed = envelope.app_id.empty() && !setup_.counted_ids_are_unique;
    note(Level::warning,
         setup_.subscription + ": message_ids such as \"" +
             outbox::printable(envelope.message_id, 50) +
             "\" look as if their sender counts them; " +
             (is_completed
                  ? "without an app_id, the content and the timestamp of a message count as well"
                  : std::string("a message with an id that was used before") +
                        (envelope.app_id.empty() ? "" : " by the same app_id") +
                        " is taken for a duplicate and not applied"));
}

bool Worker::enter(Message message, Micros now) {
    const std::uint64_t tag = message.envelope.tag;
    const std::optional<std::int64_t> offset = message.envelope.offset;
    const std::optional<Time> stamp = message.envelope.stamp;
    stats_.received++;
    stats_.redelivered += message.envelope.redelivered;
    stats_.most_failed_deliveries =
        std::max(stats_.most_failed_deliveries, message.envelope.failed_deliveries);
    stats_.is_active = true;
    warn_of_ids(message.envelope);
    Delivery delivery = delivery_from(
        std::move(message), setup_.subscription,
        instance_ + '/' + std::to_string(claims_.channel()) + '/' + std::to_string(tag),
        time_of_day(clock_), setup_.counted_ids_are_unique);
    if (offset && !follows(*offset, stamp, delivery.event.id, now))
        return false;
    if (offset && !offsets_.read(*offset, delivery.published_at, delivery.event.id))
        claims_.add_settled(tag);
    else
        claims_.add(tag, std::move(delivery));
    return true;
}

void Worker::send_acks() {
    if (!claims_.has_acks() || connection_->unsent() > max_unsent ||
        offsets_.size() > max_read_ahead)
        return;
    for (const Claims::Ack& ack : claims_.take_acks())
        channel_.ack(*connection_, ack);
    connection_->flush();
}

}  // namespace inbox::rabbitmq
