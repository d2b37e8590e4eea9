#include "kafka/session.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <system_error>

#include "core/signals.hpp"
#include "core/text.hpp"
#include "kafka/record.hpp"

namespace inbox::kafka {

using std::chrono::milliseconds;
using std::chrono::seconds;

// Records that wait for receive(), in addition to those in the library's queue.
static constexpr std::size_t max_waiting = 1000;
static constexpr std::size_t max_waiting_bytes = 4 << 20;
static constexpr std::size_t records_at_once = 32;
// The thread sleeps at most this long.
static constexpr milliseconds max_sleep{500};
static constexpr milliseconds max_question{10'000};
// In a rebalance a commit waits for its end, but at most this long.
static constexpr seconds max_rebalance{10};
// A lasting error is logged this often.
static constexpr seconds between_warnings{30};
// Longest wait for the broker of a partition that is astray.
static constexpr milliseconds max_look{1000};
// The source looks this often whether records that have come are of the same topic, and whether the
// topics from which none comes are the same.
static constexpr seconds between_looks{1}, between_idle_looks{10};
static constexpr seconds between_doubts{60};
// The library needs about 2 kB for each partition that it is to read.
static constexpr std::size_t max_partitions = 50'000;

static List new_list(std::size_t size) {
    return List(rd_kafka_topic_partition_list_new(static_cast<int>(size)));
}

static List copy_of(const rd_kafka_topic_partition_list_t* list) {
    return List(rd_kafka_topic_partition_list_copy(list));
}

static std::span<rd_kafka_topic_partition_t> elements(const rd_kafka_topic_partition_list_t& list) {
    return {list.elems, static_cast<std::size_t>(list.cnt)};
}

static Place place_of(const rd_kafka_topic_partition_t& partition) {
    return {partition.topic, partition.partition};
}

static List list_of(const std::vector<Place>& places) {
    List list = new_list(places.size());
    for (const Place& place : places)
        rd_kafka_topic_partition_list_add(list.get(), place.topic.c_str(), place.partition);
    return list;
}

// The metadata is for commits. The list frees it.
static void set_metadata(rd_kafka_topic_partition_t& partition, const std::string& text) {
    if (text.empty())
        return;
    partition.metadata = rd_kafka_mem_malloc(nullptr, text.size());
    if (partition.metadata == nullptr)
        throw std::bad_alloc();
    partition.metadata_size = text.size();
    std::ranges::copy(text, static_cast<char*>(partition.metadata));
}

static Mark mark_in(const rd_kafka_topic_partition_t& partition) {
    if (partition.metadata == nullptr)
        return {};
    return Mark::parse({static_cast<const char*>(partition.metadata), partition.metadata_size});
}

static List list_of(const std::vector<PlacedOffset>& offsets) {
    List list = new_list(offsets.size());
    for (const PlacedOffset& each : offsets) {
        rd_kafka_topic_partition_t& added = *rd_kafka_topic_partition_list_add(
            list.get(), each.place.topic.c_str(), each.place.partition);
        added.offset = each.offset;
        set_metadata(added, each.mark.text());
    }
    return list;
}

static std::string name_of(const Place& place) {
    return place.topic + '/' + std::to_string(place.partition);
}

// For the log: 'orders/0, orders/3'.
static std::string names_of(const rd_kafka_topic_partition_list_t& list) {
    static constexpr int most = 50;
    std::string names;
    for (int i = 0; i < std::min(list.cnt, most); i++)
        names.append(i > 0 ? ", " : "")
            .append(list.elems[i].topic)
            .append("/")
            .append(std::to_string(list.elems[i].partition));
    return names + (list.cnt > most ? ", ..." : "");
}

// Takes over an error object and returns its text, empty if there is none.
static std::string text_of(rd_kafka_error_t* error) {
    if (error == nullptr)
        return "";
    std::string text = rd_kafka_error_string(error);
    rd_kafka_error_destroy(error);
    return text;
}

// -------------------------------------------------------------------------------------------------
// Calls of other threads
// -------------------------------------------------------------------------------------------------

Session::Session(Membership& membership)
    : membership_(membership),
      options_(membership.options),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      partitions_(membership.subscription) {
    secrets_.add(options_.password);
    if (wake_ < 0)
        throw std::system_error(errno, std::generic_category(), "eventfd");
    try {
        client_.emplace(options_, wake_);
        List topics = new_list(options_.topics.size());
        for (const std::string& topic : options_.topics)
            rd_kafka_topic_partition_list_add(topics.get(), topic.c_str(), RD_KAFKA_PARTITION_UA);
        if (const auto code = rd_kafka_subscribe(client_->get(), topics.get()))
            throw SourceError(std::string("cannot subscribe: ") + rd_kafka_err2str(code), false);
        const outbox::SignalsBlocked blocked;
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        client_.reset();
        ::close(wake_);
        throw;
    }
}

Session::~Session() {
    close(milliseconds(0));
    client_.reset();
    ::close(wake_);
}

void Session::wake() const {
    static constexpr std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
}

std::vector<Delivery> Session::receive(std::size_t most, milliseconds wait) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, wait, [this] {
        return failure_ || close_by_ || wants_recall_ || partitions_.waiting() > 0;
    });
    if (failure_)
        throw SourceError(failure_->message, failure_->transient);
    std::vector<Delivery> taken = partitions_.take(most);
    if (!taken.empty() && std::exchange(starved_, false))
        wake();
    return taken;
}

