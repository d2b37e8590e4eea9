// Applies the answers of the database.
#include <algorithm>

#include "sinks/http/endpoint_url.hpp"
#include "sinks/http/endpoints_sink.hpp"

namespace outbox {

// Nothing is due for an endpoint until an operator acts. look_again() tells the sink at once. This
// is the pause in case it does not.
static constexpr Micros without_operator = seconds(30);
// Least time between two fetches for an endpoint of which only the row has changed.
static constexpr Micros between_rows = seconds(1);
// A relay inside the server stands still while it asks. So questions have a twentieth of the time,
// as long as there are requests under way, and none waits for longer than this.
static constexpr Micros rests_per_question = 19;
static constexpr Micros max_rest = milliseconds(250);
// The table changes while it is listed.
static constexpr Micros list_again = milliseconds(100);

void EndpointsSink::answered(EndpointAnswer&& answer) {
    const Micros now = clock_.now();
    under_way_ = in_doubt_ = false;
    knows_endpoints_ = true;
    moves_ = true;
    not_before_ = 0;
    if (requests_.in_flight() > 0)
        not_before_ = now + std::min(rests_per_question * (now - asked_at_), max_rest);
    Rows rows;
    for (const EndpointRow& row : answer.changed)
        rows.emplace(row.name, &row);
    for (EndpointLane* lane : told_)
        was_told(*lane, rows);
    if (listed_)
        remove_missing(rows);
    std::string first_left_out;
    for (EndpointRow& row : answer.changed)
        if (!take_row(row, now) && first_left_out.empty())
            first_left_out = row.name;
    if (listed_ || !first_left_out.empty())
        count_left_out(answer.count, first_left_out);
    take_fetched(answer, now);
    end_indecision(now);
    for (EndpointLane* lane : told_)
        attend(*lane, now);
    told_.clear();
    sweep();
    known_ = std::move(answer.known);
    const bool is_whole = listed_ || answer.changed.size() <= max_endpoints;
    if (is_whole && answer.count == directory_.size() + left_out_)
        return;
    known_.clear();
    looks_ = true;
    if (listed_)
        not_before_ = now + list_again;
}

// -------------------------------------------------------------------------------------------------
// Facts that were told
// -------------------------------------------------------------------------------------------------

template <class Item>
static void remove_first(std::vector<Item>& items, std::size_t& count) {
    items.erase(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(count));
    count = 0;
}

void EndpointsSink::was_told(EndpointLane& lane, const Rows& rows) {
    lane.asked_health = false;
    if (std::exchange(lane.asked_gone, false))
        lane.gone.reset();  // its row says whether it is paused
    remove_first(lane.settled, lane.asked_settled);
    remove_first(lane.refused, lane.asked_refused);
    if (lane.mode == LaneMode::leaving) {
        decide(lane);
        const auto row = rows.find(lane.row.name);
        if (row != rows.end() && !row->second->behind) {
            lane.mode = LaneMode::live;
            std::erase_if(lane.copies, [&](const EndpointCopy& copy) {
                if (copy.refused)
                    copies_.release(copy);
                return copy.refused;
            });
        } else {
            is_behind(lane);
            lane.row.wanted = false;
        }
    }
    if (!lane.settled.empty() || !lane.refused.empty() || lane.gone || lane.health_changed)
        to_tell(lane);
}

void EndpointsSink::is_behind(EndpointLane& lane) {
    release_copies(lane);
    lane.mode = LaneMode::behind;
    lane.fetch_at = 0;
}

void EndpointsSink::is_live(EndpointLane& lane) {
    release_copies(lane);
    lane.mode = LaneMode::live;
    lane.settled.clear();
    lane.refused.clear();
    decide(lane);
}

// -------------------------------------------------------------------------------------------------
// Rows of endpoints
// -------------------------------------------------------------------------------------------------

// Returns false if there is no room for the endpoint. What commits before there is room is not kept for
// it.
bool EndpointsSink::take_row(EndpointRow& row, Micros now) {
    EndpointLane* lane = directory_.find(row.name);
    const bool fits = directory_.has_room_for(row);
    if (fits && lane != nullptr)
        take_row(*lane, std::move(row), now);
    else if (fits)
        add_lane(std::move(row));
    else if (lane != nullptr)
        remove_lane(*lane);
    return fits;
}

// The database lists one endpoint more than there can be room for, and counts the others. Their names
// are not for all roles that see the error.
void EndpointsSink::count_left_out(std::size_t all, const std::string& first) {
    left_out_ = first.empty() ? 0 : all - std::min(all, directory_.size());
    left_out_error_.clear();
    if (left_out_ > 0)
        left_out_error_ = std::to_string(left_out_) +
                          " endpoints get nothing: a relay keeps at most " +
                          std::to_string(max_endpoints) + " endpoints of " +
                          std::to_string(EndpointDirectory::max_bytes) + " bytes";
}

void EndpointsSink::add_lane(EndpointRow&& row) {
    auto lane = std::make_unique<EndpointLane>(
        std::move(row), EndpointHealth(options_.retry_base, options_.retry_max, random_seed()));
    lane->unusable = wrong_endpoint_url(lane->row.url);
    EndpointLane& added = directory_.add(std::move(lane));
    if (added.row.behind)
        added.mode = LaneMode::behind;
    else
        decide(added);
    attend(added, clock_.now());
}

void EndpointsSink::take_row(EndpointLane& lane, EndpointRow&& row, Micros now) {
    if (row.secret_name != lane.row.secret_name)
        lane.signer.reset();
    const bool moved = row.url != lane.row.url;
    const bool touched = row.changed_by != lane.row.changed_by;
    const bool selects_others = row.topics != lane.row.topics;
    const bool has_more = row.since != lane.row.since;
    directory_.update(lane, std::move(row));
    if (has_more)
        drop_what_it_has(lane);
    if (selects_others)
        drop_unwanted(lane);
    lane.unusable = wrong_endpoint_url(lane.row.url);
    // Its owner may have mended it, or an operator wants it to be tried.
    const bool starts_anew = moved || (touched && !lane.is_paused());
    if (starts_anew)
        start_anew(lane);
    has_changed(lane, starts_anew, now);
    attend(lane, now);
}

void EndpointsSink::start_anew(EndpointLane& lane) {
    lane.health.forget();
    lane.health_changed = lane.failure_told;
    if (lane.health_changed)
        to_tell(lane);
}

void EndpointsSink::forget_waits() {
    const Micros now = clock_.now();
    directory_.for_each([&](EndpointLane& lane) {
        if (!lane.health.is_failing() || lane.is_paused())
            return;
        start_anew(lane);
        attend(lane, now);
    });
}

bool EndpointsSink::wants(const EndpointLane& lane, const Event& event) {
    const EndpointDirectory::Lanes& lanes = directory_.of_topic(event.topic);
    return std::find(lanes.begin(), lanes.end(), &lane) != lanes.end();
}

// The endpoint has left topics. What was fetched is fetched again: the database settles what is not
// wanted any more.
void EndpointsSink::drop_unwanted(EndpointLane& lane) {
    const auto release_if_unwanted = [&](const EndpointCopy& copy) {
        const bool drops = !copy.in_flight && !copy.refused && !wants(lane, *copy.event);
        if (drops)
            copies_.release(copy);
        return drops;
    };
    std::erase_if(lane.kept, release_if_unwanted);
    if (lane.mode == LaneMode::live)
        lane.unsent -= std::erase_if(lane.copies, release_if_unwanted);
    else
        drop_fetched(lane);
}

// It may be another endpoint of the same name, which must not get what was for its predecessor.
void EndpointsSink::drop_what_it_has(EndpointLane& lane) {
    if (lane.mode != LaneMode::live || !lane.row.since)
        return;
    std::erase_if(lane.copies, [&](const EndpointCopy& copy) {
        const bool has =
            !copy.in_flight && !copy.event->retry && lane.row.since->finished(copy.event->xid);
        if (has) {
            lane.unsent -= !copy.refused;
            copies_.release(copy);
        }
        return has;
    });
}

void EndpointsSink::has_changed(EndpointLane& lane, bool starts_anew, Micros now) {
    if (lane.mode == LaneMode::live && lane.row.behind) {
        // A row of this name was inserted again, and gets what it needs from the log.
        is_behind(lane);
    } else if (lane.mode == LaneMode::behind) {
        if (!lane.row.behind) {
            is_live(lane);
            return;
        }
        if (lane.is_paused())
            release_copies(lane);
        const Micros soon = starts_anew ? now : std::max(now, lane.fetched_at + between_rows);
        lane.fetch_at = std::min(lane.fetch_at, soon);
    }
}

void EndpointsSink::remove_missing(const Rows& rows) {
    std::vector<EndpointLane*> missing;
    directory_.for_each([&](EndpointLane& lane) {
        if (!rows.contains(lane.row.name))
            missing.push_back(&lane);
    });
    for (EndpointLane* lane : missing)
        remove_lane(*lane);
}

void EndpointsSink::remove_lane(EndpointLane& lane) {
    release_copies(lane);
    for (const EndpointCopy& copy : lane.kept)
        copies_.release(copy);
    lane.kept.clear();
    turns_.remove(lane);
    lane.removed = true;
    removed_.push_back(directory_.remove(lane.row.name));
}

void EndpointsSink::sweep() {
    std::erase_if(removed_, [](const std::unique_ptr<EndpointLane>& lane) {
        return lane->in_flight.empty() && !lane->to_tell && !lane->to_fetch;
    });
}

// -------------------------------------------------------------------------------------------------
// Fetched events
// -------------------------------------------------------------------------------------------------

void EndpointsSink::take_fetched(EndpointAnswer& answer, Micros now) {
    EventSource& source = copies_.add(std::move(answer.blocks));
    for (EndpointFetched& fetched : answer.fetched) {
        EndpointLane* lane = directory_.find(fetched.name);
        if (lane != nullptr && lane->mode == LaneMode::fetching)
            take_fetched(*lane, fetched, source, now);
    }
    copies_.completed(source);
    for (EndpointLane* lane : fetched_) {
        if (lane->mode == LaneMode::fetching) {  // its row was just deleted
            lane->mode = LaneMode::behind;
            lane->fetch_at = now + between_rows;
            decide(*lane);
        }
        attend(*lane, now);
    }
    fetched_.clear();
}

void EndpointsSink::take_fetched(EndpointLane& lane, EndpointFetched& fetched, EventSource& source,
                                 Micros now) {
    lane.fetched_at = now;
    if (fetched.caught_up) {
        lane.row.since = std::move(fetched.caught_up);
        is_live(lane);
        return;
    }
    lane.mode = LaneMode::behind;
    decide(lane);
    if (fetched.events.empty()) {
        lane.fetch_at = now + (fetched.due_in < 0 ? without_operator : fetched.due_in);
        return;
    }
    lane.fetch_at = 0;
    if (lane.is_paused())
        return;
    for (Event* event : fetched.events)
        lane.copies.push_back(copies_.copy(*event, source, now));
    lane.unsent = lane.copies.size();
}

// -------------------------------------------------------------------------------------------------
// Undecided events
// -------------------------------------------------------------------------------------------------

void EndpointsSink::decide(EndpointLane& lane) {
    if (!std::exchange(lane.decided, true))
        decided_.push_back(&lane);
}

void EndpointsSink::end_indecision(Micros now) {
    for (EndpointLane* lane : decided_)
        if (lane->mode == LaneMode::live)
            send_kept(*lane, now);
    for (std::size_t i = 0; i < undecided_.size(); i++)
        for (EndpointLane* lane : directory_.of_topic(undecided_[i].event->topic))
            if (lane->decided && i >= lane->undecided_from)
                offer(*lane, *undecided_[i].event, *undecided_[i].source, now);
    undecided_.clear();
    for (EventSource* source : uncertain_)
        copies_.completed(*source);
    uncertain_.clear();
    for (EndpointLane* lane : decided_) {
        lane->decided = false;
        lane->undecided_from = 0;
        attend(*lane, now);
    }
    decided_.clear();
}

void EndpointsSink::send_kept(EndpointLane& lane, Micros now) {
    for (EndpointCopy& copy : lane.kept) {
        copy.queued_at = lane.own_time(now);
        lane.copies.push_back(copy);
        lane.unsent++;
    }
    lane.kept.clear();
}

}  // namespace outbox
