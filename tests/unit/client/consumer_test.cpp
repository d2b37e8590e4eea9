// The consumer without a database: its behaviour while it waits for one.
#include "inbox/consumer.hpp"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>

#include "counters.hpp"
#include "deliveries.hpp"
#include "flag.hpp"
#include "inbox/sources/pull.hpp"
#include "inbox/sources/scripted.hpp"

#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
static thread_local int threads_until_failure = -1;  // -1 if none fails

// Replaces the function of the system.
extern "C" __attribute__((visibility("default"))) int pthread_create(
    pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
    void* argument) noexcept {
    if (threads_until_failure >= 0 && threads_until_failure-- == 0)
        return EAGAIN;
    static const auto create =
        reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
    return create(thread, attributes, start, argument);
}
#endif

namespace inbox {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

PGconn* nowhere() {
    return PQconnectdb("host=/nonexistent user=x");
}

void no_handler(Transaction&, const Event&) {
    FAIL() << "there is no transaction";
}

class ConsumerTest : public testing::Test {
  protected:
    std::shared_ptr<Script> script = std::make_shared<Script>();
    ConsumerOptions options{
        .name = "c", .retry_base = milliseconds{1}, .retry_max = milliseconds{5}};

    std::unique_ptr<Consumer> make(ConnectionFactory connect = nowhere) {
        return std::make_unique<Consumer>(options, std::make_unique<ScriptedSource>(script),
                                          std::move(connect), no_handler);
    }
};

TEST_F(ConsumerTest, KeepsDeliveriesWhileTheDatabaseIsUnreachable) {
    std::atomic<int> attempts = 0;
    const auto consumer = make([&] {
        attempts++;
        return nowhere();
    });
    std::thread runner([&] { consumer->run(); });
    script->deliver(delivery("a", 1).event);
    script->deliver(delivery("a", 2).event);
    while (attempts < 20 || consumer->metrics().received < 2)
        std::this_thread::yield();
    EXPECT_FALSE(script->wait_until_settled(milliseconds{1}));
    consumer->stop();
    runner.join();
    EXPECT_THAT(script->acked(), IsEmpty());
    EXPECT_THAT(script->nacked(), IsEmpty());
    EXPECT_TRUE(script->closed());
    EXPECT_EQ(consumer->metrics().received, 2u);
}

TEST_F(ConsumerTest, AFactoryThatThrowsCountsAsAnUnreachableDatabase) {
    std::atomic<int> attempts = 0;
    const auto consumer = make([&]() -> PGconn* {
        attempts++;
        throw std::runtime_error("no");
    });
    std::thread runner([&] { consumer->run(); });
    script->deliver(delivery("a", 1).event);
    while (attempts < 5)
        std::this_thread::yield();
    consumer->stop();
    runner.join();
}

TEST_F(ConsumerTest, ASourceErrorThatIsNotTransientEndsRun) {
    script->fail_open(1, "never", false);
    EXPECT_THROW(make()->run(), SourceError);
}

TEST_F(ConsumerTest, ASourceThatCannotGoOnEndsRun) {
    script->fail_receive(1, "no more", false);
    EXPECT_THROW(make()->run(), SourceError);
}

TEST_F(ConsumerTest, APauseDoesNotKeepItFromStopping) {
    options.retry_base = options.retry_max = std::chrono::hours{1};
    std::atomic<int> attempts = 0;
    const auto consumer = make([&] {
        attempts++;
        return nowhere();
    });
    std::thread runner([&] { consumer->run(); });
    script->deliver(delivery("a", 1).event);
    while (attempts < 1 || consumer->metrics().received < 1)
        std::this_thread::yield();
    consumer->stop();
    runner.join();
    EXPECT_THAT(script->acked(), IsEmpty());
}

TEST_F(ConsumerTest, ASourceThatFailsIsOpenedAgain) {
    script->fail_open(3);
    const auto consumer = make();
    std::thread runner([&] { consumer->run(); });
    while (script->opened() == 0)
        std::this_thread::yield();
    script->fail_receive(2);
    while (script->opened() < 3)
        std::this_thread::yield();
    consumer->stop();
    runner.join();
    EXPECT_EQ(consumer->metrics().source_reconnects, 2u);
}

// Sanitizers replace pthread_create() themselves.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)

TEST_F(ConsumerTest, FailsIfTheSystemHasNoMoreThreads) {
    options.connections = 2;
    for (const int threads : {0, 1, 2, 3}) {
        const auto consumer = make();
        threads_until_failure = threads;
        EXPECT_THROW(consumer->run(), std::system_error) << threads;
        EXPECT_TRUE(script->closed());
    }
}

#endif

TEST_F(ConsumerTest, ReturnsAtOnceIfStoppedBeforeRun) {
    const auto consumer = make();
    consumer->stop();
    consumer->run();
    EXPECT_TRUE(script->closed());
}

TEST_F(ConsumerTest, RefusesOptionsOutOfRange) {
    for (const auto& spoil : std::initializer_list<void (*)(ConsumerOptions&)>{
             [](ConsumerOptions& o) { o.name = ""; }, [](ConsumerOptions& o) { o.connections = 0; },
             [](ConsumerOptions& o) { o.batch_size = 0; },
             [](ConsumerOptions& o) { o.max_attempts = -1; },
             [](ConsumerOptions& o) { o.max_outstanding_messages = 0; },
             [](ConsumerOptions& o) { o.max_outstanding_bytes = 0; },
             [](ConsumerOptions& o) { o.retry_base = milliseconds{0}; },
             [](ConsumerOptions& o) { o.retry_max = milliseconds{0}; },
             [](ConsumerOptions& o) { o.housekeeping_interval = milliseconds{0}; },
             [](ConsumerOptions& o) { o.drain_limit = milliseconds{-1}; }}) {
        const ConsumerOptions good = options;
        spoil(options);
        EXPECT_THROW(make(), std::invalid_argument);
        options = good;
    }
    EXPECT_THROW(Consumer(options, nullptr, nowhere, no_handler), std::invalid_argument);
}

// ------------------------------------------------------------------------------------------------
// Sources
// ------------------------------------------------------------------------------------------------

TEST(ScriptedSourceTest, WhatIsNackedComesAgainFirstAndInOrder) {
    const auto script = std::make_shared<Script>();
    ScriptedSource source(script);
    source.open();
    for (int i = 1; i <= 4; i++)
        script->deliver(delivery("a", i));
    const auto first = source.receive(3, milliseconds{0});
    EXPECT_THAT(message_ids(first), ElementsAre("a1", "a2", "a3"));
    source.ack(std::span(first).first(1));
    source.nack(std::span(first).subspan(1));
    EXPECT_THAT(message_ids(source.receive(9, milliseconds{0})), ElementsAre("a2", "a3", "a4"));
    source.open();
    const auto again = source.receive(9, milliseconds{0});
    EXPECT_THAT(message_ids(again), ElementsAre("a2", "a3", "a4"));
    source.ack(first);  // with handles from before the source was opened again
    EXPECT_FALSE(script->wait_until_settled(milliseconds{0}));
    source.ack(again);
    EXPECT_TRUE(script->wait_until_settled(milliseconds{0}));
    EXPECT_THAT(script->acked(), ElementsAre("a1", "a2", "a3", "a4"));
}

TEST(PullSourceTest, AnUnreachableDatabaseIsATransientError) {
    PullSource source(nowhere, "d");
    try {
        source.open();
        FAIL();
    } catch (const SourceError& error) {
        EXPECT_TRUE(error.transient()) << error.what();
    }
    source.close(seconds{1});
    EXPECT_THROW(PullSource(nowhere, "d", {.max_events = 101}), std::invalid_argument);
    EXPECT_THROW(PullSource(nowhere, ""), std::invalid_argument);
}

// For ThreadSanitizer: any thread may call seek(), also while the source is opened again.
TEST(PullSourceTest, SeekMayComeFromAnyThread) {
    PullSource source(nowhere, "d");
    std::thread seeker([&] {
        for (int i = 0; i < 20; i++)
            EXPECT_THROW(source.seek(Time{}), SourceError);
    });
    for (int i = 0; i < 20; i++) {
        EXPECT_THROW(source.open(), SourceError);
        EXPECT_THROW(source.receive(1, milliseconds{0}), SourceError);
    }
    seeker.join();
    source.close(seconds{1});
}

// ------------------------------------------------------------------------------------------------
// Metrics, flags
// ------------------------------------------------------------------------------------------------

TEST(ClientMetrics, PercentilesCoverTheLastThousandBatches) {
    RecentTimes times;
    std::chrono::microseconds p50{}, p99{};
    for (int i = 0; i < 1000; i++)
        times.add(std::chrono::hours{1});
    for (int i = 1; i <= 1000; i++)
        times.add(std::chrono::microseconds{i});
    times.percentiles(p50, p99);
    EXPECT_EQ(p50.count(), 500);
    EXPECT_EQ(p99.count(), 990);
}

TEST(ClientMetrics, AreWrittenAsOpenMetrics) {
    ConsumerMetrics metrics;
    metrics.applied = 7;
    metrics.apply_p99 = milliseconds{1500};
    const std::string text = open_metrics(metrics, "a\"b\\\n");
    EXPECT_THAT(text, HasSubstr("# TYPE inbox_applied counter\n"));
    EXPECT_THAT(text, HasSubstr("inbox_applied_total{consumer=\"a\\\"b\\\\\\n\"} 7\n"));
    EXPECT_THAT(
        text,
        HasSubstr("inbox_apply_seconds{consumer=\"a\\\"b\\\\\\n\",quantile=\"0.99\"} 1.500000\n"));
    EXPECT_THAT(text, testing::EndsWith("# EOF\n"));
}

TEST(ClientFlag, StaysRaised) {
    Flag flag;
    EXPECT_FALSE(flag.wait(milliseconds{0}));
    std::thread raiser([&] { flag.raise(); });
    flag.wait();
    raiser.join();
    EXPECT_TRUE(flag.wait(milliseconds{0}));
    EXPECT_TRUE(flag.raised());
}

}  // namespace
}  // namespace inbox