void Session::ack(std::span<const Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    partitions_.ack(deliveries);
    stats_.acked += deliveries.size();
    wake();
}

void Session::nack(std::span<const Delivery> deliveries) {
    const std::lock_guard lock(mutex_);
    partitions_.nack(deliveries);
    stats_.nacked += deliveries.size();
    wake();
    changed_.notify_all();
}

std::vector<Position> Session::positions(std::span<const Delivery* const> deliveries) {
    const std::lock_guard lock(mutex_);
    return partitions_.positions(deliveries);
}

std::vector<Position> Session::moved_positions() {
    const std::lock_guard lock(mutex_);
    return partitions_.moved_positions();
}

std::vector<Gap> Session::gaps() {
    const std::lock_guard lock(mutex_);
    return std::exchange(gaps_, {});
}

bool Session::wants_recall() {
    const std::lock_guard lock(mutex_);
    return std::exchange(wants_recall_, false);
}

bool Session::is_recalled(const Delivery& delivery) {
    const std::lock_guard lock(mutex_);
    return partitions_.is_recalled(delivery);
}

void Session::close(milliseconds limit) {
    std::unique_lock lock(mutex_);
    if (!close_by_)
        close_by_ = Clock::now() + limit;
    wake();
    changed_.notify_all();
    lock.unlock();
    if (thread_.joinable())
        thread_.join();
}

KafkaStats Session::stats() const {
    const std::lock_guard lock(mutex_);
    KafkaStats stats = stats_;
    stats.partitions = partitions_.size();
    stats.outstanding = partitions_.outstanding();
    stats.waiting = partitions_.waiting();
    for (const Place& place : partitions_.places()) {
        std::int64_t low = 0, high = -1;
        const std::int64_t position = partitions_.position_of(place);
        if (position >= 0 &&
            rd_kafka_get_watermark_offsets(client_->get(), place.topic.c_str(), place.partition,
                                           &low, &high) == RD_KAFKA_RESP_ERR_NO_ERROR &&
            high >= 0)
            stats.lag += std::max<std::int64_t>(high - position, 0);
    }
    return stats;
}

// -------------------------------------------------------------------------------------------------
// Seeking
// -------------------------------------------------------------------------------------------------

// A reset is carried out once, so it must reach the whole group.
void Session::check_has_all(const std::vector<Place>& places) const {
    std::map<std::string, int> ours;
    for (const Place& place : places)
        ours[place.topic]++;
    const rd_kafka_metadata_t* metadata = nullptr;
    if (const auto code =
            rd_kafka_metadata(client_->get(), 0, nullptr, &metadata, max_question.count()))
        throw SourceError(rd_kafka_err2str(code), true);
    std::string missing;
    for (int i = 0; i < metadata->topic_cnt; i++) {
        const rd_kafka_metadata_topic& topic = metadata->topics[i];
        if (const auto found = ours.find(topic.topic);
            found != ours.end() && found->second < topic.partition_cnt)
            missing = "this process has " + std::to_string(found->second) + " of the " +
                      std::to_string(topic.partition_cnt) + " partitions of \"" + topic.topic +
                      "\"; stop the other processes of group \"" + options_.group + "\"";
    }
    rd_kafka_metadata_destroy(metadata);
    if (missing.empty() && places.empty())
        missing = "this process has no partitions";
    if (!missing.empty())
        throw SourceError(missing, false);
}

std::vector<PlacedOffset> Session::offsets_at(const std::vector<Place>& places, Time to) const {
    List list = list_of(places);
    for (rd_kafka_topic_partition_t& each : elements(*list))
        each.offset = std::chrono::ceil<milliseconds>(to.time_since_epoch()).count();
    rd_kafka_resp_err_t code =
        rd_kafka_offsets_for_times(client_->get(), list.get(), max_question.count());
    std::vector<PlacedOffset> offsets;
    for (const rd_kafka_topic_partition_t& each : elements(*list)) {
        std::int64_t low = 0, offset = each.offset;
        if (!code)
            code = each.err;
        if (!code && offset < 0)  // no record is that late: go on at the end
            code = rd_kafka_query_watermark_offsets(client_->get(), each.topic, each.partition,
                                                    &low, &offset, max_question.count());
        if (code)
            throw SourceError(
                std::string("cannot find the offsets of a time: ") + rd_kafka_err2str(code), true);
        offsets.push_back({place_of(each), offset});
    }
    return offsets;
}

