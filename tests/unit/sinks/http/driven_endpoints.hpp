// The sink with endpoints, driven as a relay does: with a log, windows, questions and restarts, against
// a web server that answers as the test wants.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "core/endpoints.hpp"
#include "core/sink.hpp"
#include "unit/drive.hpp"
#include "unit/scripted_peer.hpp"
#include "unit/sinks/http/fake_endpoint_tables.hpp"

namespace outbox {

// Its time passes faster, so that a test need not wait for what takes seconds.
class FastClock final : public Clock {
  public:
    static constexpr Micros factor = 10;
    // A test that gets no processor for a while shall not find that endpoints were slow.
    static constexpr Micros max_tick = milliseconds(50);

    Micros now() const noexcept override { return now_; }
    Micros unix_now() const noexcept override { return clock_.unix_now(); }

    void tick() noexcept {
        const Micros real = clock_.now();
        if (!stopped_)
            now_ += std::min((real - ticked_at_) * factor, max_tick);
        ticked_at_ = real;
    }
    // From here on it goes only as far as it is advanced.
    void stop() noexcept { stopped_ = true; }
    void advance(Micros time) noexcept { now_ += time; }

  private:
    SystemClock clock_;
    Micros ticked_at_ = clock_.now();
    Micros now_ = ticked_at_;
    bool stopped_ = false;
};

// A request as the web server saw it.
struct Received {
    std::string endpoint;  // the last part of the path
    std::int64_t position = 0;
    int status = 0;
};

class DrivenEndpoints : public testing::Test {
  protected:
    using Options = std::vector<Option>;
    // Returns a status, or 0: no answer yet; asked again after answer_now().
    using Script = std::function<int(const std::string& endpoint, std::int64_t position)>;

    DrivenEndpoints() {
        peer_.answer_with([this](const std::string& request) { return reply(request); });
    }

    void answer_with(Script script) {
        const std::lock_guard lock(mutex_);
        script_ = std::move(script);
    }
    void answer_now(Script script) {
        answer_with(std::move(script));
        peer_.ask_again();
    }
    std::vector<Received> received() const {
        const std::lock_guard lock(mutex_);
        return received_;
    }
    // The positions that the endpoint has accepted, in order.
    std::vector<std::int64_t> accepted(const std::string& endpoint) const {
        std::vector<std::int64_t> positions;
        for (const Received& one : received())
            if (one.endpoint == endpoint && one.status / 100 == 2)
                positions.push_back(one.position);
        return positions;
    }
    std::size_t tries(const std::string& endpoint) const {
        const std::vector<Received> all = received();
        return static_cast<std::size_t>(std::count_if(
            all.begin(), all.end(), [&](const Received& one) { return one.endpoint == endpoint; }));
    }

    std::string url_of(const std::string& endpoint) {
        std::string url = peer_.url();
        return url.substr(0, url.rfind('/') + 1) + endpoint;
    }
    FakeEndpointTables::Endpoint& endpoint(const std::string& name,
                                           const std::string& topics = "t") {
        EndpointRow row;
        row.name = name;
        row.url = url_of(name);
        row.topics = topics;
        return tables_.add(std::move(row));
    }

    // -- The relay --------------------------------------------------------------------------------

    void start(Options options = {}, Options mapping = {}) {
        options.push_back({"url", "endpoints:"});
        for (const Option& usual :
             Options{{"retry_base", "100ms"}, {"retry_max", "500ms"}, {"request_timeout", "60s"}})
            if (std::none_of(options.begin(), options.end(),
                             [&](const Option& one) { return one.name == usual.name; }))
                options.push_back(usual);
        DestinationDefaults defaults;
        defaults.allowed_hosts = "127.0.0.1";
        Result<Destination> parsed = parse_destination("hooks", options, mapping, defaults);
        ASSERT_TRUE(parsed.ok()) << parsed.error().message;
        destination_ = std::move(parsed.value());
        destination_.source = "shop";
        restart();
    }

    // Begins with the first event that is not confirmed.
    void restart() {
        sink_.reset();
        batches_.clear();
        windows_.clear();
        under_way_.reset();
        read_ = confirmed_;
        sink_.reset(OUTBOX_CREATE_SINK({destination_, clock_}));
        ASSERT_NE(sink_, nullptr);
        ASSERT_NE(sink_->endpoints(), nullptr);
    }

    Endpoints& endpoints() { return *sink_->endpoints(); }

    void log(const std::string& topic, const std::string& key = "") { tables_.log(topic, key); }

    // Hands over what the log has.
    void read(std::size_t per_batch = 3) {
        const std::vector<LoggedEvent>& log = tables_.logged();
        if (read_ == log.size())
            return;
        windows_.push_back(tables_.now());
        while (read_ < log.size()) {
            Handed& handed = batches_.emplace_back();
            for (; read_ < log.size() && handed.batch.events.size() < per_batch; read_++) {
                Event* event = append_logged(handed.block, log[read_]);
                handed.batch.events.push_back(event);
            }
            sink_->submit(handed.batch);
        }
    }

