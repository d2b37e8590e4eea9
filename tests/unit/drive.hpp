// Drives a sink as the relay's loop does.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "core/clock.hpp"
#include "core/sink.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/registry.hpp"

extern "C" outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept;

namespace outbox {

// Only a test that fails takes this long. ThreadSanitizer on a loaded machine takes half a minute
// for a large body.
constexpr Micros patience = seconds(120);

// A sink from the module in this program, and its destination: the base of the fixtures for sinks.
class DrivenSink : public testing::Test {
  protected:
    // Sends a batch through a new sink each time. In each run one more allocation succeeds before
    // one fails. Calls failed() for each failure. Returns the outcome of the first run without one.
    template <class Make, class Allocations, class Failed>
    Outcome send_without_memory(Batch& batch, Make make_sink, Allocations& until_failure,
                                Failed failed) {
        for (long n = 0;; n++) {
            make_sink();
            std::vector<Outcome> all;
            const Micros give_up = clock_.now() + patience;
            bool thrown = false;
            until_failure = n;
            try {
                sink_->submit(batch);
                while (all.empty() && clock_.now() < give_up)
                    step_once(all);
            } catch (const std::bad_alloc&) {
                thrown = true;
            }
            const bool happened = failed();
            if (thrown)
                continue;
            // Otherwise it failed inside a callback of a C library, which has its own way to report
            // it.
            if (all.empty() || all.front().error == "out of memory") {
                ADD_FAILURE() << "allocation " << n << " failed and was swallowed";
                return {};
            }
            if (!happened)
                return all.front();
        }
    }

    void step_once(std::vector<Outcome>& all) {
        pollfd watched = {sink_->descriptor(), POLLIN, 0};
        if (sink_->deadline() > clock_.now())
            poll(&watched, 1, 10);
        sink_->step(clock_.now(), all);
    }

    void make(const std::vector<Option>& options, const std::vector<Option>& mapping,
              const std::string& allowed_hosts = "127.0.0.1") {
        DestinationDefaults defaults;
        defaults.allowed_hosts = allowed_hosts;
        Result<Destination> parsed = parse_destination("d", options, mapping, defaults);
        ASSERT_TRUE(parsed.ok()) << parsed.error().message;
        destination_ = std::move(parsed.value());
        destination_.source = "shop";
        sink_.reset(OUTBOX_CREATE_SINK({destination_, clock_}));
        ASSERT_NE(sink_, nullptr);
        EXPECT_EQ(sink_->capabilities().ordered, destination_.sink->ordered) << "not as declared";
        EXPECT_TRUE(!sink_->capabilities().lanes || destination_.sink->lanes) << "not as declared";
    }

    // Steps until there are `count` outcomes.
    std::vector<Outcome> outcomes(std::size_t count) {
        std::vector<Outcome> all;
        const Micros give_up = clock_.now() + patience;
        while (all.size() < count && clock_.now() < give_up) {
            sink_->step(clock_.now(), all);
            if (all.size() >= count)
                break;
            const Micros due = std::min(sink_->deadline(), give_up);
            const Micros left = std::max<Micros>(0, due - clock_.now());
            pollfd watched{sink_->descriptor(), POLLIN, 0};
            poll(&watched, 1, static_cast<int>((left + 999) / 1000));
        }
        EXPECT_EQ(all.size(), count) << "outcomes are missing";
        all.resize(count);
        return all;
    }

    Outcome send(Batch& batch) {
        sink_->submit(batch);
        return outcomes(1).front();
    }

    SystemClock clock_;
    Destination destination_;
    std::unique_ptr<Sink> sink_;
};

}  // namespace outbox