// A reset is over when this returns. Without the commit a process that is killed then would go on
// where it was before the reset.
void Session::seek(Time to) {
    std::unique_lock lock(mutex_);
    const std::vector<Place> places = partitions_.places();
    lock.unlock();
    check_has_all(places);
    Seek seek{.to = offsets_at(places, to), .time = to};
    lock.lock();
    seek_ = &seek;
    wake();
    changed_.wait(lock, [&] { return seek.done || ended_; });
    seek_ = nullptr;
    if (!seek.done || !seek.error.empty())
        throw SourceError(seek.done ? seek.error : "the source is closed", true);
    lock.unlock();
    commit_and_wait(seek.to);
}

void Session::seek_if_asked() {
    const std::lock_guard lock(mutex_);
    if (seek_ == nullptr || seek_->done)
        return;
    std::vector<Place> sought;
    for (const PlacedOffset& each : seek_->to)
        sought.push_back(each.place);
    if (sought != partitions_.places() || to_revoke_ || to_assign_)
        seek_->error = "the partitions of this process have changed";
    else
        seek_->error = begin_at(seek_->to);
    if (seek_->error.empty())
        for (const PlacedOffset& each : seek_->to)
            partitions_.move(each.place, each.offset, seek_->time);
    seek_->done = true;
    changed_.notify_all();
}

// -------------------------------------------------------------------------------------------------
// The thread
// -------------------------------------------------------------------------------------------------

void Session::run() noexcept {
    try {
        while (turn())
            wait();
    } catch (const std::exception& error) {
        const std::lock_guard lock(mutex_);
        failure_ = {error.what(), true};
    }
    const std::lock_guard lock(mutex_);
    ended_ = true;
    changed_.notify_all();
}

bool Session::turn() {
    serve_events();
    if (const std::string why = client_->excess(); !why.empty())
        fail(why, true);
    assign();
    revoke();
    seek_if_asked();
    look_for_other_topics();
    find_again();
    has_more_ = !leaving_ && read_records();
    commit_if_due();
    return !leave();
}

void Session::wait() {
    const Clock::time_point now = Clock::now();
    Clock::time_point until = now + max_sleep;
    if (to_assign_)
        until = std::min(until, load_at_);
    if (to_revoke_)
        until = std::min(until, revoke_by_);
    if (leaving_)
        until = std::min(until, now + milliseconds(10));
    for (const auto& [place, astray] : astray_)
        until = std::min(until, std::max(astray.look_at, now));
    const auto sleep = std::chrono::ceil<milliseconds>(until - now).count();
    pollfd descriptor{.fd = wake_, .events = POLLIN, .revents = 0};
    poll(&descriptor, 1, has_more_ ? 0 : static_cast<int>(std::max<long>(sleep, 0)));
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t taken = ::read(wake_, &count, sizeof count);
}

void Session::serve_events() {
    while (rd_kafka_event_t* const event = rd_kafka_queue_poll(client_->events(), 0)) {
        const std::unique_ptr<rd_kafka_event_t, void (*)(rd_kafka_event_t*)> owned(
            event, rd_kafka_event_destroy);
        serve(event);
    }
}

void Session::serve(rd_kafka_event_t* event) {
    switch (rd_kafka_event_type(event)) {
        case RD_KAFKA_EVENT_REBALANCE:
            rebalance(event);
            break;
        case RD_KAFKA_EVENT_OFFSET_COMMIT:
            committed(event);
            break;
        case RD_KAFKA_EVENT_FETCH:  // records that came before they were forwarded
            while (const rd_kafka_message_t* const message = rd_kafka_event_message_next(event))
                read(*message);
            break;
        case RD_KAFKA_EVENT_ERROR:
            explain(rd_kafka_event_error(event), rd_kafka_event_error_string(event),
                    rd_kafka_event_error_is_fatal(event) != 0);
            break;
        case RD_KAFKA_EVENT_LOG: {
            const char *facility = nullptr, *text = nullptr;
            int level = 0;
            if (rd_kafka_event_log(event, &facility, &text, &level) != 0)
                break;
            constexpr int warning = 4;  // of syslog
            if (level <= warning)
                warn(facility, text);
            else
                note(Level::debug, text);
            break;
        }
        default:
            break;
    }
}

// Waiting cannot repair these errors. But brokers that start do not know all users at first, so
// they may pass.
static bool is_refusal(rd_kafka_resp_err_t code) {
    switch (code) {
        case RD_KAFKA_RESP_ERR__AUTHENTICATION:
        case RD_KAFKA_RESP_ERR__SSL:
        case RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED:
        case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
        case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
        case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
            return true;
        default:
            return false;
    }
}

