// The source of pull destinations, and a consumer on it, against a scripted server.
#include "inbox/sources/pull.hpp"

#include <gmock/gmock.h>

#include <thread>

#include "inbox/consumer.hpp"
#include "unit/scripted_postgresql.hpp"

namespace inbox {
namespace {

using outbox::ScriptedPostgresql;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using End = ScriptedPostgresql::End;
using Statement = ScriptedPostgresql::Statement;
using Value = ScriptedPostgresql::Value;

// For what a test expects to happen.
constexpr milliseconds patience{120'000};

std::string big_endian(std::uint64_t number, int size) {
    std::string bytes;
    for (int shift = 8 * (size - 1); shift >= 0; shift -= 8)
        bytes += static_cast<char>(number >> shift);
    return bytes;
}

// As the server sends a uuid: here all digits are the same, which makes it readable.
std::string uuid_bytes(int digit) {
    return std::string(16, static_cast<char>(digit << 4 | digit));
}
std::string uuid(char digit) {
    const auto digits = [&](std::size_t count) { return std::string(count, digit); };
    return digits(8) + '-' + digits(4) + '-' + digits(4) + '-' + digits(4) + '-' + digits(12);
}

// Rows of outbox.fetch(): events under one token.
ScriptedPostgresql::Answer fetched(int token, const std::vector<int>& events) {
    ScriptedPostgresql::Answer answer{
        .columns = {"token", "attempts", "position", "occurred_at", "event_id", "version",
                    "schema_version", "source_event_id", "topic", "aggregate_type", "aggregate_id",
                    "event_type", "ordering_key", "content_type", "headers", "payload"}};
    for (const int event : events)
        answer.rows.push_back({uuid_bytes(token), big_endian(0, 4), big_endian(100 + event, 8),
                               big_endian(1, 8), uuid_bytes(event), big_endian(7, 8),
                               big_endian(2, 4), Value(), "item.events", "item", "i", "Changed",
                               "k", "text/plain", std::string("\1{\"h\": \"x\"}"),
                               std::string("a\0b", 3)});
    return answer;
}

class PullTest : public testing::Test {
  protected:
    PullTest() { server.on("outbox.fetch", fetched(0, {})); }

    PullSource& open(PullOptions options = {}) {
        source.emplace(server.conninfo(), "d", options);
        return open_made();
    }
    PullSource& open_made() {
        source->set_log([this](Level, const std::string& message) {
            const std::lock_guard lock(mutex);
            logged.push_back(message);
        });
        source->open();
        return *source;
    }

    // The next fetch returns these.
    void offer(int token, const std::vector<int>& events) {
        server.on("outbox.fetch", fetched(token, events), 1);
    }
    std::vector<Delivery> receive(int token, const std::vector<int>& events) {
        offer(token, events);
        return source->receive(100, patience);
    }

    // What was said about leases, in order: "ack a", "nack a 1".
    std::vector<std::string> said() const {
        std::vector<std::string> all;
        for (const Statement& statement : server.committed("SELECT outbox.")) {
            std::string text = statement.text.substr(14);
            text.resize(text.find('('));
            if (text == "fetch")
                continue;
            text += ' ' + statement.parameters.at(0).value().substr(0, 1);
            if (text.starts_with("nack"))
                text += ' ' + statement.parameters.at(1).value().substr(0, 1);
            all.push_back(text);
        }
        return all;
    }

    ScriptedPostgresql server;
    std::mutex mutex;
    std::vector<std::string> logged;
    std::optional<PullSource> source;
};

// ------------------------------------------------------------------------------------------------
// Fetching
// ------------------------------------------------------------------------------------------------

TEST_F(PullTest, EventsComeWhole) {
    open({.lease = seconds{7}, .max_events = 50});
    const auto deliveries = receive(0xa, {1, 2});
    ASSERT_THAT(deliveries, SizeIs(2));
    const Delivery& first = deliveries[0];
    EXPECT_EQ(first.handle, uuid('a'));
    EXPECT_EQ(first.message_id, "101");
    EXPECT_EQ(first.source, "pull:d");
    EXPECT_GT(first.size, 100u);
    const Event& event = first.event;
    EXPECT_EQ(event.id, uuid('1'));
    EXPECT_EQ(event.version, 7);
    EXPECT_EQ(event.schema_version, 2);
    EXPECT_EQ(event.source_event_id, std::nullopt);
    EXPECT_EQ(event.topic, "item.events");
    EXPECT_EQ(event.aggregate_type + event.aggregate_id + event.type, "itemiChanged");
    EXPECT_EQ(event.ordering_key + event.content_type, "ktext/plain");
    EXPECT_THAT(event.headers, ElementsAre(testing::Pair("h", "x")));
    EXPECT_EQ(event.payload, std::string("a\0b", 3));
    EXPECT_EQ(event.occurred_at.time_since_epoch().count(), 946'684'800'000'001);
    EXPECT_EQ(first.published_at, event.occurred_at);
    EXPECT_THAT(server.received("outbox.fetch").front().parameters,
                ElementsAre("d", "50", "7000 ms"));
}

TEST_F(PullTest, FetchesNoMoreThanThereIsRoomFor) {
    open();
    offer(0xa, {1});
    source->receive(3, patience);
    EXPECT_EQ(server.received("outbox.fetch").back().parameters.at(1), "3");
}

TEST_F(PullTest, AsksAgainUntilThereIsSomething) {
    open({.poll_max = milliseconds{1}});
    server.on("outbox.fetch", fetched(0xa, {1}));
    server.on("outbox.fetch", fetched(0, {}), 3);
    EXPECT_THAT(source->receive(100, patience), SizeIs(1));
    EXPECT_EQ(server.count("outbox.fetch"), 4u);
}

TEST_F(PullTest, ALostConnectionIsTransientAndAnotherIsMade) {
    open();
    server.on("outbox.fetch", ScriptedPostgresql::lost(End::before), 1);
    try {
        source->receive(100, patience);
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_TRUE(error.transient());
    }
    source->open();
    EXPECT_THAT(receive(0xa, {1}), SizeIs(1));
}

// A fetch whose answer was lost leaves a lease that nobody knows: it ends by itself.
TEST_F(PullTest, NothingIsSaidAboutALeaseThatDidNotArrive) {
    open();
    server.on(
        "outbox.fetch",
        [](const Statement&) {
            auto answer = fetched(0xa, {1});
            answer.end = End::after;
            return answer;
        },
        1);
    EXPECT_THROW(source->receive(100, patience), SourceError);
    source->close(patience);
    EXPECT_THAT(said(), IsEmpty());
}

TEST_F(PullTest, AnErrorThatNeedsAnOperatorIsNotTransient) {
    for (const auto& [sqlstate, transient] : {std::pair{"42704", false},
                                              {"42501", false},
                                              {"42883", false},
                                              {"3F000", false},
                                              {"0A000", false},
                                              {"40001", true},
                                              {"53300", true}}) {
        open();
        server.on("outbox.fetch", ScriptedPostgresql::error(sqlstate, "because"), 1);
        try {
            source->receive(100, patience);
            ADD_FAILURE() << sqlstate;
        } catch (const SourceError& error) {
            EXPECT_STREQ(error.what(), "because");
            EXPECT_EQ(error.transient(), transient) << sqlstate;
        }
    }
}

TEST_F(PullTest, AServerOfAnotherVersionIsReported) {
    open();
    server.on("outbox.fetch", {.columns = {"token"}, .rows = {{uuid_bytes(0xa)}}}, 1);
    EXPECT_THROW(
        {
            try {
                source->receive(100, patience);
            } catch (const SourceError& error) {
                EXPECT_THAT(error.what(), HasSubstr("no column position"));
                throw;
            }
        },
        SourceError);
}

TEST_F(PullTest, CloseEndsAReceiveThatWaits) {
    open({.poll_max = milliseconds{3'600'000}});
    std::thread closer([&] {
        server.wait_for("outbox.fetch");
        source->close(patience);
    });
    try {
        EXPECT_THAT(source->receive(100, patience), IsEmpty());
    } catch (const SourceError& error) {  // it was asking just then
        EXPECT_TRUE(error.transient());
    }
    closer.join();
}

// ------------------------------------------------------------------------------------------------
// Limits
// ------------------------------------------------------------------------------------------------

constexpr std::size_t mebibyte = 1024 * 1024;

// However the connection was made.
class PullLimitTest : public PullTest, public testing::WithParamInterface<bool> {
  protected:
    PullLimitTest() {
        const PullOptions options{.lease = std::chrono::hours{1}, .max_answer = mebibyte};
        if (GetParam())
            source.emplace(server.conninfo(), "d", options);
        else
            source.emplace([this] { return PQconnectdb(server.conninfo().c_str()); }, "d", options);
        open_made();
    }

    static ScriptedPostgresql::Answer with_payload(std::size_t size) {
        auto answer = fetched(0xa, {1});
        answer.rows[0].back() = std::string(size, 'x');
        return answer;
    }
};

INSTANTIATE_TEST_SUITE_P(Connections, PullLimitTest, testing::Bool(),
                         [](const auto& test) { return test.param ? "ByString" : "ByFactory"; });

TEST_P(PullLimitTest, AnAnswerWithMoreBytesIsNotReadToItsEnd) {
    server.on("outbox.fetch", with_payload(16 * mebibyte), 1);
    try {
        source->receive(100, patience);
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_THAT(error.what(), HasSubstr("too long: it has more than 1048576 bytes"));
        EXPECT_TRUE(error.transient());
    }
    source->open();
    EXPECT_THAT(receive(0xa, {1}), SizeIs(1));
}

TEST_P(PullLimitTest, AConnectionIsReplacedAfterAsManyBytes) {
    for (int i = 0; i < 5; i++) {
        server.on("outbox.fetch", with_payload(mebibyte * 3 / 4), 1);
        EXPECT_THAT(source->receive(100, patience), SizeIs(1));
    }
    std::vector<int> connections;
    for (const Statement& statement : server.received("outbox.fetch"))
        connections.push_back(statement.connection);
    EXPECT_THAT(connections, ElementsAre(1, 1, 2, 2, 3));
}

// ------------------------------------------------------------------------------------------------
// Settling
// ------------------------------------------------------------------------------------------------

TEST_F(PullTest, ALeaseIsAcknowledgedWhenAllUnderItIs) {
    open();
    const auto a = receive(0xa, {1, 2});
    const auto b = receive(0xb, {3});
    source->ack(std::span(a).first(1));
    source->ack(b);
    server.wait_for_commit("outbox.ack");
    EXPECT_THAT(said(), ElementsAre("ack b"));
    source->ack(std::span(a).last(1));
    source->close(patience);
    EXPECT_THAT(said(), ElementsAre("ack b", "ack a"));
}

TEST_F(PullTest, GivingBackADeliveryGivesBackLaterOnesOfItsKey) {
    open();
    const auto a = receive(0xa, {1, 2, 3, 4});
    server.on("outbox.nack", {.columns = {"nack"}, .rows = {{uuid('3')}}});  // behind the second
    source->ack(std::span(a).first(1));
    source->nack(std::span(a).subspan(1));
    server.wait_for_commit("outbox.ack");
    source->close(patience);
    EXPECT_THAT(said(), ElementsAre("nack a 2", "nack a 4", "ack a"));
}

// What a crash of the server then forgets is fetched again, and found to be applied; a fetch that
// it forgot would hand out events twice at the same time.
TEST_F(PullTest, OnlySettlingDoesNotWaitForTheDisk) {
    open();
    source->ack(receive(0xa, {1}));
    server.wait_for("outbox.ack");
    const auto set = server.received("synchronous_commit = off");
    ASSERT_THAT(set, SizeIs(1));
    EXPECT_EQ(set[0].connection, server.received("outbox.ack")[0].connection);
    EXPECT_NE(set[0].connection, server.received("outbox.fetch")[0].connection);
}

TEST_F(PullTest, AnAcknowledgementIsRepeatedUntilItIsAnswered) {
    open();
    const auto a = receive(0xa, {1});
    server.on("outbox.ack", ScriptedPostgresql::lost(End::before), 1);
    source->ack(a);
    server.wait_for_commit("outbox.ack");
    source->close(patience);
    EXPECT_THAT(said(), ElementsAre("ack a"));
    const std::lock_guard lock(mutex);
    EXPECT_THAT(logged, SizeIs(1));
}

// Of an acknowledgement that took effect, only its answer was lost.
TEST_F(PullTest, ALeaseThatIsNotKnownAnyMoreIsPassedOver) {
    open();
    const auto a = receive(0xa, {1});
    const auto b = receive(0xb, {2});
    server.on("outbox.ack", ScriptedPostgresql::error("OL001", "lease is not known"), 1);
    server.on("outbox.ack", ScriptedPostgresql::lost(End::after), 1);
    source->ack(a);
    server.wait_for("outbox.ack", 2);
    source->ack(b);
    server.wait_for_commit("outbox.ack", 2);
    source->close(patience);
    EXPECT_THAT(said(), ElementsAre("ack a", "ack b"));
    EXPECT_EQ(server.count("outbox.ack"), 3u);
}

TEST_F(PullTest, NothingElseIsSaidOfALeaseThatOthersHave) {
    open({.lease = milliseconds{150}});
    const auto a = receive(0xa, {1});
    server.on("outbox.extend", ScriptedPostgresql::error("OL001", "lease has ended"), 1);
    server.wait_for("outbox.extend");
    const auto b = receive(0xb, {2});
    server.wait_for("outbox.extend", 2);
    EXPECT_EQ(server.received("outbox.extend")[1].parameters.at(0), uuid('b'));
    source->ack(a);  // too late
    source->ack(b);
    source->close(patience);
    EXPECT_THAT(server.received("outbox.ack"), SizeIs(1));
    EXPECT_THAT(server.received("outbox.release"), IsEmpty());
}

TEST_F(PullTest, LeasesAreExtendedUntilTheirEventsAreSettled) {
    open({.lease = milliseconds{100}});
    const auto a = receive(0xa, {1, 2});
    source->ack(std::span(a).first(1));
    server.wait_for("outbox.extend", 3);
    EXPECT_THAT(server.received("outbox.extend")[0].parameters, ElementsAre(uuid('a'), "100 ms"));
    EXPECT_EQ(server.count("outbox.ack"), 0u);
    source->ack(std::span(a).last(1));
    server.wait_for("outbox.ack");
    const std::size_t extended = server.count("outbox.extend");
    const auto b = receive(0xb, {3});
    server.wait_for("outbox.extend", extended + 2);
    for (std::size_t i = extended; i < server.count("outbox.extend"); i++)
        EXPECT_EQ(server.received("outbox.extend")[i].parameters.at(0), uuid('b'));
}

TEST_F(PullTest, LeasesAreExtendedOverAnotherConnectionWhenOneIsLost) {
    open({.lease = milliseconds{100}});
    const auto a = receive(0xa, {1});
    server.on("outbox.extend", ScriptedPostgresql::lost(End::before), 1);
    server.wait_for("outbox.extend", 3);
    source->ack(a);
    server.wait_for("outbox.ack");
}

TEST_F(PullTest, CloseGivesBackWhatIsNotSettled) {
    open();
    const auto a = receive(0xa, {1, 2});
    receive(0xb, {3});
    source->ack(a);
    source->close(patience);
    EXPECT_THAT(said(), ElementsAre("ack a", "release b"));
}

TEST_F(PullTest, CloseWaitsNoLongerThanItMay) {
    open();
    const auto a = receive(0xa, {1});
    server.hold("outbox.ack");
    source->ack(a);
    server.wait_for("outbox.ack");
    source->close(milliseconds{0});  // returns
    EXPECT_THAT(said(), IsEmpty());
}

TEST_F(PullTest, ASeekEndsTheLeases) {
    open();
    const auto a = receive(0xa, {1});
    source->seek(Time{std::chrono::microseconds{1'709'208'000'123'456}});
    const auto sought = server.committed("outbox.seek");
    ASSERT_THAT(sought, SizeIs(1));
    EXPECT_THAT(sought[0].parameters,
                ElementsAre("d", testing::Optional(HasSubstr("2024-02-29T12:00:00.123456"))));
    source->ack(a);
    source->close(patience);
    EXPECT_EQ(server.count("outbox.ack") + server.count("outbox.release"), 0u);
}

// ------------------------------------------------------------------------------------------------
// A consumer on it
// ------------------------------------------------------------------------------------------------

// The same server plays both databases: what it got shows the order.
class PullConsumerTest : public PullTest {
  protected:
    PullConsumerTest() {
        server.on("inbox.begin_events", ScriptedPostgresql::value("{t}"));
        server.on("inbox.load_offset", {.columns = {"reset_id", "micros"}});
        server.on("inbox.claim", [](const Statement&) { return fetched(0, {}); });
    }

    void start(PullOptions pull = {}) {
        consumer.emplace(
            ConsumerOptions{.name = "c",
                            .connections = 1,
                            .retry_base = milliseconds{1},
                            .retry_max = milliseconds{1},
                            .drain_limit = milliseconds{0}},
            std::make_unique<PullSource>(server.conninfo(), "d", pull),
            [this] { return PQconnectdb(server.conninfo().c_str()); },
            [](Transaction& transaction, const Event&) { transaction.queue("INSERT effect"); });
        runner = std::thread([this] { consumer->run(); });
    }
    void stop() {
        consumer->stop();
        runner.join();
    }

    // The number of the first statement received with this text.
    std::size_t first(std::string_view text) const {
        const auto all = server.received();
        return static_cast<std::size_t>(
            std::ranges::find_if(all, [&](const Statement& s) { return s.has(text); }) -
            all.begin());
    }

    std::optional<Consumer> consumer;
    std::thread runner;
};

TEST_F(PullConsumerTest, AcknowledgesWhenTheCommitIsAnswered) {
    offer(0xa, {1});
    server.hold("COMMIT", "INSERT effect");
    start({.lease = milliseconds{100}});
    server.wait_for("COMMIT", 3);  // BEGIN ... READ COMMITTED and COMMIT are of the housekeeper
    server.wait_for("outbox.extend", 2);  // the lease is kept all the while
    EXPECT_EQ(server.count("outbox.ack"), 0u);
    server.let_go();
    server.wait_for("outbox.ack");
    EXPECT_THAT(server.committed("INSERT effect"), SizeIs(1));
    EXPECT_LT(first("INSERT effect"), first("outbox.ack"));
    stop();
}

TEST_F(PullConsumerTest, AcknowledgesNothingWhoseCommitIsUnknown) {
    offer(0xa, {1});
    server.hold("COMMIT", "INSERT effect");
    start();
    server.wait_for("COMMIT", 3);
    stop();
    EXPECT_EQ(server.count("outbox.ack"), 0u);
    EXPECT_THAT(server.committed("outbox.release"), SizeIs(1)) << "it comes again";
    EXPECT_EQ(consumer->metrics().acked, 0u);
}

TEST_F(PullConsumerTest, GivesBackWhatFailed) {
    server.on("inbox.begin_event(", ScriptedPostgresql::value("t"));
    server.on("inbox.fail_event", ScriptedPostgresql::value("f"));
    server.on("INSERT effect", ScriptedPostgresql::error("23505"));
    offer(0xa, {1});
    start();
    server.wait_for_commit("outbox.nack");
    stop();
    EXPECT_THAT(server.committed("INSERT effect"), IsEmpty());
    EXPECT_THAT(server.committed("inbox.fail_event"), SizeIs(1));
    EXPECT_EQ(server.received("outbox.nack")[0].parameters.at(1), uuid('1'));
    EXPECT_LT(first("inbox.fail_event"), first("outbox.nack"));
    EXPECT_EQ(consumer->metrics().nacked, 1u);
}

}  // namespace
}  // namespace inbox
