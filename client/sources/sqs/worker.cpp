#include "sqs/worker.hpp"

#include <algorithm>
#include <memory>

#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/sqs_protocol.hpp"
#include "net/sha256.hpp"
#include "sqs/delivery.hpp"
#include "sqs/protocol.hpp"

namespace inbox::sqs {

using outbox::Micros;
using std::chrono::microseconds;
using std::chrono::milliseconds;

// Limit of delete and visibility requests under way.
static constexpr std::size_t max_changes = 8;
// After this many refusals of polls in a row the source fails.
static constexpr int max_refusals = 3;

static Micros micros(microseconds time) {
    return time.count();
}

Worker::Worker(Place place, Times times, std::size_t pollers)
    : place_(std::move(place)),
      times_(times),
      pollers_(pollers),
      claims_(place_.fifo, micros(times.visibility)),
      queue_url_(place_.queue_url),
      poll_pauses_(micros(times.retry_base), micros(times.retry_max), outbox::random_seed()),
      change_pauses_(micros(times.retry_base), micros(times.retry_max), outbox::random_seed()) {
    keep_secret(place_.aws.secret_access_key);
    keep_secret(place_.aws.session_token);
}

Worker::~Worker() {
    close(milliseconds(0));
}

// ---------------------------------------------------------------------------------------------
// For other threads
// ---------------------------------------------------------------------------------------------

// Messages stay claimed, because claims do not depend on a connection.
void Worker::starts() {
    poll_at_ = change_at_ = 0;
    refusals_ = 0;
}

void Worker::settle(std::span<const Delivery> deliveries) {
    claims_.ack(deliveries, clock_.now());
}

void Worker::give_back(std::span<const Delivery> deliveries) {
    claims_.nack(deliveries, clock_.now());
}

void Worker::forget_all() {
    claims_ = Claims(place_.fifo, micros(times_.visibility));
}

// ---------------------------------------------------------------------------------------------
// The thread
// ---------------------------------------------------------------------------------------------

int Worker::prepare() {
    service_.emplace(place_.aws, place_.transport, clock_, micros(times_.poll));
    return service_->descriptor();
}

// Returns true if the closing thread has nothing left to settle, or no time.
bool Worker::may_end(Micros now) {
    service_->drop_polls();
    if (!claims_.is_settled() && now < close_by_)
        return false;
    if (!claims_.is_settled())
        note(Level::warning,
             std::to_string(claims_.unsettled()) + " messages could not be settled before the end");
    return true;
}

bool Worker::turn() {
    std::optional<Micros> until;
    {
        const std::lock_guard lock(mutex_);
        const Micros now = clock_.now();
        if (phase_ != Phase::closing || !may_end(now))
            until = std::min({send_changes(now), send_polls(now), close_by_});
    }
    tell();
    if (!until)
        return false;
    wait(std::min(*until, service_->deadline()));
    for (const auto& request : service_->step(clock_.now())) {
        const std::lock_guard lock(mutex_);
        finish(*request, clock_.now());
    }
    return true;
}

// These two functions send the requests that can be sent, and return when there will be more. An
// answer may make more possible at any time.
Micros Worker::send_changes(Micros now) {
    if (claims_.deadline() > now && claims_.is_settled())
        return claims_.deadline();
    if (now < change_at_)
        return change_at_;
    while (service_->under_way(Request::Kind::change) < max_changes) {
        if (!has_keys(now))
            return now < change_at_ ? change_at_ : outbox::never;
        std::optional<Claims::Batch> batch = claims_.next(now);
        if (!batch)
            return claims_.deadline();
        change(std::move(*batch));
    }
    return outbox::never;
}

Micros Worker::send_polls(Micros now) {
    while (wants_to_receive()) {
        if (now < poll_at_)
            return poll_at_;
        if (!has_keys(now))
            return outbox::never;
        queue_url_.empty() ? look_up() : poll();
    }
    return outbox::never;
}

bool Worker::wants_to_receive() const {
    if (phase_ != Phase::open || failure_)
        return false;
    if (queue_url_.empty())
        return service_->under_way(Request::Kind::look_up) == 0;
    const std::size_t coming =
        (service_->under_way(Request::Kind::poll) + 1) * max_per_request;  // with one more poll
    return claims_.buffered() + coming <= pollers_ * max_per_request;
}

bool Worker::has_keys(Micros now) {
    switch (service_->need_keys(now)) {
        case outbox::Credentials::State::ready:
            return true;
        case outbox::Credentials::State::pending:
            return false;
        case outbox::Credentials::State::failed:
            break;
    }
    change_at_ = now + change_pauses_.next();
    fail(service_->keys_error(), true);
    return false;
}

void Worker::look_up() {
    auto request = std::make_unique<Request>();
    request->kind = Request::Kind::look_up;
    request->content.buffer = queue_url_request(place_.queue, place_.account);
    service_->send(std::move(request), "GetQueueUrl");
}

static std::string new_attempt_id() {
    const std::uint64_t number[] = {outbox::random_seed(), outbox::random_seed()};
    std::string id;
    outbox::append_hex(id, {reinterpret_cast<const unsigned char*>(number), sizeof number});
    return id;
}

// If the answer to a poll was lost, a FIFO queue gives the same messages to a poll with the same
// attempt id. Otherwise their groups would wait until the messages are visible again.
void Worker::poll() {
    auto request = std::make_unique<Request>();
    request->kind = Request::Kind::poll;
    if (place_.fifo && !lost_attempts_.empty()) {
        request->attempt_id = std::move(lost_attempts_.back());
        lost_attempts_.pop_back();
    } else if (place_.fifo) {
        request->attempt_id = new_attempt_id();
    }
    request->content.buffer = receive_request({.queue_url = queue_url_,
                                               .wait = times_.poll,
                                               .visibility = times_.visibility,
                                               .attempt_id = request->attempt_id});
    service_->send(std::move(request), "ReceiveMessage");
}

void Worker::change(Claims::Batch batch) {
    const bool removes = batch.change == Claims::Change::remove;
    const auto visibility =
        batch.change == Claims::Change::extend ? times_.visibility : std::chrono::seconds(0);
    auto request = std::make_unique<Request>();
    request->kind = Request::Kind::change;
    request->content.buffer = removes ? delete_request(queue_url_, batch.handles)
                                      : visibility_request(queue_url_, batch.handles, visibility);
    request->batch = std::move(batch);
    service_->send(std::move(request),
                   removes ? "DeleteMessageBatch" : "ChangeMessageVisibilityBatch");
}

// ---------------------------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------------------------

void Worker::finish(const Request& request, Micros now) {
    switch (request.kind) {
        case Request::Kind::look_up:
            take_queue_url(request);
            break;
        case Request::Kind::poll:
            if (!take_messages(request, now))
                poll_failed(request, now);
            break;
        case Request::Kind::change:
            if (!take_answers(request, now))
                change_failed(request, now);
            break;
    }
}

void Worker::take_queue_url(const Request& request) {
    if (request.status == 200)
        queue_url_ = outbox::parse_sqs_queue_url(request.body);
    if (queue_url_.empty()) {
        const Service::Failure failure = service_->failure_of(request);
        fail("cannot find queue \"" + place_.queue + "\": " + failure.text,
             has_worked_ || !failure.refused);
    }
    changed_.notify_all();
}

bool Worker::take_messages(const Request& request, Micros now) {
    std::optional<std::vector<Message>> messages;
    if (request.status == 200)
        messages = parse_messages(request.body);
    if (!messages)
        return false;
    std::vector<Delivery> deliveries;
    for (Message& message : *messages)
        deliveries.push_back(
            delivery_from(std::move(message), place_.subscription, place_.queue, place_.fifo));
    claims_.add(std::move(deliveries), now);
    has_worked_ = true;
    refusals_ = 0;
    poll_pauses_.reset();
    if (!messages->empty())
        changed_.notify_all();
    return true;
}

void Worker::poll_failed(const Request& request, Micros now) {
    const Service::Failure failure = service_->failure_of(request);
    const std::string text = "cannot receive from queue \"" + place_.queue + "\": " + failure.text;
    if (request.status == 0 && request.reached && place_.fifo)
        lost_attempts_.push_back(request.attempt_id);
    if (now < poll_at_)  // another poll failed at the same time
        return;
    poll_at_ = now + std::max(poll_pauses_.next(), failure.retry_after);
    refusals_ = failure.refused ? refusals_ + 1 : 0;
    if (refusals_ < max_refusals)
        note(Level::warning, text);
    else
        fail(text, has_worked_);
}

static const char* what_was_lost(Claims::Change change) {
    switch (change) {
        case Claims::Change::remove:
            return " messages could not be deleted, and will come again";
        case Claims::Change::release:
            return " messages could not be given back, and will come again later";
        case Claims::Change::extend:
            break;
    }
    return " messages were not settled in time, and will come again";
}

bool Worker::take_answers(const Request& request, Micros now) {
    std::optional<outbox::BatchAnswer> entries;
    if (request.status == 200)
        entries = outbox::parse_sqs_answer(request.body, request.batch.handles.size());
    if (!entries)
        return false;
    std::vector<Claims::Answer> answers;
    std::string why;
    bool any_failed = false;
    for (const outbox::EntryAnswer& entry : *entries) {
        const bool is_done = entry.state == outbox::EntryAnswer::State::taken;
        const bool is_lost = !is_done && service_->is_final(entry.failure);
        answers.push_back(is_done   ? Claims::Answer::done
                          : is_lost ? Claims::Answer::lost
                                    : Claims::Answer::failed);
        any_failed = any_failed || (!is_done && !is_lost);
        if (!is_done && why.empty())
            why = outbox::explain(entry.failure);
    }
    const std::size_t lost = claims_.settle(request.batch, answers, now);
    outbox::conceal_secrets(request, why);
    if (lost > 0)
        note(Level::warning,
             std::to_string(lost) + what_was_lost(request.batch.change) + ": " + why);
    if (any_failed)
        change_at_ = now + change_pauses_.next();
    else
        change_pauses_.reset();
    return true;
}

void Worker::change_failed(const Request& request, Micros now) {
    const Service::Failure failure = service_->failure_of(request);
    const std::size_t lost = claims_.settle(request.batch, {}, now);
    if (now >= change_at_)
        change_at_ = now + std::max(change_pauses_.next(), failure.retry_after);
    note(Level::warning,
         "cannot settle messages of queue \"" + place_.queue + "\": " + failure.text +
             (lost > 0 ? "; " + std::to_string(lost) + what_was_lost(request.batch.change) : ""));
}

}  // namespace inbox::sqs