void Session::explain(rd_kafka_resp_err_t code, const char* text, bool is_fatal) {
    std::string message = text != nullptr ? text : rd_kafka_err2str(code);
    // Before 2.6.1, librdkafka sends a wrong nonce (librdkafka issue 4895).
    constexpr int first_version_with_scram = 0x020601ff;
    if (code == RD_KAFKA_RESP_ERR__AUTHENTICATION && options_.sasl_mechanism.starts_with("SCRAM") &&
        rd_kafka_version() < first_version_with_scram)
        message += std::string(" (Kafka 4 takes SCRAM from librdkafka 2.6.1 or later; this is ") +
                   rd_kafka_version_str() + ')';
    if (is_fatal)
        return fail(message, code != RD_KAFKA_RESP_ERR_FENCED_INSTANCE_ID);
    if (is_refusal(code) && !membership_.has_worked)
        return fail(message, false);
    if (code == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART ||
        code == RD_KAFKA_RESP_ERR__UNKNOWN_PARTITION || code == RD_KAFKA_RESP_ERR__UNKNOWN_TOPIC)
        doubt_topics();
    warn(rd_kafka_err2name(code), message);
}

void Session::warn(const std::string& kind, const std::string& message) {
    const Clock::time_point now = Clock::now();
    Clock::time_point& logged = logged_[kind];
    if (logged == Clock::time_point{} || now >= logged + between_warnings) {
        logged = now;
        note(Level::warning, message);
    }
}

// Brokers have words in it.
std::string Session::clean(std::string message) const {
    secrets_.conceal(message);
    return outbox::printable(message);
}

void Session::note(Level level, const std::string& message) const {
    if (membership_.log)
        membership_.log(level, membership_.subscription + ": " + clean(message));
}

void Session::fail(std::string message, bool transient) {
    const std::lock_guard lock(mutex_);
    if (!failure_)
        failure_ = {clean(std::move(message)), transient};
    changed_.notify_all();
}

// -------------------------------------------------------------------------------------------------
// Partitions come and go
// -------------------------------------------------------------------------------------------------

static bool is_cooperative(rd_kafka_t* handle) {
    // There is none once the library has left the group, which it may do before it was told of all.
    const char* const protocol = rd_kafka_rebalance_protocol(handle);
    return protocol != nullptr && std::string_view(protocol) == "COOPERATIVE";
}

// Otherwise the source fails, and the library gets an answer, which it needs to end.
bool Session::has_room_for(const rd_kafka_topic_partition_list_t& list) {
    std::unique_lock lock(mutex_);
    const std::size_t count = partitions_.size() + static_cast<std::size_t>(list.cnt);
    lock.unlock();
    if (count <= max_partitions)
        return true;
    fail("the group assigns more than " + std::to_string(max_partitions) +
             " partitions to this process",
         true);
    assign_to_library(*new_list(0));
    return false;
}

void Session::rebalance(rd_kafka_event_t* event) {
    const rd_kafka_topic_partition_list_t* const list = rd_kafka_event_topic_partition_list(event);
    switch (rd_kafka_event_error(event)) {
        case RD_KAFKA_RESP_ERR__ASSIGN_PARTITIONS:
            client_->has_been_assigned();
            if (!has_room_for(*list))
                break;
            if (!std::exchange(joins_again_, false))
                commit_at_ = Clock::now();
            to_assign_ = copy_of(list);
            load_at_ = Clock::now();
            failed_loads_ = 0;
            break;
        case RD_KAFKA_RESP_ERR__REVOKE_PARTITIONS: {
            to_revoke_ = copy_of(list);
            revoke_by_ = Clock::now() + options_.revoke_limit;
            lost_ = rd_kafka_assignment_lost(client_->get()) != 0;
            note(Level::info, "is asked to give up " + names_of(*list));
            const std::lock_guard lock(mutex_);
            stats_.revocations++;
            stats_.lost += lost_;
            for (const rd_kafka_topic_partition_t& each : elements(*list))
                partitions_.recall(place_of(each));
            break;
        }
        default:
            rd_kafka_assign(client_->get(), nullptr);
            break;
    }
}

static std::optional<std::int64_t> offset_of(const std::string& text) {
    std::int64_t offset = -1;
    const char* const end = text.data() + text.size();
    if (const auto read = std::from_chars(text.data(), end, offset);
        read.ec != std::errc() || read.ptr != end || offset < 0)
        return std::nullopt;
    return offset;
}

// Reads the offsets of partitions that are in the database.
void Session::load_saved(std::map<Place, Begin>& begins) const {
    std::map<std::string, Place> places;
    std::vector<std::string> names;
    for (const auto& [place, begin] : begins) {
        names.push_back(partitions_.name_of(place));
        places.emplace(names.back(), place);
    }
    for (const Position& position : membership_.load_positions(names))
        if (const std::optional<std::int64_t> offset = offset_of(position.message_id))
            begins.at(places.at(position.subscription)) = {
                .offset = *offset,
                .mark = Mark::parse(position.incarnation),
                .saved_at = position.published_at,
                .is_saved = true};
}

static std::vector<Place> without_offset(const std::map<Place, Begin>& begins) {
    std::vector<Place> places;
    for (const auto& [place, begin] : begins)
        if (begin.offset < 0)
            places.push_back(place);
    return places;
}

