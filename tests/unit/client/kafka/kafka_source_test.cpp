// The Kafka source against librdkafka's mock cluster.
#include "inbox/sources/kafka.hpp"

#include <gmock/gmock.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <set>
#include <thread>

#include "unit/sinks/kafka/mock_cluster.hpp"

namespace inbox {
namespace {

using std::chrono::milliseconds;
using testing::AnyOf;
using testing::Contains;
using testing::HasSubstr;

class KafkaSourceTest : public testing::Test {
  protected:
    KafkaSourceTest() { cluster.add_topic("t", 2); }

    KafkaOptions options() const {
        return {.brokers = cluster.brokers(),
                .group = "g",
                .topics = {"t"},
                .session_timeout = milliseconds(6000),
                .commit_interval = milliseconds(20)};
    }
    std::unique_ptr<KafkaSource> open(KafkaOptions with) {
        auto source = std::make_unique<KafkaSource>(std::move(with));
        source->set_log([this](Level, const std::string& message) {
            const std::lock_guard lock(mutex);
            logged.push_back(message);
        });
        source->open();
        return source;
    }
    std::unique_ptr<KafkaSource> open() { return open(options()); }

    void send(int partition, int from, int to) {
        char error[512] = "";
        rd_kafka_conf_t* const conf = rd_kafka_conf_new();
        rd_kafka_conf_set(conf, "bootstrap.servers", cluster.brokers().c_str(), error,
                          sizeof error);
        rd_kafka_t* const producer = rd_kafka_new(RD_KAFKA_PRODUCER, conf, error, sizeof error);
        ASSERT_NE(producer, nullptr) << error;
        for (int n = from; n < to; n++) {
            const std::string value = std::to_string(n);
            rd_kafka_producev(producer, RD_KAFKA_V_TOPIC("t"), RD_KAFKA_V_PARTITION(partition),
                              RD_KAFKA_V_KEY("k", 1),
                              RD_KAFKA_V_VALUE(const_cast<char*>(value.data()), value.size()),
                              RD_KAFKA_V_MSGFLAGS(RD_KAFKA_MSG_F_COPY), RD_KAFKA_V_END);
        }
        EXPECT_EQ(rd_kafka_flush(producer, 60'000), RD_KAFKA_RESP_ERR_NO_ERROR);
        rd_kafka_destroy(producer);
    }

    // Waits for a condition; a test that hangs ends by the limit of its program.
    static void wait(const std::function<bool()>& condition) {
        while (!condition())
            std::this_thread::sleep_for(milliseconds(2));
    }
    static std::vector<Delivery> receive(KafkaSource& source, std::size_t count) {
        std::vector<Delivery> received;
        wait([&] {
            for (Delivery& each : source.receive(count - received.size(), milliseconds(100)))
                received.push_back(std::move(each));
            return received.size() == count;
        });
        return received;
    }
    static std::multiset<std::string> payloads(const std::vector<Delivery>& deliveries) {
        std::multiset<std::string> payloads;
        for (const Delivery& each : deliveries)
            payloads.insert(*each.event.payload);
        return payloads;
    }

    outbox::MockCluster cluster{3};
    std::mutex mutex;
    std::vector<std::string> logged;
};

TEST_F(KafkaSourceTest, GoesOnWhereItHasCommitted) {
    send(0, 0, 5);
    auto source = open();
    std::vector<Delivery> received = receive(*source, 5);
    source->ack(std::span(received).first(3));
    source->close(milliseconds(20'000));
    source = open();
    received = receive(*source, 2);
    EXPECT_EQ(payloads(received), (std::multiset<std::string>{"3", "4"}));
    source->close(milliseconds(20'000));
    EXPECT_EQ(source->stats().acked, 0u);
    EXPECT_EQ(source->stats().received, 2u);
}

TEST_F(KafkaSourceTest, SharesWithAnotherProcess) {
    const auto first = open();
    wait([&] { return first->stats().partitions == 2; });
    const auto second = open();
    wait([&] { return first->stats().partitions == 1 && second->stats().partitions == 1; });
    send(0, 0, 3);
    send(1, 3, 6);
    std::vector<Delivery> received = receive(*first, 3);
    std::ranges::move(receive(*second, 3), std::back_inserter(received));
    EXPECT_EQ(payloads(received), (std::multiset<std::string>{"0", "1", "2", "3", "4", "5"}));
    second->close(milliseconds(20'000));
    wait([&] { return first->stats().partitions == 2; });
}

TEST_F(KafkaSourceTest, APartitionWaitsForWhatIsHandedOut) {
    send(0, 0, 2);
    send(1, 0, 2);
    const auto first = open();
    std::vector<Delivery> received = receive(*first, 4);
    const auto second = open();
    std::function<bool(const Delivery&)> recalled;
    std::vector<Delivery> begun;
    wait([&] {
        recalled = first->recall();
        if (recalled)
            begun = received;
        std::erase_if(begun, [&](const Delivery& each) { return !recalled || !recalled(each); });
        return !begun.empty();
    });
    ASSERT_EQ(begun.size(), 2u) << "one partition moves";
    EXPECT_EQ(second->stats().partitions, 0u);
    first->ack(std::span(begun).first(1));
    first->nack(std::span(begun).subspan(1));
    // Unlike Kafka, the mock cluster may refuse the commit because of the rebalance, and librdkafka 2.0
    // may then give up all partitions.
    const std::vector<Delivery> moved = receive(*second, 1);
    EXPECT_THAT(*moved[0].event.payload, AnyOf("0", "1"));
}

TEST_F(KafkaSourceTest, BeginsWhereTheDatabaseSays) {
    send(0, 0, 5);
    KafkaOptions with = options();
    with.offsets_in_database = true;
    KafkaSource source(with);
    EXPECT_THROW(source.open(), SourceError);
    int failures = 2;
    source.set_positions([&](const std::vector<std::string>& names) {
        EXPECT_THAT(names, Contains("kafka://g/t/0"));
        if (failures-- > 0)
            throw std::runtime_error("no database");
        return std::vector<Position>{{"kafka://g/t/0", "3", Time{}}};
    });
    source.open();
    const std::vector<Delivery> received = receive(source, 2);
    EXPECT_EQ(payloads(received), (std::multiset<std::string>{"3", "4"}));
    const Delivery* const one = &received[0];
    const std::vector<Position> positions = source.positions(std::span(&one, 1));
    ASSERT_EQ(positions.size(), 1u);
    EXPECT_EQ(positions[0].message_id, "4");
}

TEST_F(KafkaSourceTest, ARefusalEndsItOnlyBeforeItHasWorked) {
    rd_kafka_mock_topic_set_error(cluster.get(), "t", RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED);
    const auto source = open();
    try {
        wait([&] {
            source->receive(1, milliseconds(100));
            return false;
        });
    } catch (const SourceError& error) {
        EXPECT_FALSE(error.transient());
        EXPECT_THAT(error.what(), HasSubstr("authoriz"));
    }
    rd_kafka_mock_topic_set_error(cluster.get(), "t", RD_KAFKA_RESP_ERR_NO_ERROR);
    source->open();
    send(0, 0, 1);
    receive(*source, 1);
}

TEST_F(KafkaSourceTest, ACommitThatFailsIsRepeated) {
    send(0, 0, 1);
    const auto source = open();
    const std::vector<Delivery> received = receive(*source, 1);
    const rd_kafka_resp_err_t error = RD_KAFKA_RESP_ERR_INVALID_COMMIT_OFFSET_SIZE;
    constexpr std::int16_t offset_commit = 8;
    rd_kafka_mock_push_request_errors_array(cluster.get(), offset_commit, 1, &error);
    const std::uint64_t before = source->stats().commits;
    source->ack(received);
    // The error may meet a commit of the other partition that is under way; then there is one more
    // commit and no second one.
    const auto patience = std::chrono::steady_clock::now() + milliseconds(20'000);
    wait([&] {
        // Again, if the group has taken this process for dead because the machine is busy.
        source->ack(source->receive(1, milliseconds(2)));
        return source->stats().commits >= before + 2 || std::chrono::steady_clock::now() > patience;
    });
    const bool was_lost = source->stats().lost > 0;
    source->close(milliseconds(20'000));
    const auto again = open();
    send(0, 1, 2);
    const std::multiset<std::string> left = payloads(receive(*again, 1));
    EXPECT_TRUE(was_lost || left == std::multiset<std::string>{"1"});
}

// The library repeats a commit whose connection is lost. A later one that was sent meanwhile would be
// overwritten with the earlier offset.
TEST_F(KafkaSourceTest, ACommitWaitsForTheAnswerToTheOneBefore) {
    send(0, 0, 2);
    const auto source = open();
    const std::vector<Delivery> received = receive(*source, 2);
    constexpr milliseconds answered_after{3000};
    constexpr std::int16_t offset_commit = 8;
    for (const int broker : {1, 2, 3})
        rd_kafka_mock_broker_push_request_error_rtts(cluster.get(), broker, offset_commit, 1,
                                                     RD_KAFKA_RESP_ERR_NO_ERROR,
                                                     static_cast<int>(answered_after.count()));
    const auto begin = std::chrono::steady_clock::now();
    const std::uint64_t before = source->stats().commits;
    source->ack(std::span(received).first(1));
    wait([&] { return source->stats().commits > before; });
    source->ack(std::span(received).last(1));
    wait([&] { return source->stats().commits > before + 1; });
    EXPECT_GE(std::chrono::steady_clock::now() - begin, answered_after);
}

TEST_F(KafkaSourceTest, ItsThreadsHandleNoSignals) {
    const auto threads_now = [] {
        std::set<std::filesystem::path> paths;
        for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
            paths.insert(entry.path());
        return paths;
    };
    const auto before = threads_now();  // of the mock cluster
    const auto source = open();
    wait([&] { return source->stats().partitions == 2; });
    int threads = 0;
    for (const auto& path : threads_now()) {
        if (before.contains(path))
            continue;
        std::ifstream status(path / "status");
        for (std::string line; std::getline(status, line);)
            if (line.starts_with("SigBlk:")) {
                threads++;
                const auto blocked = std::stoull(line.substr(8), nullptr, 16);
                for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1})
                    EXPECT_TRUE(blocked >> (signal - 1) & 1)
                        << path << " handles signal " << signal;
            }
    }
    EXPECT_GE(threads, 3);
}

TEST_F(KafkaSourceTest, ClosesInTimeWithoutABroker) {
    KafkaOptions with = options();
    with.brokers = "127.0.0.1:1";
    const auto source = open(with);
    EXPECT_TRUE(source->receive(1, milliseconds(1)).empty());
    source->close(milliseconds(100));
    EXPECT_TRUE(source->receive(1, milliseconds(1)).empty());
    source->close(milliseconds(0));
    source->open();
}

TEST_F(KafkaSourceTest, WrongOptionsAreRefused) {
    const auto refused = [&](auto change) {
        KafkaOptions with = options();
        change(with);
        try {
            const KafkaSource source(with);
            return std::string("accepted");
        } catch (const std::invalid_argument& error) {
            return std::string(error.what());
        }
    };
    EXPECT_THAT(refused([](KafkaOptions& o) { o.brokers = ""; }), HasSubstr("brokers"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.group = ""; }), HasSubstr("group"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.topics = {""}; }), HasSubstr("topics"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.user = "u"; }), HasSubstr("sasl_mechanism"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.sasl_mechanism = "OAUTHBEARER"; }),
                HasSubstr("properties"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.ca_file = "ca.pem"; }), HasSubstr("tls"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.session_timeout = milliseconds(10); }),
                HasSubstr("session_timeout"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.prefetch_bytes = 1; }), HasSubstr("prefetch"));
    EXPECT_THAT(refused([](KafkaOptions& o) { o.properties["group.id"] = "x"; }),
                HasSubstr("\"group.id\""));
    KafkaOptions with = options();
    with.properties["no.such"] = "x";
    KafkaSource source(with);
    EXPECT_THROW(source.open(), SourceError);
}

}  // namespace
}  // namespace inbox
