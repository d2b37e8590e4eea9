// The postgresql sink without a server.
#include <gtest/gtest.h>

#include "unit/drive.hpp"
#include "unit/failing_new.hpp"

namespace outbox {
namespace {

class PostgresqlSink : public DrivenSink {};

TEST_F(PostgresqlSink, ThrowsBadAllocWhenMemoryRunsOut) {
    Event event;
    event.position = 1;
    event.topic = event.aggregate_type = event.aggregate_id = event.event_type = "e";
    Batch batch;
    batch.events = {&event};
    const Outcome outcome = send_without_memory(
        batch,
        [&] {
            make({{"url", "postgresql://127.0.0.1:1/nowhere"}}, {});
        },
        allocations_until_failure, allocation_failed);
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.batch, &batch);
}

}  // namespace
}  // namespace outbox