// Reads the group's offsets of the other partitions.
void Session::load_committed(std::map<Place, Begin>& begins) const {
    const std::vector<Place> places = without_offset(begins);
    if (places.empty())
        return;
    List list = list_of(places);
    rd_kafka_resp_err_t code = rd_kafka_committed(client_->get(), list.get(), max_question.count());
    for (const rd_kafka_topic_partition_t& each : elements(*list)) {
        if (!code)
            code = each.err;
        if (each.offset >= 0)
            begins.at(place_of(each)) = {
                .offset = each.offset, .mark = mark_in(each), .is_committed = true};
    }
    if (code)
        throw SourceError(rd_kafka_err2str(code), true);
}

// The end of a partition is its position from the moment at which this process gets it. So it is
// asked for, and committed before the library gets the partition: after a crash another process would
// begin at a later end. The library joins the group again only when it has the partitions, so the
// commit cannot be of a previous generation.
void Session::find_ends(std::map<Place, Begin>& begins) const {
    if (options_.start != KafkaOptions::Start::latest)
        return;
    std::vector<PlacedOffset> ends;
    for (const Place& place : without_offset(begins)) {
        std::int64_t low = 0, high = 0;
        if (const auto code = rd_kafka_query_watermark_offsets(client_->get(), place.topic.c_str(),
                                                               place.partition, &low, &high,
                                                               max_question.count()))
            throw SourceError(rd_kafka_err2str(code), true);
        ends.push_back({place, high});
    }
    commit_and_wait(ends);
    for (const PlacedOffset& end : ends) {
        begins[end.place] = {.offset = end.offset, .is_committed = true};
        note(Level::info, "begins behind the last record of " + name_of(end.place) +
                              ", at offset " + std::to_string(end.offset));
    }
}

// Returns false if the database or a broker does not answer. The group waits for this process
// meanwhile, and goes on without it after its timeout.
bool Session::load_begins(std::map<Place, Begin>& begins) {
    for (const rd_kafka_topic_partition_t& each : elements(*to_assign_))
        begins[place_of(each)];
    if (leaving_ || begins.empty())
        return true;
    try {
        if (options_.offsets_in_database)
            load_saved(begins);
        load_committed(begins);
        find_ends(begins);
        return true;
    } catch (const std::exception& error) {
        note(Level::warning, std::string("cannot find where to begin: ") + error.what());
        load_at_ = Clock::now() +
                   std::min(milliseconds(200 << std::min(failed_loads_++, 5u)), milliseconds(5000));
        return false;
    }
}

void Session::assign() {
    if (!to_assign_ || Clock::now() < load_at_)
        return;
    std::map<Place, Begin> begins;
    if (!load_begins(begins))
        return;
    {
        const std::lock_guard lock(mutex_);
        stats_.assignments++;
        for (rd_kafka_topic_partition_t& each : elements(*to_assign_)) {
            const Begin& begin = begins.at(place_of(each));
            each.offset = begin.offset < 0 ? RD_KAFKA_OFFSET_BEGINNING : begin.first();
            partitions_.add(place_of(each), begin);
        }
    }
    membership_.has_worked = membership_.has_worked || to_assign_->cnt > 0;
    const List list = std::move(to_assign_);
    if (list->cnt > 0)
        note(Level::info, "has " + names_of(*list) + " from now on");
    if (const std::string error = assign_to_library(*list); !error.empty())
        fail("cannot assign partitions: " + error, true);
}

// These return an error, or an empty text.
std::string Session::assign_to_library(const rd_kafka_topic_partition_list_t& list) {
    for (const rd_kafka_topic_partition_t& each : elements(list))
        client_->forward_records(each.topic, each.partition);
    rd_kafka_t* const handle = client_->get();
    if (is_cooperative(handle))
        return text_of(rd_kafka_incremental_assign(handle, &list));
    const auto code = rd_kafka_assign(handle, &list);
    return code ? rd_kafka_err2str(code) : "";
}

std::string Session::unassign_from_library(const rd_kafka_topic_partition_list_t& list) {
    rd_kafka_t* const handle = client_->get();
    if (is_cooperative(handle))
        return text_of(rd_kafka_incremental_unassign(handle, &list));
    const auto code = rd_kafka_assign(handle, nullptr);
    return code ? rd_kafka_err2str(code) : "";
}

void Session::revoke() {
    if (!to_revoke_)
        return;
    lost_ = lost_ || rd_kafka_assignment_lost(client_->get()) != 0;
    bool has_begun = false;
    {
        const std::lock_guard lock(mutex_);
        for (const rd_kafka_topic_partition_t& each : elements(*to_revoke_))
            has_begun = has_begun || partitions_.has_begun(place_of(each));
        wants_recall_ = wants_recall_ || has_begun;
        changed_.notify_all();
    }
    if (has_begun && !lost_ && !leaving_ && Clock::now() < revoke_by_)
        return;
    if (has_begun && !lost_ && !leaving_)
        note(Level::warning, "partitions go to another process while handlers have not ended");
    const List list = std::move(to_revoke_);
    note(lost_ ? Level::warning : Level::info,
         (lost_ ? "has lost " : "gives up ") + names_of(*list));
    give_up(*list);
}