    EndpointPlace place() {
        std::uint64_t xid = 0;
        std::int64_t position = 0;
        EndpointPlace place;
        const std::vector<LoggedEvent>& log = tables_.logged();
        place.done = cursor();
        if (!endpoints().last_event(xid, position) || place.done.finished(xid))
            return place;
        Snapshot start = place.done;
        for (const Snapshot& end : windows_) {
            if (end.finished(xid))
                return {start, end, position};
            if (end.xmax > start.xmax)
                start = end;
        }
        ADD_FAILURE() << "the last event is in no window of " << log.size() << " events";
        return place;
    }

    // A snapshot with what is confirmed.
    Snapshot cursor() const {
        if (confirmed_ == 0)
            return {1, 1, {}};
        const std::uint64_t next = tables_.logged()[confirmed_ - 1].xid + 1;
        return {next, next, {}};
    }

    // One turn of the relay's loop.
    void turn() {
        clock_.tick();
        std::vector<Outcome> outcomes;
        sink_->step(clock_.now(), outcomes);
        for (const Outcome& outcome : outcomes)
            take(outcome);
        if (asks_ && !under_way_ && endpoints().due() <= clock_.now())
            answer(ask());
        const Micros next =
            std::min(sink_->deadline(), asks_ && !under_way_ ? endpoints().due() : never);
        const Micros wait = std::clamp<Micros>(
            (next - std::min(next, clock_.now())) / FastClock::factor, 0, 20'000);
        pollfd watched{sink_->descriptor(), POLLIN, 0};
        poll(&watched, 1, static_cast<int>((wait + 999) / 1000));
    }

    template <class Condition>
    testing::AssertionResult turn_until(Condition condition) {
        const SystemClock real;
        const Micros give_up = real.now() + patience / 4;
        while (!condition()) {
            if (real.now() > give_up)
                return testing::AssertionFailure() << "took too long";
            turn();
        }
        return testing::AssertionSuccess();
    }
    // Long enough for what should not happen.
    void turn_for(Micros time) {
        const Micros end = clock_.now() + time;
        while (clock_.now() < end)
            turn();
    }

    // The parts of a question, for tests that stop in between.
    const std::string& ask() {
        question_ = endpoints().ask(place());
        questions_.push_back(question_);
        under_way_ = question_;
        return question_;
    }
    void answer(const std::string& question) {
        EndpointAnswer answer = tables_.ask(question);
        under_way_.reset();
        endpoints().answered(std::move(answer));
    }
    void answer() { answer(std::string(*under_way_)); }
    void fail(bool with_effect) {
        if (with_effect)
            tables_.ask(*under_way_);
        under_way_.reset();
        endpoints().failed();
    }
    bool is_due() { return endpoints().due() <= clock_.now(); }
    // Turns until the sink has a question, and asks it.
    testing::AssertionResult ask_next() {
        asks_ = false;
        testing::AssertionResult result = turn_until([&] { return is_due(); });
        if (result)
            ask();
        asks_ = true;
        return result;
    }
    bool asked(const std::string& text) const {
        return std::any_of(questions_.begin(), questions_.end(), [&](const std::string& one) {
            return one.find(text) != std::string::npos;
        });
    }

    bool all_confirmed() const { return confirmed_ == tables_.logged().size(); }
    bool is_behind(const std::string& name) { return tables_.at(name).row.behind; }

    void take(const Outcome& outcome) {
        EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
        for (Handed& handed : batches_)
            if (&handed.batch == outcome.batch) {
                EXPECT_FALSE(handed.confirmed);
                handed.confirmed = true;
            }
        std::size_t confirmed = read_;
        for (std::size_t i = batches_.size(); i > 0; i--) {
            if (!batches_[i - 1].confirmed)
                confirmed =
                    static_cast<std::size_t>(batches_[i - 1].batch.events.front()->position) - 1;
        }
        confirmed_ = std::max(confirmed_, confirmed);
    }

    FastClock clock_;
    ScriptedPeer peer_;
    FakeEndpointTables tables_;
    Destination destination_;
    std::unique_ptr<Sink> sink_;
    bool asks_ = true;  // turn() does
    std::optional<std::string> under_way_;
    std::string question_;
    std::vector<std::string> questions_;

  private:
    struct Handed {
        EventBlock block;
        Batch batch{};
        bool confirmed = false;
    };

    std::optional<Reply> reply(const std::string& request) {
        const std::size_t path = request.find(' ') + 2;
        const std::string name = request.substr(path, request.find(' ', path) - path);
        const std::int64_t position = std::stoll(request.substr(request.find("\r\n\r\n") + 4));
        const std::lock_guard lock(mutex_);
        const int status = script_ ? script_(name, position) : 204;
        if (status == 0)
            return std::nullopt;
        received_.push_back({name, position, status});
        if (status < 0)  // no answer
            return Reply{.bytes = "", .close = true};
        return Reply{.bytes =
                         "HTTP/1.1 " + std::to_string(status) + " x\r\nContent-Length: 0\r\n\r\n"};
    }

    mutable std::mutex mutex_;
    Script script_;
    std::vector<Received> received_;
    std::deque<Handed> batches_;
    std::vector<Snapshot> windows_;
    std::size_t read_ = 0;
    std::size_t confirmed_ = 0;
};

}  // namespace outbox
