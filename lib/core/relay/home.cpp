#include "core/relay/home.hpp"

#include <algorithm>
#include <utility>

namespace outbox {

// Rows made due in one call.
static constexpr std::int32_t hurried_at_once = 1000;

void Home::begun(calls::Begun&& begun) {
    retries_at_once_ = calls::max_retries;
    next_retry_ = 0;
    recorded_ = std::move(begun.recorded);
    paused_ = begun.paused;
    relay_.pipeline().hold_keys(std::move(begun.held_keys));
}

void Home::followed(calls::Begun&& followed) {
    paused_ = followed.paused;
    relay_.follow_resumes(followed.resumed);
    relay_.pipeline().hold_keys(std::move(followed.held_keys));
}

// -------------------------------------------------------------------------------------------------
// Calls
// -------------------------------------------------------------------------------------------------

calls::Call Home::call(Relay::Wish wish, const calls::Held& held,
                       const calls::Evaluation& evaluation) {
    switch (wish) {
        case Relay::Wish::recover:
            return calls::recover(held, relay_);
        case Relay::Wish::take_retries:
            return calls::retries(held, token_, relay_.hurries() ? hurried_at_once : 0,
                                  retries_at_once_, evaluation);
        case Relay::Wish::pause:
            return calls::pause(held, relay_.pipeline().gone());
        case Relay::Wish::note:
            return calls::note(held, *relay_.transactions().to_note());
        case Relay::Wish::consult:
            return calls::consult(held, relay_.question());
        case Relay::Wish::record:
            return calls::record(held, token_, relay_);
        case Relay::Wish::save:
        case Relay::Wish::read:
        case Relay::Wish::wait:
            break;
    }
    return calls::save(held, relay_);
}

std::optional<Error> Home::answered(Relay::Wish wish, sql::Rows&& rows) {
    switch (wish) {
        case Relay::Wish::recover:
            take_recovered(calls::begun_of(rows));
            break;
        case Relay::Wish::take_retries:
            take_retries(std::move(rows));
            break;
        case Relay::Wish::pause:
            take_paused();
            break;
        case Relay::Wish::note:
            relay_.noted();
            break;
        case Relay::Wish::consult:
            return take_answer(std::move(rows));
        case Relay::Wish::record:
            take_recorded(calls::recorded_of(rows));
            break;
        case Relay::Wish::save:  // if the cursor had to be on disk, it is
        case Relay::Wish::read:
        case Relay::Wish::wait:
            relay_.saved();
            break;
    }
    return std::nullopt;
}

void Home::busy(Relay::Wish wish) noexcept {
    if (wish == Relay::Wish::consult)
        relay_.consult_failed();
    relay_.cursor_is_busy();
}

bool Home::failed(Relay::Wish wish, bool took_too_long) noexcept {
    if (wish == Relay::Wish::consult)
        relay_.consult_failed();
    if (wish != Relay::Wish::take_retries || !took_too_long || retries_at_once_ == 1)
        return false;
    retries_at_once_ = std::max(retries_at_once_ / 16, 1);
    return true;
}

Micros Home::later(Micros pause) const noexcept {
    return pause == never ? never : clock_.now() + pause;
}

void Home::take_paused() {
    notices_.push_back({true, "is gone, and is paused: " + relay_.pipeline().gone(), "",
                        "outbox.resume() continues."});
    relay_.paused();
    paused_ = true;
}

void Home::take_recovered(calls::Begun&& found) {
    tell_duplicates(found);
    recorded_ = std::move(found.recorded);
    relay_.pipeline().hold_keys(std::move(found.held_keys));
    relay_.recovered();
}

void Home::take_recorded(const calls::Recorded& recorded) {
    for (const std::string& key : recorded.freed_keys)
        relay_.pipeline().free_key(key);
    for (const calls::Recorded::Refusal& refusal : recorded.refusals)
        tell_refusal(refusal);
    next_retry_ = later(recorded.next_retry);
    relay_.recorded(next_retry_);
}

void Home::take_retries(sql::Rows&& rows) {
    const calls::Retries retries = calls::retries_of(rows);
    if (relay_.hurries())
        relay_.hurried(retries.hurried < hurried_at_once);
    const std::size_t count = admit_retries(std::move(rows));
    for (const std::string& key : retries.freed_keys)
        relay_.pipeline().free_key(key);
    retries_at_once_ = std::min(2 * retries_at_once_, calls::max_retries);
    next_retry_ = later(retries.next_retry);
    relay_.retries_taken(count, next_retry_);
}

// The first row has no event.
std::size_t Home::admit_retries(sql::Rows&& answer) {
    sql::EventRows events;
    if (!events.start(std::move(answer)))
        return 0;
    const sql::Rows& rows = events.rows();
    const int attempts = rows.column("attempts"), key_failed = rows.column("key_failed");
    const int replayed = rows.column("replayed");
    Pipeline& pipeline = relay_.pipeline();
    EventBlock* block = nullptr;
    for (int row = 1; row < rows.size();) {
        if (block == nullptr)
            block = pipeline.take_block();
        const sql::EventRows::Copied copied = events.copy(row, *block);
        if (copied == sql::EventRows::Copied::block_is_full) {
            pipeline.admit_retries(std::exchange(block, nullptr));
            continue;  // with the same row
        }
        if (copied == sql::EventRows::Copied::yes) {
            Event& event = block->events().back();
            event.has_failed = rows.integer(row, attempts).value_or(0) > 0;
            event.key_failed = rows.boolean(row, key_failed);
            event.replayed = rows.boolean(row, replayed);
        }
        row++;
    }
    if (block != nullptr && block->empty())
        pipeline.put_back(block);
    else if (block != nullptr)
        pipeline.admit_retries(block);
    return static_cast<std::size_t>(std::max(rows.size() - 1, 0));
}

std::optional<Error> Home::take_answer(sql::Rows&& rows) {
    std::optional<EndpointAnswer> answer = calls::answer_of(std::move(rows));
    if (!answer) {
        relay_.consult_failed();
        return Error{ErrorKind::internal,
                     "an event for an endpoint lacks a value that every event has"};
    }
    relay_.consulted(std::move(*answer));
    return std::nullopt;
}

// -------------------------------------------------------------------------------------------------
// Notices
// -------------------------------------------------------------------------------------------------

void Home::tell_duplicates(const calls::Begun& found) {
    if (found.doubtful > 0)
        notices_.push_back(
            {true,
             "does not know any more whether it has " + std::to_string(found.doubtful) + " events",
             "They are delivered from the database's cursor on, and some may arrive "
             "twice.",
             "The offsets of the group \"pg_outbox." + identity_ +
                 "\" are gone: they expired, or were deleted."});
    if (found.unknown > 0)
        notices_.push_back({true,
                            "has " + std::to_string(found.unknown) +
                                " transactions that this database does not know of",
                            "The database has lost commits, as by a failover or a restored backup. "
                            "Events of these transactions may arrive twice.",
                            "Synchronous replication prevents this for failovers."});
}

// Tells only some of many refused events; outbox.delivery has them all.
void Home::tell_refusal(const calls::Recorded::Refusal& refusal) {
    const auto& records = relay_.pipeline().records();
    const auto record = std::find_if(records.begin(), records.end(), [&](const Record& one) {
        return one.kind == Record::Kind::refused && one.event->position == refusal.position;
    });
    LineBudget& budget = refusal.dead ? dead_letter_lines_ : refusal_lines_;
    if (record == records.end() || !budget.take(clock_.now()))
        return;
    std::string id;
    append_uuid(id, record->event->event_id);
    Notice notice{.is_warning = refusal.dead,
                  .detail = "Attempt " + std::to_string(refusal.attempts) + "; ordering key \"" +
                            std::string(record->event->ordering_key) +
                            "\"; lines left out before: " + std::to_string(budget.left_out()) +
                            '.'};
    if (refusal.dead) {
        notice.text = "refused event " + id + ", which is a dead letter now: " + record->error;
        notice.hint = "outbox.redrive() delivers it again, outbox.discard() gives it up.";
    } else {
        notice.text = "refused event " + id + ": " + record->error;
    }
    notices_.push_back(std::move(notice));
}

bool Home::look_at_condition() {
    const std::uint64_t failures = relay_.stats().failures;
    bool is_new = failures != std::exchange(failures_seen_, failures);
    if (relay_.line_is_due()) {
        tell_condition();
        is_new |=
            relay_.condition() == Condition::Kind::partly;  // perhaps without a failed attempt
    }
    return is_new;
}

void Home::tell_condition() {
    const Condition::Kind kind = relay_.condition();
    const std::uint64_t failures = relay_.stats().failures;
    const std::uint64_t attempts = failures - std::exchange(failures_told_, failures);
    const bool works = kind == Condition::Kind::works;
    notices_.push_back(
        {.is_warning = !works,
         .text = works ? "works again"
                       : (kind == Condition::Kind::throttled ? "asks for fewer requests: "
                          : kind == Condition::Kind::partly  ? "failed in part: "
                                                             : "failed: ") +
                             relay_.reason(),
         .detail = "Attempts that failed since the last line: " + std::to_string(attempts) +
                   "; changes: " + std::to_string(relay_.condition_log().changes()) + '.'});
}

}  // namespace outbox