void Session::give_up(const rd_kafka_topic_partition_list_t& list) {
    if (!lost_) {
        std::vector<PlacedOffset> offsets;
        {
            // Includes positions that are being committed, because that commit may fail and would
            // not be repeated.
            const std::lock_guard lock(mutex_);
            for (const rd_kafka_topic_partition_t& each : elements(list))
                if (const std::int64_t position = partitions_.position_of(place_of(each));
                    position >= 0)
                    offsets.push_back(
                        {place_of(each), position, partitions_.mark_of(place_of(each))});
        }
        commit(offsets);
    }
    // After a partition is given up, the library assigns new ones, and then joins once more.
    joins_again_ = is_cooperative(client_->get()) && !lost_;
    wait_for_the_group();
    lost_ = false;
    {
        const std::lock_guard lock(mutex_);
        for (const rd_kafka_topic_partition_t& each : elements(list)) {
            partitions_.remove(place_of(each));
            astray_.erase(place_of(each));
            not_before_.erase(place_of(each));
        }
    }
    // The library waits for the commit before it tells the group.
    if (const std::string error = unassign_from_library(list); !error.empty())
        fail("cannot give up partitions: " + error, true);
}

// -------------------------------------------------------------------------------------------------
// Records
// -------------------------------------------------------------------------------------------------

// Returns true if there may be more records, and room for them.
bool Session::read_records() {
    for (std::size_t read = 0; read < max_waiting;) {
        {
            const std::lock_guard lock(mutex_);
            starved_ = partitions_.waiting() >= max_waiting ||
                       partitions_.waiting_bytes() >= max_waiting_bytes;
            if (starved_)
                return false;
        }
        std::array<rd_kafka_message_t*, records_at_once> messages{};
        const ssize_t count =
            rd_kafka_consume_batch_queue(client_->records(), 0, messages.data(), messages.size());
        for (ssize_t i = 0; i < count; i++) {
            const std::unique_ptr<rd_kafka_message_t, void (*)(rd_kafka_message_t*)> message(
                messages[static_cast<std::size_t>(i)], rd_kafka_message_destroy);
            this->read(*message);
        }
        if (count <= 0)
            return false;
        read += static_cast<std::size_t>(count);
    }
    return true;
}

void Session::read(const rd_kafka_message_t& message) {
    const Place place{message.rkt != nullptr ? rd_kafka_topic_name(message.rkt) : "",
                      message.partition};
    if (message.err == RD_KAFKA_RESP_ERR__AUTO_OFFSET_RESET)
        return goes_astray(place, Why::out_of_range);
    if (astray_.contains(place))
        return;  // it comes again
    if (message.err == RD_KAFKA_RESP_ERR__PARTITION_EOF) {
        const std::lock_guard lock(mutex_);
        if (!partitions_.ended(place, message.offset))
            goes_astray(place, Why::out_of_range);
        return;
    }
    if (message.err)
        return explain(message.err, rd_kafka_message_errstr(&message), false);
    Delivery delivery = delivery_from(record_of(message), membership_.subscription);
    Partitions::Read read{};
    {
        const std::lock_guard lock(mutex_);
        read = partitions_.read(place, message.offset, std::move(delivery));
        // Others were read again, to see whether the topic is the same.
        stats_.received += read == Partitions::Read::entered || read == Partitions::Read::full;
        changed_.notify_all();
    }
    if (read == Partitions::Read::full)
        pause({place}, true);
    else if (read == Partitions::Read::doubtful)
        goes_astray(place, Why::doubtful);
    else if (read == Partitions::Read::recreated)
        goes_astray(place, Why::recreated);
}

void Session::pause(const std::vector<Place>& places, bool paused) {
    List list = list_of(places);
    if (paused)
        rd_kafka_pause_partitions(client_->get(), list.get());
    else
        rd_kafka_resume_partitions(client_->get(), list.get());
}

// -------------------------------------------------------------------------------------------------
// Partitions that are astray
// -------------------------------------------------------------------------------------------------

void Session::goes_astray(const Place& place, Why why) {
    astray_.insert_or_assign(place, Astray{.why = why});
}

// A topic that was unknown for a while may come back as another one.
void Session::doubt_topics() {
    const std::lock_guard lock(mutex_);
    for (const Place& place : partitions_.places())
        astray_.try_emplace(place, Astray{.why = Why::doubtful});
}

