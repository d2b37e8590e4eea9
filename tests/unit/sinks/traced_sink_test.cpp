#include "sinks/traced_sink.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sinks/registry.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class TracedSinkTest : public testing::Test {
  protected:
    std::unique_ptr<Sink> sink_of_null() {
        destination_ = parse_destination("d", {{"url", "null:"}}, {}, {}).value();
        return std::move(create_sink({destination_, clock_}).value());
    }

    Destination destination_;
    SystemClock clock_;
};

TEST_F(TracedSinkTest, WithoutACollectorItIsTheSinkItself) {
    std::unique_ptr<Sink> sink = sink_of_null();
    const Sink* const itself = sink.get();
    EXPECT_EQ(traced(std::move(sink), {}, {destination_, clock_}).get(), itself);
}

// The module beside the program is none of ours (other_module.cpp).
TEST_F(TracedSinkTest, WithoutTheModuleForHttpItWorksAndSaysSoOnce) {
    const std::unique_ptr<Sink> sink =
        traced(sink_of_null(), {"http://127.0.0.1:4318/v1/traces", ""}, {destination_, clock_});
    Event event;
    Batch batch{.events = {&event}};
    std::vector<Outcome> outcomes;
    sink->submit(batch);
    sink->step(clock_.now(), outcomes);
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(outcomes[0].fate, Fate::confirmed);
    SinkReport report;
    EXPECT_FALSE(sink->report(report));
    EXPECT_THAT(report.lines, ElementsAre(HasSubstr("tracing: no spans are sent: ")));
    EXPECT_FALSE(sink->report(report));
    EXPECT_THAT(report.lines, ElementsAre());
}

}  // namespace
}  // namespace outbox
