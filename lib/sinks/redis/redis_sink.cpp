// The redis sink. A batch is a transaction (MULTI ... EXEC) with one XADD for each event, all for
// one stream. Redis takes all of it or nothing, so events of a key may share a batch.
//
// Ids of entries are made from positions (stream_id.hpp) and always rise. The sink knows the
// highest id of each stream: it asks Redis when it has connected, and it sends everything that
// comes later. So it knows which id an event can have before it sends the event, and Redis does not
// refuse one event of a batch while it takes a later one of the same key.
//
// An event may have been sent before this connection: by a relay that has ended, or on a connection
// that was lost. If a batch may have such events, the sink reads the last entries of the stream,
// and confirms the events that it finds.
//
// Redis refuses an id only if something else has written to the stream in the meantime. If it was
// another relay, the sink finds its entries. If it was a foreign producer, ids cannot be foreseen,
// and from then on Redis makes them ("*").
//
// A batch passes these phases:
//
//   waiting      for a connection, the state of its stream, and the last entries
//   adding       the transaction was sent: if the connection is lost, its outcome is unknown
//   replicating  all entries are there, and replicas must have them, too
#include <algorithm>
#include <unordered_map>

#include "core/late.hpp"
#include "core/sink.hpp"
#include "core/text.hpp"
#include "net/redis_redirect.hpp"
#include "net/transport.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/redis/entry.hpp"
#include "sinks/redis/options.hpp"
#include "sinks/redis/servers.hpp"
#include "sinks/redis/stream_id.hpp"
#include "sinks/redis/verdict.hpp"

namespace outbox {

struct StreamLane {
    enum class Known : std::uint8_t { no, asked, yes };

    std::string name;
    RedisServer* server = nullptr;    // named by a redirect; nullptr if it is the entry
    bool asking = false;              // serves the slot only after the command ASKING
    RedisServer* known_by = nullptr;  // the server that `seen` comes from
    Known known = Known::no;
    StreamState seen{};   // when the sink asked
    StreamId top{};       // the highest id, also of entries sent since then
    bool shared = false;  // something else writes to the stream
    std::size_t jobs = 0;

    // The last entries up to seen.top, as far as the sink has read them.
    std::unordered_map<std::string, StreamId> entries{};  // by the id of the event
    StreamId next{};        // the highest id that the sink has not read
    bool all_read = false;  // there are no more, or the sink reads no more
    bool is_reading = false;
    std::size_t read = 0;        // entries
    std::size_t read_bytes = 0;  // of these entries
};

struct Job {
    enum class Phase : std::uint8_t { waiting, adding, replicating };
    enum class Place : std::uint8_t { unknown, missing, there };

    Batch* batch = nullptr;
    StreamLane* lane = nullptr;
    RedisServer* server = nullptr;  // the batch waits for it
    Micros deadline = never;
    Phase phase = Phase::waiting;
    unsigned redirects = 0;
    bool was_refused = false;         // Redis refused the id of an event
    std::vector<Place> places{};      // of the events
    std::vector<StreamId> ids{};      // of the events
    std::vector<std::size_t> sent{};  // events of the transaction, in order
    std::string error{};              // the first error in the transaction
    std::size_t failed_at = 0;        // index in `sent` of the event with this error
    bool has_error = false;
    bool is_added = false;  // an event was added on this connection
    bool done = false;
    Outcome outcome{};
};

namespace {

using Phase = Job::Phase;
using Place = Job::Place;

constexpr std::size_t max_bytes = 1024 * 1024;
constexpr std::size_t most_batches = 4;
constexpr std::size_t most_lanes = 10'000;  // kept in memory
constexpr unsigned most_redirects = 8;
constexpr std::size_t most_lines = 10;

// Entries of a stream that are read to find events that were sent before. A relay that has crashed
// sends fewer events again, unless many were in flight.
constexpr std::size_t most_entries = 50'000;
constexpr std::size_t most_remembered = 100'000;  // of all streams
constexpr std::size_t most_entry_bytes = 64 * 1024 * 1024;
constexpr std::size_t first_page = 8;  // entries; their size is not known yet
constexpr std::size_t longest_page = 1000;
constexpr std::size_t page_bytes = 1024 * 1024;

class RedisSink final : public Sink {
  public:
    RedisSink(RedisOptions options, const Clock& clock)
        : options_(std::move(options)),
          clock_(clock),
          servers_(options_, clock),
          encoder_(options_.format, options_.source) {}

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = options_.batch_size,
                .max_batch_bytes = max_bytes,
                .max_batches = batches(),
                .keys = KeyPolicy::mixed,
                .lanes = !options_.stream.is_constant()};
    }