// If a topic is made again and grows up to the offset before the next request, the library goes on
// in its middle. Then it has records before the position that are later than all that were read. The
// broker finds such a record by its time. Times need not be in order, so this is only a doubt.
void Session::look_for_other_topics() {
    const Clock::time_point now = Clock::now();
    if (leaving_ || to_assign_ || to_revoke_ || now < look_at_)
        return;
    look_at_ = now + between_looks;
    const bool all = now >= look_at_all_at_;
    if (all)
        look_at_all_at_ = now + between_idle_looks;
    std::map<Place, Partitions::Checked> before;
    {
        const std::lock_guard lock(mutex_);
        before = partitions_.take_unchecked(all);
    }
    std::erase_if(before, [&](const auto& each) {
        return now < not_before_[each.first] || astray_.contains(each.first);
    });
    std::vector<PlacedOffset> times;
    for (const auto& [place, checked] : before) {
        const auto newest = std::chrono::floor<milliseconds>(checked.newest.time_since_epoch());
        times.push_back({place, newest.count() + 1});
    }
    if (times.empty())
        return;
    const List list = list_of(times);
    if (rd_kafka_offsets_for_times(client_->get(), list.get(), max_look.count()) !=
        RD_KAFKA_RESP_ERR_NO_ERROR)
        return;  // further records will come
    for (const rd_kafka_topic_partition_t& each : elements(*list)) {
        const Place place = place_of(each);
        if (each.err != RD_KAFKA_RESP_ERR_NO_ERROR)
            continue;
        if (each.offset >= 0 && each.offset < before.at(place).next) {
            not_before_[place] = now + between_doubts;
            goes_astray(place, Why::doubtful);
        } else {
            const std::lock_guard lock(mutex_);
            partitions_.checked(place);
        }
    }
}

// The library cannot seek in a partition whose position is out of range, but it can begin with it. It
// stops a partition in a thread of its own, which ends the forwarding of its records. It answers to
// pause() when that is done. Returns an error, or an empty text.
std::string Session::begin_at(const std::vector<PlacedOffset>& offsets) {
    const List list = list_of(offsets);
    std::vector<Place> places;
    for (const PlacedOffset& each : offsets)
        places.push_back(each.place);
    if (std::string error = unassign_from_library(*list); !error.empty())
        return error;
    pause(places, false);
    return assign_to_library(*list);
}

// Without cooperative rebalances all partitions are assigned at once.
std::vector<PlacedOffset> Session::begins_with(const Place& place, std::int64_t from) const {
    std::vector<PlacedOffset> begins{{place, from}};
    const std::lock_guard lock(mutex_);
    if (!is_cooperative(client_->get()))
        for (const Place& other : partitions_.places())
            if (other != place)
                begins.push_back({other, std::max<std::int64_t>(partitions_.next_of(other),
                                                                RD_KAFKA_OFFSET_BEGINNING)});
    return begins;
}

void Session::find_again() {
    if (leaving_ || to_assign_ || to_revoke_)
        return;
    for (auto& [place, astray] : astray_) {
        if (Clock::now() < astray.look_at)
            continue;
        std::int64_t low = 0, high = 0;
        if (const auto code =
                rd_kafka_query_watermark_offsets(client_->get(), place.topic.c_str(),
                                                 place.partition, &low, &high, max_look.count())) {
            warn(rd_kafka_err2name(code),
                 "cannot find the records of " + name_of(place) + ": " + rd_kafka_err2str(code));
            astray.look_at =
                Clock::now() + std::min(max_look * (1 << std::min(astray.failures++, 5u)),
                                        milliseconds(between_warnings));
            break;  // events come first, as each look may take its time
        }
        const std::optional<std::int64_t> from = find_again(place, astray.why, low, high);
        astray.is_found = from.has_value();
        astray.look_at = Clock::time_point::max();
        const std::string error = from ? begin_at(begins_with(place, *from)) : "";
        if (!error.empty())
            fail("cannot begin " + name_of(place) + " again: " + error, true);
    }
    std::erase_if(astray_, [](const auto& each) { return each.second.is_found; });
}

// Returns the offset to begin at, or std::nullopt if the source has to stop.
std::optional<std::int64_t> Session::find_again(const Place& place, Why why, std::int64_t low,
                                                std::int64_t high) {
    const bool stops = options_.on_recreated == OnRecreated::stop;
    std::unique_lock lock(mutex_);
    const std::int64_t next = partitions_.next_of(place);
    const Partitions::Found found = partitions_.find_again(place, why, low, high);
    if (found.recreated && !stops)
        partitions_.begin_again(place, found.from);
    lock.unlock();
    if (found.skipped > 0)
        note_gap(place,
                 std::to_string(found.skipped) + " records of " + name_of(place) +
                     " were deleted before they were read, from offset " + std::to_string(next) +
                     " on",
                 found.skipped);
    if (!found.recreated)
        return found.from;
    const std::string what = name_of(place) + " was made again or cut back: its offsets are " +
                             std::to_string(low) + " to " + std::to_string(high) +
                             ", and the position was " + std::to_string(next);
    note_gap(place, what, 0);
    if (!stops)
        return found.from;
    fail(what + "; start once with on_recreated = begin_again, or set the offsets of the group",
         false);
    return std::nullopt;
}

