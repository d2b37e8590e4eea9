// The rows of outbox_internal.relay_endpoints() as the answer that a sink with endpoints gets.
#include <algorithm>
#include <cmath>
#include <utility>

#include "core/relay/calls.hpp"

namespace outbox::calls {

namespace {

// Longest pause before the sink asks again for an endpoint.
constexpr double max_pause = 3600;

class AnswerReader {
  public:
    // Rows of kinds that are not known, as of a later version, are ignored.
    std::optional<EndpointAnswer> read(Rows&& rows);

  private:
    void find_columns();
    bool read_row(int row);
    EndpointRow endpoint_at(int row) const;
    bool copy_event(int row);
    EndpointFetched& fetched_for(std::string_view endpoint);

    const Rows& rows() const noexcept { return events_.rows(); }
    std::string text(int row, int column) const { return std::string(rows().bytes(row, column)); }
    std::optional<Snapshot> snapshot_at(int row) const {
        return Snapshot::parse(rows().bytes(row, snapshot_));
    }

    sql::EventRows events_;
    int kind_ = -1, endpoint_ = -1, url_ = -1, topics_ = -1, secret_name_ = -1, paused_ = -1;
    int behind_ = -1, snapshot_ = -1, count_ = -1, due_in_ = -1, attempts_ = -1, xid_ = -1;
    EndpointAnswer answer_;
    bool open_ = false;  // the last of answer_.fetched may get more events
};

void AnswerReader::find_columns() {
    const std::pair<int*, const char*> columns[] = {
        {&kind_, "kind"},     {&endpoint_, "endpoint"},       {&url_, "url"},
        {&topics_, "topics"}, {&secret_name_, "secret_name"}, {&paused_, "paused"},
        {&behind_, "behind"}, {&snapshot_, "snapshot"},       {&count_, "count"},
        {&due_in_, "due_in"}, {&attempts_, "attempts"},       {&xid_, "xid"}};
    for (const auto& [column, name] : columns)
        *column = rows().column(name);
}

std::optional<EndpointAnswer> AnswerReader::read(Rows&& rows) {
    if (!events_.start(std::move(rows)))
        return std::nullopt;
    find_columns();
    for (int row = 0; row < events_.size(); row++)
        if (!read_row(row))
            return std::nullopt;
    return std::move(answer_);
}

EndpointFetched& AnswerReader::fetched_for(std::string_view endpoint) {
    if (!std::exchange(open_, true) || answer_.fetched.back().name != endpoint)
        answer_.fetched.emplace_back().name = endpoint;
    return answer_.fetched.back();
}

bool AnswerReader::copy_event(int row) {
    auto& blocks = answer_.blocks;
    if (blocks.empty())
        blocks.push_back(std::make_unique<EventBlock>());
    auto copied = events_.copy(row, *blocks.back());
    if (copied == sql::EventRows::Copied::block_is_full) {
        blocks.push_back(std::make_unique<EventBlock>());
        copied = events_.copy(row, *blocks.back());
    }
    return copied == sql::EventRows::Copied::yes;
}

EndpointRow AnswerReader::endpoint_at(int row) const {
    const bool behind = rows().boolean(row, behind_);
    return {.name = text(row, endpoint_),
            .url = text(row, url_),
            .topics = text(row, topics_),
            .secret_name = text(row, secret_name_),
            .changed_by = static_cast<std::uint64_t>(rows().bigint(row, xid_).value_or(0)),
            .paused = rows().boolean(row, paused_),
            .behind = behind,
            .wanted = !behind && rows().number(row, due_in_).has_value(),
            .since = snapshot_at(row)};
}

Micros due_of(std::optional<double> seconds_left) {
    if (!seconds_left || !std::isfinite(*seconds_left))
        return -1;
    return static_cast<Micros>(std::clamp(*seconds_left, 0.0, max_pause) * 1e6);
}

bool AnswerReader::read_row(int row) {
    const std::string_view kind = rows().bytes(row, kind_);
    const std::string_view endpoint = rows().bytes(row, endpoint_);
    if (kind == "known") {
        answer_.known = text(row, snapshot_);
        answer_.count = static_cast<std::size_t>(
            std::max<std::int64_t>(rows().bigint(row, count_).value_or(0), 0));
    } else if (kind == "endpoint") {
        answer_.changed.push_back(endpoint_at(row));
    } else if (kind == "event") {
        if (!copy_event(row))
            return false;
        EndpointFetched& fetched = fetched_for(endpoint);
        fetched.events.push_back(&answer_.blocks.back()->events().back());
        fetched.attempts.push_back(rows().integer(row, attempts_).value_or(0));
    } else if (kind == "fetched") {
        EndpointFetched& fetched = fetched_for(endpoint);
        fetched.caught_up = snapshot_at(row);
        fetched.due_in = due_of(rows().number(row, due_in_));
        open_ = false;
    }
    return true;
}

}  // namespace

std::optional<EndpointAnswer> answer_of(Rows rows) {
    return AnswerReader().read(std::move(rows));
}

}  // namespace outbox::calls