    int descriptor() const noexcept override { return servers_.descriptor(); }

    Micros deadline() const noexcept override {
        Micros first = servers_.deadline();
        for (const std::unique_ptr<Job>& job : jobs_)
            first = std::min(first, job->done ? 0 : job->deadline);
        return first;
    }

    std::size_t size_of(const Event& event) const noexcept override {
        return EntryEncoder::size_of(event);
    }

    void lane_of(const Event& event, std::string& lane) const override {
        options_.stream.append_to(lane, event, options_.source);
    }

    void submit(Batch& batch) override {
        auto job = std::make_unique<Job>();
        job->batch = &batch;
        job->outcome.batch = &batch;
        job->lane = &lane_for(*batch.events.front());
        job->deadline = clock_.now() + options_.transport.request_timeout;
        job->places.assign(batch.events.size(), Place::unknown);
        job->ids.assign(batch.events.size(), StreamId{});
        jobs_.push_back(std::move(job));
        jobs_.back()->lane->jobs++;
        advance(*jobs_.back());
        if (jobs_.back()->server != nullptr)
            jobs_.back()->server->connection.flush();
    }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        servers_.for_each([&](RedisServer& server) {
            if (server.connection.state() != RedisConnection::State::closed) {
                server.connection.step(now);
                take_answers(server);
            }
        });
        for (const std::unique_ptr<Job>& job : jobs_)
            if (!job->done && now >= job->deadline)
                give_up(*job);
        for (std::size_t i = 0; i < jobs_.size(); i++)
            advance(*jobs_[i]);
        servers_.for_each([](RedisServer& server) {
            if (server.connection.state() == RedisConnection::State::ready)
                server.connection.flush();
        });
        report_done(outcomes);
    }

    bool report(SinkReport& report) override {
        report.lines.swap(lines_);
        lines_.clear();
        return false;
    }

  private:
    std::size_t batches() const noexcept { return options_.min_replicas > 0 ? 2 : max_batches; }

    // Returns the limit for WAIT, which blocks later commands on its connection.
    std::int64_t replica_timeout_ms() const noexcept {
        return std::max<Micros>(1, options_.transport.request_timeout / 1000 / 4);
    }

    StreamLane& lane_for(const Event& event) {
        name_.clear();
        lane_of(event, name_);
        if (lanes_.size() >= max_lanes)
            std::erase_if(lanes_, [this](const auto& one) {
                return one.second.jobs == 0 && !is_asked_for(one.second);
            });
        StreamLane& lane = lanes_[name_];
        if (lane.name.empty())
            lane.name = name_;
        return lane;
    }

    // Returns true if an answer about the stream is still to come.
    bool is_asked_for(const StreamLane& lane) {
        bool asked = false;
        servers_.for_each([&](const RedisServer& server) {
            for (const Question& question : server.questions)
                asked |= question.lane == &lane;
        });
        return asked;
    }

    std::string about(const StreamLane& lane, std::string_view error) const {
        return "stream \"" + lane.name + "\": " + std::string(error);
    }

    // ---- sending --------------------------------------------------------------------------------

    bool makes_ids(const StreamLane& lane) const noexcept {
        return options_.ids_of_positions && !lane.shared;
    }

    // Does the next thing for a batch that waits.
    void advance(Job& job) {
        if (job.done || job.phase != Phase::waiting)
            return;
        StreamLane& lane = *job.lane;
        RedisServer& server = lane.server != nullptr ? *lane.server : servers_.entry();
        job.server = &server;
        if (server.connection.state() == RedisConnection::State::closed)
            server.connection.open(clock_.now());
        if (server.connection.state() != RedisConnection::State::ready)
            return;
        if (server.is_sentinel) {
            ask_for_primary(server);
            return;
        }
        if (!makes_ids(lane)) {
            add(job);
            return;
        }
        if (lane.known_by != &server)
            forget(lane);
        if (lane.known == StreamLane::Known::no)
            ask_for_state(server, lane);
        else if (lane.known == StreamLane::Known::yes && look_up(job))
            add(job);
    }

    void say_asking(RedisServer& server, const StreamLane& lane, Question& question) {
        if (!lane.asking)
            return;
        append_command_of(server.connection.output(), std::string_view("ASKING"));
        question.answers++;
    }

    void ask_for_primary(RedisServer& sentinel) {
        if (!sentinel.questions.empty())
            return;
        append_command_of(sentinel.connection.output(), std::string_view("SENTINEL"),
                          std::string_view("get-master-addr-by-name"),
                          std::string_view(options_.sentinel));
        sentinel.questions.push_back({.kind = Question::Kind::primary, .answers = 1});
    }

    void ask_for_state(RedisServer& server, StreamLane& lane) {
        Question question{.kind = Question::Kind::state, .lane = &lane, .answers = 1};
        say_asking(server, lane, question);
        append_command_of(server.connection.output(), std::string_view("XINFO"),
                          std::string_view("STREAM"), std::string_view(lane.name));
        lane.known = StreamLane::Known::asked;
        lane.known_by = &server;
        server.questions.push_back(question);
    }

    // Looks for events that are already there. Returns false if it has to read entries first.
    bool look_up(Job& job) {
        StreamLane& lane = *job.lane;
        const std::vector<Event*>& events = job.batch->events;
        std::uint64_t lowest = lane.seen.top.ms + 1;
        for (std::size_t i = 0; i < events.size(); i++)
            if (job.places[i] == Place::unknown && may_be_there(lane, *events[i]))
                lowest = std::min(lowest, static_cast<std::uint64_t>(events[i]->position));
        if (lowest <= lane.seen.top.ms && !has_read(lane, lowest)) {
            read_entries(*job.server, lane);
            return false;
        }
        bool all_there = true;
        for (std::size_t i = 0; i < events.size(); i++) {
            if (job.places[i] == Place::unknown)
                find(job, i);
            all_there &= job.places[i] == Place::there;
        }
        if (job.was_refused && !all_there && !lane.shared) {
            lane.shared = true;
            lane.entries.clear();
            if (lines_.size() < max_lines)
                lines_.push_back(about(lane, "something else writes to it; Redis makes the ids"));
        }
        return true;
    }

    // An event that an operator replays must arrive again.
    static bool may_be_there(const StreamLane& lane, const Event& event) noexcept {
        return !lane.seen.empty && !event.replayed &&
               static_cast<std::uint64_t>(event.position) <= lane.seen.top.ms;
    }

    void find(Job& job, std::size_t i) {
        const Event& event = *job.batch->events[i];
        job.places[i] = Place::missing;
        if (!may_be_there(*job.lane, event))
            return;
        id_.clear();
        append_uuid(id_, event.event_id);
        const auto found = job.lane->entries.find(id_);
        if (found == job.lane->entries.end())
            return;
        job.places[i] = Place::there;
        job.ids[i] = found->second;
        job.lane->entries.erase(found);
    }

    // Returns true if all entries were read that can be events with this position or a higher one.
    // The first part of an id is not below the position. After foreign entries with ids of a clock,
    // the ids of all events have the same first part.
    static bool has_read(const StreamLane& lane, std::uint64_t position) noexcept {
        const std::uint64_t lowest =
            is_of_clock(lane.seen.top.ms) && !is_of_clock(position) ? lane.seen.top.ms : position;
        return lane.all_read || lane.next.ms < lowest;
    }

    void read_entries(RedisServer& server, StreamLane& lane) {
        if (lane.is_reading)
            return;
        lane.is_reading = true;
        Question question{.kind = Question::Kind::entries, .lane = &lane, .answers = 1};
        say_asking(server, lane, question);
        const std::size_t usual =
            lane.read == 0 ? first_page
                           : std::clamp<std::size_t>(page_bytes * lane.read / (lane.read_bytes + 1),
                                                     1, max_page);
        question.entries = std::min(usual, max_entries - lane.read);
        append_command_of(server.connection.output(), std::string_view("XREVRANGE"),
                          std::string_view(lane.name), std::string_view(lane.next.text()),
                          std::string_view("-"), std::string_view("COUNT"),
                          static_cast<std::int64_t>(question.entries));
        server.questions.push_back(question);
    }

    // Sorts by position, so that ids can rise. Within a key this is the order anyway.
    void arrange(Job& job) const {
        const std::vector<Event*>& events = job.batch->events;
        job.sent.clear();
        for (std::size_t i = 0; i < events.size(); i++)
            if (job.places[i] != Place::there)
                job.sent.push_back(i);
        // Events of a key are next to each other.
        const auto falls = [&](std::size_t a, std::size_t b) {
            return !events[a]->ordering_key.empty() &&
                   events[a]->ordering_key == events[b]->ordering_key &&
                   events[a]->position > events[b]->position;
        };
        if (std::adjacent_find(job.sent.begin(), job.sent.end(), falls) == job.sent.end())
            std::sort(job.sent.begin(), job.sent.end(), [&](std::size_t a, std::size_t b) {
                return std::pair(events[a]->position, a) < std::pair(events[b]->position, b);
            });
    }

    void add(Job& job) {
        StreamLane& lane = *job.lane;
        arrange(job);
        if (job.sent.empty()) {
            replicate(job);
            return;
        }
        job.phase = Phase::adding;
        job.has_error = false;
        Question question{.kind = Question::Kind::transaction, .job = &job, .answers = 0};
        std::string& out = job.server->connection.output();
        say_asking(*job.server, lane, question);
        append_command_of(out, std::string_view("MULTI"));
        for (const std::size_t i : job.sent)
            append_entry(out, job, i);
        append_command_of(out, std::string_view("EXEC"));
        question.answers += job.sent.size() + 2;
        job.server->questions.push_back(question);
    }

    void append_entry(std::string& out, Job& job, std::size_t i) {
        StreamLane& lane = *job.lane;
        const Event& event = *job.batch->events[i];
        id_ = "*";
        if (makes_ids(lane))
            if (const std::optional<StreamId> id = id_for(event.position, lane.top)) {
                lane.top = job.ids[i] = *id;
                id_.clear();
                id->append_to(id_);
            }
        encoder_.encode(event);
        append_command(out, (options_.max_length > 0 ? 6 : 3) + encoder_.count());
        append_argument(out, std::string_view("XADD"));
        append_argument(out, std::string_view(lane.name));
        if (options_.max_length > 0) {
            append_argument(out, std::string_view("MAXLEN"));
            append_argument(out, std::string_view("~"));
            append_argument(out, static_cast<std::int64_t>(options_.max_length));
        }
        append_argument(out, std::string_view(id_));
        out.append(encoder_.arguments());
    }

    // All events are there. WAIT counts the replicas that have everything written on this
    // connection, so something must be written.
    void replicate(Job& job) {
        if (options_.min_replicas == 0) {
            confirm(job);
            return;
        }
        job.phase = Phase::replicating;
        Question question{.kind = Question::Kind::replicas, .job = &job, .answers = 1};
        std::string& out = job.server->connection.output();
        if (!job.is_added) {  // write something that changes nothing
            say_asking(*job.server, *job.lane, question);
            append_command_of(out, std::string_view("XSETID"), std::string_view(job.lane->name),
                              std::string_view(job.lane->top.text()));
            question.answers++;
        }
        append_command_of(out, std::string_view("WAIT"),
                          static_cast<std::int64_t>(options_.min_replicas), replica_timeout_ms());
        job.server->questions.push_back(question);
    }

    // ---- answers --------------------------------------------------------------------------------

    void take_answers(RedisServer& server) {
        RedisConnection& connection = server.connection;
        if (connection.state() == RedisConnection::State::ready)
            while (const RespValue* answer = connection.next_answer()) {
                if (server.questions.empty()) {  // not an answer to a question
                    connection.fail(answer->is_error() ? answer->text : "unexpected answer");
                    break;
                }
                take(server, *answer);
                if (connection.state() != RedisConnection::State::ready)
                    break;
            }
        if (connection.state() == RedisConnection::State::closed)
            lost(server);
        else if (server.to_close && server.questions.empty())
            drop(server, "the server takes no events");
    }

    void drop(RedisServer& server, std::string why) {
        server.connection.fail(std::move(why));
        lost(server);
    }

    void take(RedisServer& server, const RespValue& answer) {
        Question& question = server.questions.front();
        const std::size_t number = question.taken++;
        const Question asked = question;
        if (asked.taken == asked.answers)
            server.questions.pop_front();
        switch (asked.kind) {
            case Question::Kind::primary:
                take_primary(server, answer);
                break;
            case Question::Kind::state:
                if (asked.taken == asked.answers)
                    take_state(server, *asked.lane, answer);
                break;
            case Question::Kind::entries:
                if (asked.taken == asked.answers)
                    take_entries(server, *asked.lane, asked.entries, answer);
                break;
            case Question::Kind::transaction:
                if (asked.job != nullptr)
                    take_added(*asked.job, asked, number, answer);
                break;
            case Question::Kind::replicas:
                if (asked.job != nullptr && (answer.is_error() || asked.taken == asked.answers))
                    take_replicas(*asked.job, answer);
                break;
        }
    }

    void take_primary(RedisServer& sentinel, const RespValue& answer) {
        RedisServer* primary = nullptr;
        if (const std::optional<Redirect> address = parse_primary(answer))
            primary = servers_.named(sentinel, address->host, address->port);
        servers_.set_primary(primary);
        if (primary == nullptr)
            sentinel.connection.fail(answer.is_error()
                                         ? answer.text
                                         : "Sentinel knows no primary \"" + options_.sentinel + '"',
                                     Scope::destination);
    }

    void take_state(RedisServer& server, StreamLane& lane, const RespValue& answer) {
        if (lane.known_by != &server)
            return;  // the stream has moved in the meantime
        lane.known = StreamLane::Known::no;
        std::optional<StreamState> state;
        if (!answer.is_error())
            state = StreamState::parse(answer);
        else if (answer.text.starts_with("ERR no such key"))
            state.emplace();
        if (!state) {
            unknown(
                server, lane,
                answer.is_error() ? answer.text : "the answer to XINFO STREAM is not understood");
            return;
        }
        lane.seen = *state;
        lane.top = std::max(lane.top, state->top);  // the sink may have sent more by now
        lane.known = StreamLane::Known::yes;
        lane.entries.clear();
        lane.next = state->top;
        lane.all_read = state->empty;
        lane.read = lane.read_bytes = 0;
    }

    void take_entries(RedisServer& server, StreamLane& lane, std::size_t asked,
                      const RespValue& answer) {
        lane.is_reading = false;
        if (lane.known != StreamLane::Known::yes || lane.known_by != &server)
            return;
        if (!answer.is_array()) {
            lane.known = StreamLane::Known::no;
            unknown(server, lane,
                    answer.is_error() ? answer.text : "the answer to XREVRANGE is not understood");
            return;
        }
        for (const RespValue& element : answer.elements) {
            const std::optional<StreamEntry> entry = StreamEntry::parse(element);
            if (!entry || entry->id > lane.next) {
                lane.all_read = true;
                break;
            }
            if (!entry->event_id.empty())
                lane.entries.try_emplace(std::string(entry->event_id), entry->id);
            lane.read++;
            const std::optional<StreamId> next = entry->id.previous();
            lane.all_read |= !next;
            lane.next = next.value_or(StreamId{});
        }
        lane.read_bytes += server.connection.answer_bytes();
        lane.all_read |= answer.elements.size() < asked || lane.read >= max_entries ||
                         lane.read_bytes >= max_entry_bytes || remembered() >= max_remembered;
    }

    std::size_t remembered() const noexcept {
        std::size_t sum = 0;
        for (const auto& [name, lane] : lanes_)
            sum += lane.entries.size();
        return sum;
    }

    // Redis does not say what the sink has to know, so batches of the stream fail.
    void unknown(RedisServer& server, StreamLane& lane, const std::string& error) {
        const std::optional<Redirect> redirect = parse_redirect(error);
        for (const std::unique_ptr<Job>& job : jobs_)
            if (!job->done && job->lane == &lane && job->phase == Phase::waiting &&
                job->server == &server && !(redirect && may_follow(*job)))
                fail(*job, error);
        if (redirect)
            follow(server, lane, *redirect);
    }

    // The answers are those to ASKING (if it was sent), MULTI, each XADD, and EXEC.
    void take_added(Job& job, const Question& asked, std::size_t number, const RespValue& answer) {
        if (job.done)
            return;
        if (asked.taken < asked.answers) {
            if (answer.is_error() && !job.has_error) {
                const std::size_t before = asked.answers - job.sent.size() - 1;
                job.has_error = true;
                job.error = answer.text;
                job.failed_at = number < before ? 0 : number - before;
            }
            // There is no transaction, so Redis has executed the XADD at once.
            if (!answer.is_error() && answer.kind != RespValue::Kind::status)
                look_again(*job.lane);
            return;
        }
        if (job.has_error)
            answered_with_error(job, job.error);
        else if (answer.is_error())
            answered_with_error(job, answer.text);
        else if (!answer.is_array() || answer.elements.size() != job.sent.size())
            fail(job, "the answer to EXEC is not understood");
        else
            take_ids(job, answer);
    }

    void take_ids(Job& job, const RespValue& answer) {
        std::string error;
        bool refused = false;
        for (std::size_t i = 0; i < job.sent.size(); i++) {
            const std::size_t event = job.sent[i];
            const RespValue& one = answer.elements[i];
            if (one.kind == RespValue::Kind::text) {
                job.places[event] = Place::there;
                job.is_added = true;
                if (const std::optional<StreamId> id = StreamId::parse(one.text))
                    job.ids[event] = *id;
            } else if (one.is_error() && is_id_refused(one.text) && makes_ids(*job.lane)) {
                refused = true;
            } else if (error.empty()) {
                error = one.is_error() ? one.text : "the answer to XADD is not understood";
            }
        }
        if (!error.empty())
            fail_in_part(job, error);
        else if (refused)
            look_for_refused(job);
        else
            replicate(job);
    }

    void look_for_refused(Job& job) {
        look_again(*job.lane);
        job.was_refused = true;
        wait_again(*job.server, job);
    }

    void take_replicas(Job& job, const RespValue& answer) {
        if (job.done)
            return;
        const auto needed = static_cast<std::int64_t>(options_.min_replicas);
        if (answer.kind == RespValue::Kind::integer && answer.integer >= needed) {
            confirm(job);
            return;
        }
        look_again(*job.lane);
        if (answer.is_error()) {
            fail(job, answer.text);
            return;
        }
        const std::string error = std::to_string(answer.integer) + " of " + std::to_string(needed) +
                                  " replicas have the events (min_replicas)";
        end(job, {Fate::unavailable, Scope::destination}, error);
    }

    // ---- redirects ------------------------------------------------------------------------------

    bool may_follow(Job& job) noexcept { return ++job.redirects <= max_redirects; }

    void follow(RedisServer& from, StreamLane& lane, const Redirect& redirect) {
        RedisServer* server = servers_.named(from, redirect.host, redirect.port);
        lane.server = server;
        lane.asking = redirect.ask && server != nullptr;
        forget(lane);
    }

    static void forget(StreamLane& lane) noexcept {
        lane.known = StreamLane::Known::no;
        lane.known_by = nullptr;
        lane.top = {};
        lane.entries.clear();
    }

    // Redis took no event of the batch.
    void answered_with_error(Job& job, const std::string& error) {
        const std::optional<Redirect> redirect = parse_redirect(error);
        if (!redirect || !may_follow(job)) {
            fail(job, error);
            return;
        }
        // Later batches get the same redirect; only the first one moves the stream.
        if (job.lane->known_by == job.server || !makes_ids(*job.lane))
            follow(*job.server, *job.lane, *redirect);
        wait_again(*job.server, job);
    }

    void wait_again(RedisServer& server, Job& job) {
        detach(server, job);
        job.phase = Phase::waiting;
        for (Place& place : job.places)
            if (place == Place::missing)
                place = Place::unknown;
    }

    // Later answers about the job are ignored.
    static void detach(RedisServer& server, Job& job) noexcept {
        for (Question& question : server.questions)
            if (question.job == &job)
                question.job = nullptr;
    }

    // ---- ends -----------------------------------------------------------------------------------

    void confirm(Job& job) {
        if (options_.receipts)
            for (const StreamId& id : job.ids)
                job.outcome.message_ids.push_back(id.text());
        job.done = true;
    }

    void end(Job& job, Verdict verdict, std::string_view error) {
        job.outcome.fate = verdict.fate;
        job.outcome.scope = verdict.scope;
        job.outcome.permanent = verdict.permanent;
        job.outcome.error = about(*job.lane, error);
        job.done = true;
        if (job.server != nullptr)
            detach(*job.server, job);
    }

    // Redis has answered with an error, and has taken nothing.
    void fail(Job& job, const std::string& error) {
        Verdict verdict =
            parse_redirect(error) ? Verdict{Fate::unavailable, Scope::lane} : verdict_of(error);
        // Other servers have other streams, so only the lane has failed.
        if (verdict.scope == Scope::destination && job.server != nullptr &&
            !servers_.is_entry(*job.server))
            verdict.scope = Scope::lane;
        if (verdict.ask_elsewhere && job.server != nullptr)
            job.server->to_close = true;
        end(job, verdict, error);
    }

    // Some of the events were added, which should not happen.
    void fail_in_part(Job& job, const std::string& error) {
        const Verdict verdict = verdict_of(error);
        end(job, verdict, error);
        for (const Place place : job.places) {
            EventOutcome& one = job.outcome.of_events.emplace_back();
            if (place != Place::there)
                one = {verdict.fate, job.outcome.error, verdict.permanent, verdict.scope};
        }
        look_again(*job.lane);
    }

    // Makes the sink ask again: there are events that were not confirmed, and it must find them
    // when they are sent again.
    static void look_again(StreamLane& lane) noexcept {
        if (lane.known == StreamLane::Known::yes)
            lane.known = StreamLane::Known::no;
    }

    void give_up(Job& job) {
        if (job.server == nullptr) {
            end(job, {Fate::unavailable, Scope::connection}, "no server");
            return;
        }
        drop(*job.server, no_answer_within(options_.transport.request_timeout));
    }

    // Fails the jobs of a server whose connection has ended.
    void lost(RedisServer& server) {
        const bool is_entry = servers_.is_entry(server);
        const std::string error = server.connection.failure();
        const Scope scope = is_entry ? server.connection.scope() : Scope::lane;
        bool refused = false;
        for (const std::unique_ptr<Job>& job : jobs_) {
            if (job->done || job->server != &server)
                continue;
            if (job->phase == Phase::adding && job->has_error && is_too_long(job->error))
                refused = refuse_one(*job);
            else if (refused)  // the server has not read what came after it
                end(*job, {Fate::undone, Scope::connection}, error);
            else if (job->phase == Phase::waiting)
                end(*job, {Fate::unavailable, scope}, server.name + ": " + error);
            else
                end(*job, {Fate::failed, Scope::connection}, server.name + ": " + error);
        }
        for (const Question& question : server.questions)
            if (question.lane != nullptr)
                question.lane->is_reading = false;
        server.questions.clear();
        server.to_close = false;
        for (auto& [name, lane] : lanes_) {
            if (lane.known_by == &server)
                forget(lane);
            if (lane.server == &server) {
                lane.server = nullptr;
                lane.asking = false;
            }
        }
        if (!refused)
            servers_.leave(server);
    }

    // Redis executed no command of the batch.
    bool refuse_one(Job& job) {
        const std::string error = about(*job.lane, job.error);
        end(job, {Fate::refused, Scope::destination}, job.error);
        job.outcome.of_events.assign(job.batch->events.size(), {Fate::undone, error});
        const std::size_t event = job.sent[std::min(job.failed_at, job.sent.size() - 1)];
        job.outcome.of_events[event] = {Fate::refused, error, true};
        return true;
    }

    void report_done(std::vector<Outcome>& outcomes) {
        std::erase_if(jobs_, [&](const std::unique_ptr<Job>& job) {
            if (!job->done)
                return false;
            job->lane->jobs--;
            outcomes.push_back(std::move(job->outcome));
            return true;
        });
    }

    const RedisOptions options_;
    const Clock& clock_;
    RedisServers servers_;
    EntryEncoder encoder_;
    std::unordered_map<std::string, StreamLane> lanes_;  // by name
    std::vector<std::unique_ptr<Job>> jobs_;             // in the order of submission
    std::vector<std::string> lines_;                     // for the log
    std::string name_, id_;                              // scratch space
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::RedisSink(outbox::redis_options(context.destination), context.clock);
    });
}