// A gap without skipped records is a topic that was made again.
void Session::note_gap(const Place& place, const std::string& why, std::int64_t skipped) {
    note(Level::warning, why);
    const std::lock_guard lock(mutex_);
    gaps_.push_back({.subscription = partitions_.name_of(place),
                     .why = why,
                     .skipped = static_cast<std::uint64_t>(skipped),
                     .recreated = skipped == 0});
}

// -------------------------------------------------------------------------------------------------
// Commits
// -------------------------------------------------------------------------------------------------

void Session::commit_if_due() {
    std::vector<Place> resumed;
    {
        const std::lock_guard lock(mutex_);
        resumed = partitions_.take_resumed();
    }
    if (!resumed.empty())
        pause(resumed, false);
    if (!leaving_ && (commits_in_flight_ > 0 || Clock::now() < commit_at_))
        return;
    commit_at_ = Clock::now() + options_.commit_interval;
    std::vector<PlacedOffset> offsets;
    {
        const std::lock_guard lock(mutex_);
        offsets = partitions_.take_uncommitted();
    }
    commit(offsets);
}

// If its connection is lost, the library sends a commit again. It would overwrite a later one that
// was answered before. So only one commit is under way at a time, except for the last one of
// partitions that are given up.
void Session::commit(const std::vector<PlacedOffset>& offsets) {
    if (offsets.empty())
        return;
    List list = list_of(offsets);
    const auto refused =
        rd_kafka_commit_queue(client_->get(), list.get(), client_->events(), nullptr, nullptr);
    const std::lock_guard lock(mutex_);
    if (refused) {  // there will be no answer
        for (const PlacedOffset& each : offsets)
            partitions_.commit_failed(each.place);
        return;
    }
    commits_in_flight_++;
    stats_.commits++;
}

// Delays the next commit until the rebalance is over. A commit in between would name the previous
// generation, and the library would then regard its partitions as lost.
void Session::wait_for_the_group() {
    commit_at_ = Clock::now() + max_rebalance;
}

// Returns the error of a commit, or else the first one of its partitions.
static rd_kafka_resp_err_t error_of_commit(rd_kafka_event_t* event) {
    rd_kafka_resp_err_t code = rd_kafka_event_error(event);
    for (const rd_kafka_topic_partition_t& each :
         elements(*rd_kafka_event_topic_partition_list(event)))
        if (!code)
            code = each.err;
    return code;
}

// Throws SourceError if the group has not confirmed the offsets.
void Session::commit_and_wait(const std::vector<PlacedOffset>& offsets) const {
    if (offsets.empty())
        return;
    const List list = list_of(offsets);
    const std::unique_ptr<rd_kafka_queue_t, void (*)(rd_kafka_queue_t*)> answers(
        rd_kafka_queue_new(client_->get()), rd_kafka_queue_destroy);
    rd_kafka_resp_err_t code =
        rd_kafka_commit_queue(client_->get(), list.get(), answers.get(), nullptr, nullptr);
    if (!code) {
        const std::unique_ptr<rd_kafka_event_t, void (*)(rd_kafka_event_t*)> answer(
            rd_kafka_queue_poll(answers.get(), max_question.count()), rd_kafka_event_destroy);
        code = answer ? error_of_commit(answer.get()) : RD_KAFKA_RESP_ERR__TIMED_OUT;
    }
    if (code)
        throw SourceError(std::string("the group does not confirm it: ") + rd_kafka_err2str(code),
                          true);
}

void Session::committed(rd_kafka_event_t* event) {
    commits_in_flight_--;
    const rd_kafka_resp_err_t code = rd_kafka_event_error(event);
    const rd_kafka_resp_err_t failed = error_of_commit(event);
    {
        const std::lock_guard lock(mutex_);
        for (const rd_kafka_topic_partition_t& each :
             elements(*rd_kafka_event_topic_partition_list(event)))
            if (code || each.err)
                partitions_.commit_failed(place_of(each));
    }
    if (failed == RD_KAFKA_RESP_ERR_REBALANCE_IN_PROGRESS)
        wait_for_the_group();
    else if (failed && failed != RD_KAFKA_RESP_ERR__NO_OFFSET)
        explain(failed, nullptr, false);
}

// -------------------------------------------------------------------------------------------------
// The end
// -------------------------------------------------------------------------------------------------

// Returns true if the thread may end.
bool Session::leave() {
    std::optional<Clock::time_point> by;
    {
        const std::lock_guard lock(mutex_);
        by = close_by_;
    }
    if (!by)
        return false;
    if (!std::exchange(leaving_, true)) {
        load_at_ = Clock::now();
        commit_if_due();
        if (!text_of(rd_kafka_consumer_close_queue(client_->get(), client_->events())).empty())
            return true;
    }
    return rd_kafka_consumer_closed(client_->get()) != 0 || Clock::now() >= *by;
}

}  // namespace inbox::kafka
