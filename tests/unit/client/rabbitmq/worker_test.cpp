// The RabbitMQ source's thread against a scripted server, hostile ones among them. A real one is in
// tests/system/client/test_rabbitmq.py.
#include "rabbitmq/worker.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "inbox/error.hpp"
#include "inbox/sources/rabbitmq.hpp"
#include "net/transport.hpp"
#include "unit/client/silent_broker.hpp"
#include "unit/sinks/rabbitmq/scripted_broker.hpp"

namespace inbox::rabbitmq {
namespace {

using outbox::be;
using outbox::long_string;
using outbox::method;
using outbox::raw_frame;
using outbox::ScriptedBroker;
using outbox::short_string;
using std::chrono::milliseconds;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// For what a test expects to happen.
constexpr std::chrono::seconds patience{120};

class RabbitmqWorker : public testing::Test {
  protected:
    void SetUp() override { ASSERT_TRUE(outbox::initialize_curl()); }
    void TearDown() override {
        if (worker_) {
            std::atomic<bool> closed = false;
            std::thread closer([&] {
                worker_->close(milliseconds(100));
                closed = true;
            });
            wait_for([&] { return closed.load(); });
            closer.join();
        }
    }

    void make(bool is_stream = false) {
        worker_.emplace(
            rabbitmq::Setup{.config = {.transport = {.allowed_hosts = std::nullopt,
                                                     .connect_timeout = outbox::seconds(20),
                                                     .request_timeout = request_timeout_,
                                                     .ca_file = {}},
                                       .host = "127.0.0.1",
                                       .port = std::to_string(broker_.port),
                                       .tls = false,
                                       .virtual_host = "/",
                                       .user = "u",
                                       .password = "p",
                                       .name = "test"},
                            .queue = "q",
                            .subscription = "rabbitmq:///q",
                            .is_stream = is_stream,
                            .prefetch = 4,
                            .max_message_size = 100,
                            .retry_base = 1000,
                            .retry_max = 1000});
    }

    template <class Condition>
    void wait_for(Condition condition) {
        const auto give_up = std::chrono::steady_clock::now() + patience;
        while (!condition() && std::chrono::steady_clock::now() < give_up) {
            broker_.step();
            std::this_thread::yield();
        }
        EXPECT_TRUE(condition());
    }

    // Returns the error, or an empty text.
    std::string open() {
        std::atomic<bool> done = false;
        std::string error;
        std::thread opener([&] {
            try {
                worker_->open([this](Level, const std::string& message) {
                    const std::lock_guard lock(mutex_);
                    log_ += message + '\n';
                });
            } catch (const SourceError& failed) {
                error = failed.what();
                transient_ = failed.transient();
            }
            done = true;
        });
        wait_for([&] { return done.load(); });
        opener.join();
        return error;
    }
    std::string log() {
        const std::lock_guard lock(mutex_);
        return log_;
    }
    void wait_logged(const std::string& text) {
        wait_for([&] { return log().find(text) != std::string::npos; });
    }

    std::vector<Delivery> receive(std::size_t count) {
        std::vector<Delivery> all;
        wait_for([&] {
            for (Delivery& one : worker_->receive(count - all.size(), milliseconds(0)))
                all.push_back(std::move(one));
            return all.size() >= count;
        });
        return all;
    }
    std::string receive_error() {
        std::string error;
        wait_for([&] {
            try {
                worker_->receive(10, milliseconds(0));
            } catch (const SourceError& failed) {
                error = failed.what();
                transient_ = failed.transient();
            }
            return !error.empty();
        });
        return error;
    }
    static std::vector<std::string> payloads(const std::vector<Delivery>& deliveries) {
        std::vector<std::string> found;
        for (const Delivery& one : deliveries)
            found.push_back(one.event.payload.value_or(""));
        return found;
    }
    void wait_for_request(const std::string& request) {
        wait_for(
            [&] { return std::ranges::find(broker_.requests, request) != broker_.requests.end(); });
    }

    outbox::Micros request_timeout_ = outbox::seconds(60);
    ScriptedBroker broker_;
    std::optional<Worker> worker_;
    std::mutex mutex_;
    std::string log_;
    bool transient_ = false;
};

// -------------------------------------------------------------------------------------------------
// As it should be
// -------------------------------------------------------------------------------------------------

TEST_F(RabbitmqWorker, ConsumesAndAcknowledges) {
    make();
    ASSERT_EQ(open(), "");
    EXPECT_THAT(broker_.requests, ElementsAre("qos 4", "consume q"));
    broker_.send(ScriptedBroker::delivery(1, "one") + ScriptedBroker::delivery(2, "") +
                 ScriptedBroker::delivery(3, "three"));
    const std::vector<Delivery> received = receive(3);
    EXPECT_THAT(payloads(received), ElementsAre("one", "", "three"));
    worker_->ack(received);
    wait_for_request("ack 3+");
    EXPECT_EQ(worker_->stats().acked, 3u);
}

TEST_F(RabbitmqWorker, ABodyInManyFrames) {
    make();
    ASSERT_EQ(open(), "");
    std::string frames = ScriptedBroker::delivery(1, "");
    frames.replace(frames.size() - 11, 8, be(4, 8));  // the size of the body
    for (const char c : {'a', 'b', 'c', 'd'})
        frames += raw_frame(AMQP_FRAME_BODY, 1, std::string(1, c));
    for (const char byte : frames)
        broker_.send(std::string(1, byte));
    EXPECT_THAT(payloads(receive(1)), ElementsAre("abcd"));
}

TEST_F(RabbitmqWorker, AtTheEndEverythingGoesBack) {
    make();
    ASSERT_EQ(open(), "");
    for (const char* id : {"a", "b"})
        broker_.send(ScriptedBroker::delivery(static_cast<std::uint64_t>(*id - 'a' + 1), "x",
                                              ScriptedBroker::message_id(id)));
    worker_->ack(receive(1));
    TearDown();
    EXPECT_THAT(broker_.requests, ElementsAre("qos 4", "consume q", "ack 1", "cancel", "nack"));
    EXPECT_EQ(log(), "");
}

TEST_F(RabbitmqWorker, AChannelThatIsClosedIsReplaced) {
    make();
    ASSERT_EQ(open(), "");
    broker_.send(ScriptedBroker::delivery(1, "1"));
    const std::vector<Delivery> before = receive(1);
    broker_.close_channel(1, 406, "PRECONDITION_FAILED - timed out");
    wait_for([&] { return broker_.requests.size() == 4; });
    wait_logged("406 PRECONDITION_FAILED");
    EXPECT_THAT(broker_.closed, ElementsAre(1));
    const auto recalled = worker_->recall();
    ASSERT_TRUE(recalled);
    EXPECT_TRUE(recalled(before[0]));
    EXPECT_FALSE(worker_->recall());
    broker_.send(ScriptedBroker::delivery(1, "1"));
    const std::vector<Delivery> after = receive(1);
    worker_->ack(before);
    EXPECT_EQ(worker_->stats().acked, 0u);
    worker_->ack(after);
    wait_for_request("ack 1");
}

TEST_F(RabbitmqWorker, AConsumerThatIsCancelledConsumesAgain) {
    make();
    ASSERT_EQ(open(), "");
    broker_.send(method(1, AMQP_BASIC_CANCEL_METHOD, short_string("pg_inbox") + be(1, 1)));
    wait_for([&] { return broker_.requests.size() == 4; });
    wait_logged("cancelled the consumer");
    broker_.send(ScriptedBroker::delivery(1, "1"));
    EXPECT_EQ(receive(1).size(), 1u);
}

// -------------------------------------------------------------------------------------------------
// Streams
// -------------------------------------------------------------------------------------------------

std::vector<Position> saved(const std::string& offset) {
    return {{"rabbitmq:///q", offset, {}}};
}

TEST_F(RabbitmqWorker, AStreamBeginsWithTheMessageBeforeItsPosition) {
    make(true);
    worker_->load_position([](const auto&) { return saved("7"); });
    std::atomic<bool> done = false;
    std::thread opener([&] {
        worker_->open({});
        done = true;
    });
    wait_for_request("consume q 6");
    EXPECT_FALSE(done);
    broker_.send(ScriptedBroker::delivery(1, "6", ScriptedBroker::stream_offset(6)) +
                 ScriptedBroker::delivery(2, "7", ScriptedBroker::stream_offset(7)));
    wait_for([&] { return done.load(); });
    opener.join();
    const std::vector<Delivery> received = receive(1);
    EXPECT_THAT(payloads(received), ElementsAre("7"));
    wait_for_request("ack 1");
    const Delivery* const first = &received[0];
    EXPECT_EQ(worker_->positions({&first, 1}).front().message_id, "8");
}

TEST_F(RabbitmqWorker, AStreamThatBeginsBehindTheMessageBeforeItsPositionIsAskedAgain) {
    make(true);
    worker_->load_position([](const auto&) { return saved("7"); });
    std::thread opener([&] { worker_->open({}); });
    wait_for_request("consume q 6");
    broker_.send(ScriptedBroker::delivery(1, "7", ScriptedBroker::stream_offset(7)));
    wait_for([&] { return std::ranges::count(broker_.requests, "consume q 6") == 2; });
    broker_.send(ScriptedBroker::delivery(1, "6", ScriptedBroker::stream_offset(6)) +
                 ScriptedBroker::delivery(2, "7", ScriptedBroker::stream_offset(7)));
    opener.join();
    EXPECT_THAT(payloads(receive(1)), ElementsAre("7"));
    EXPECT_THAT(worker_->gaps(), IsEmpty());
}

TEST_F(RabbitmqWorker, MessagesThatAreMissingTwiceAreDeleted) {
    make(true);
    worker_->load_position([](const auto&) { return saved("7"); });
    std::thread opener([&] { worker_->open({}); });
    for (std::ptrdiff_t attempt : {1, 2}) {
        wait_for([&] { return std::ranges::count(broker_.requests, "consume q 6") == attempt; });
        broker_.send(ScriptedBroker::delivery(1, "9", ScriptedBroker::stream_offset(9)));
    }
    opener.join();
    EXPECT_THAT(payloads(receive(1)), ElementsAre("9"));
    const std::vector<Gap> gaps = worker_->gaps();
    ASSERT_EQ(gaps.size(), 1u);
    EXPECT_EQ(gaps.front().skipped, 2u);
}

TEST_F(RabbitmqWorker, AStreamThatWasCreatedAgain) {
    request_timeout_ = outbox::milliseconds(50);
    make(true);
    worker_->load_position([](const auto&) { return saved("7"); });
    EXPECT_THAT(open(), HasSubstr("was it created again?"));
    EXPECT_TRUE(transient_);
}

TEST_F(RabbitmqWorker, AnotherMessageBeforeThePositionIsAnotherStream) {
    make(true);
    worker_->load_position([](const auto&) {
        std::vector<Position> positions = saved("7");
        positions.front().incarnation = "6 00000000-0000-7000-8000-000000000006";
        return positions;
    });
    std::atomic<bool> done = false;
    std::thread opener([&] {
        worker_->open({});
        done = true;
    });
    wait_for_request("consume q 6");
    broker_.send(ScriptedBroker::delivery(1, "6", ScriptedBroker::stream_offset(6)));
    wait_for_request("consume q first");
    wait_for([&] { return done.load(); });
    opener.join();
    const std::vector<Gap> gaps = worker_->gaps();
    ASSERT_EQ(gaps.size(), 1u);
    EXPECT_TRUE(gaps.front().recreated);
    EXPECT_THAT(worker_->gaps(), IsEmpty());
}

TEST_F(RabbitmqWorker, AnOffsetThatIsNotANumber) {
    make(true);
    for (const char* offset : {"x", "-1", "99999999999999999999"})
        EXPECT_THROW(worker_->load_position([&](const auto&) { return saved(offset); }),
                     SourceError);
    EXPECT_THROW(worker_->load_position({}), SourceError);
}

TEST_F(RabbitmqWorker, AQueueThatIsNotAStream) {
    make(true);
    ASSERT_EQ(open(), "");
    EXPECT_THAT(broker_.requests, Contains("consume q first"));
    broker_.send(ScriptedBroker::delivery(1, "1"));
    EXPECT_THAT(receive_error(), HasSubstr("not a stream"));
    EXPECT_FALSE(transient_);
}

TEST_F(RabbitmqWorker, OffsetsThatGoBack) {
    make(true);
    ASSERT_EQ(open(), "");
    for (std::uint64_t tag = 1; const std::uint64_t offset : {5, 6, 5, 7})
        broker_.send(ScriptedBroker::delivery(tag++, std::to_string(offset),
                                              ScriptedBroker::stream_offset(offset)));
    EXPECT_THAT(payloads(receive(3)), ElementsAre("5", "6", "7"));
    wait_for_request("ack 3");
    broker_.send(ScriptedBroker::delivery(5, "", ScriptedBroker::stream_offset(1ull << 63)));
    EXPECT_THAT(receive_error(), HasSubstr("not a stream"));
}

// -------------------------------------------------------------------------------------------------
// Refusals and failures
// -------------------------------------------------------------------------------------------------

TEST_F(RabbitmqWorker, RefusalsOfTheQueue) {
    broker_.answers_consumer = false;
    make();
    for (const int code : {403, 404, 406, 540}) {
        const std::size_t before = broker_.requests.size();
        std::atomic<bool> done = false;
        bool transient = true;
        std::thread opener([&] {
            try {
                worker_->open({});
            } catch (const SourceError& error) {
                transient = error.transient();
                EXPECT_THAT(error.what(), HasSubstr(std::to_string(code) + " no"));
            }
            done = true;
        });
        wait_for([&] { return broker_.requests.size() == before + 2; });
        broker_.close_channel(1, code, "no");
        wait_for([&] { return done.load(); });
        opener.join();
        EXPECT_FALSE(transient) << code;
    }
}

TEST_F(RabbitmqWorker, NoAnswer) {
    request_timeout_ = outbox::milliseconds(50);
    broker_.answers_consumer = false;
    make();
    EXPECT_THAT(open(), HasSubstr("no answer within 50ms"));
    EXPECT_TRUE(transient_);
}

TEST_F(RabbitmqWorker, ASilentServerIsGivenUp) {
    broker_.heartbeat = 1;
    make();
    ASSERT_EQ(open(), "");
    wait_logged("has sent nothing for 2s");
    wait_for([&] { return broker_.connections >= 2; });
}

TEST_F(RabbitmqWorker, AConnectionThatEndsAtAnyStep) {
    // Bytes that the server sends before it hangs up, from none to all of a delivery.
    make();
    ASSERT_EQ(open(), "");
    const std::string whole = ScriptedBroker::delivery(1, "1");
    for (std::size_t sent = 0; sent < whole.size(); sent++) {
        const int before = broker_.connections;
        broker_.send(whole.substr(0, sent));
        broker_.hang_up();
        wait_for(
            [&] { return broker_.connections > before && broker_.requests.back() == "consume q"; });
        broker_.requests.push_back("");
    }
    wait_for([&] { return worker_->stats().connections >= whole.size(); });
    EXPECT_EQ(worker_->stats().received, 0u);
}

// -------------------------------------------------------------------------------------------------
// Hostile servers
// -------------------------------------------------------------------------------------------------

// The message is entered, and its channel is gone before it has been seen to work.
TEST_F(RabbitmqWorker, AConnectionThatEndsWithTheFirstMessage) {
    broker_.answers_consumer = false;
    make();
    std::atomic<bool> done = false;
    std::thread opener([&] {
        try {
            worker_->open({});
        } catch (const SourceError&) {
        }
        done = true;
    });
    wait_for_request("consume q");
    broker_.send(method(1, AMQP_BASIC_QOS_OK_METHOD) +
                 method(1, AMQP_BASIC_CONSUME_OK_METHOD, short_string("pg_inbox")) +
                 ScriptedBroker::delivery(1, "first"));
    broker_.hang_up();
    broker_.answers_consumer = true;
    wait_for([&] { return done.load(); });
    opener.join();
    ASSERT_EQ(open(), "");
    wait_for([&] { return broker_.requests.size() == 4; });
    broker_.send(ScriptedBroker::delivery(1, "second"));
    wait_for([&] { return worker_->stats().waiting == 1 && worker_->stats().received >= 1; });
    EXPECT_THAT(payloads(receive(1)), ElementsAre("second"));
}

struct Attack {
    const char* name;
    std::string frames;
    const char* error = "a frame that nobody expects";
};

std::ostream& operator<<(std::ostream& out, const Attack& attack) {
    return out << attack.name;
}

class HostileRabbitmq : public RabbitmqWorker, public testing::WithParamInterface<Attack> {};

// The connection ends, and the source goes on with the next one.
TEST_P(HostileRabbitmq, IsLeft) {
    make();
    ASSERT_EQ(open(), "");
    broker_.send(GetParam().frames);
    wait_logged(GetParam().error);
    wait_for([&] { return broker_.connections >= 2 && broker_.requests.size() >= 4; });
    broker_.send(ScriptedBroker::delivery(1, "1"));
    EXPECT_THAT(payloads(receive(1)), ElementsAre("1"));
}

std::string header(std::uint64_t body_size, const std::string& properties = std::string(2, '\0')) {
    return raw_frame(AMQP_FRAME_HEADER, 1,
                     be(AMQP_BASIC_CLASS, 2) + be(0, 2) + be(body_size, 8) + properties);
}
std::string deliver(std::uint64_t tag, const std::string& consumer = "pg_inbox") {
    return method(
        1, AMQP_BASIC_DELIVER_METHOD,
        short_string(consumer) + be(tag, 8) + be(0, 1) + short_string("") + short_string(""));
}
std::string many(std::uint64_t count) {
    std::string frames;
    for (std::uint64_t tag = 1; tag <= count; tag++)
        frames += ScriptedBroker::delivery(tag, "x");
    return frames;
}
std::string deep() {
    std::string table = long_string("");
    for (int i = 0; i < 500; i++)
        table = long_string(short_string("a") + 'F' + table);
    return be(AMQP_BASIC_HEADERS_FLAG, 2) + table;
}

INSTANTIATE_TEST_SUITE_P(
    All, HostileRabbitmq,
    testing::Values(
        Attack{"Garbage", std::string(100, 'x'), "malformed frame"},
        Attack{"FrameTooLong", std::string("\1\0\1\xff\xff\xff\xff", 7), "malformed frame"},
        Attack{"FrameWithoutEnd", std::string("\1\0\1\0\0\0\0x", 8), "malformed frame"},
        Attack{"OtherChannel", method(7, AMQP_BASIC_QOS_OK_METHOD)},
        Attack{"SecondAnswer", method(1, AMQP_BASIC_CONSUME_OK_METHOD, short_string("pg_inbox"))},
        Attack{"UnknownMethod", method(1, 0x003c00ff)},
        Attack{"ShortMethod", raw_frame(AMQP_FRAME_METHOD, 1, "\1")},
        Attack{"ShortDelivery", method(1, AMQP_BASIC_DELIVER_METHOD, short_string("pg_inbox"))},
        Attack{"OtherConsumer", deliver(1, "another")}, Attack{"TagZero", deliver(0)},
        Attack{"TagTwice", ScriptedBroker::delivery(1, "x") + deliver(1)},
        Attack{"TagBack", ScriptedBroker::delivery(2, "x") + deliver(1)},
        Attack{"BodyWithoutDelivery", raw_frame(AMQP_FRAME_BODY, 1, "x")},
        Attack{"HeaderWithoutDelivery", header(0)},
        Attack{"BodyWithoutHeader", deliver(1) + raw_frame(AMQP_FRAME_BODY, 1, "x")},
        Attack{"DeliveryInDelivery", deliver(1) + deliver(2)},
        Attack{"MethodInBody", deliver(1) + header(5) + deliver(2)},
        Attack{"BodyTooLong", deliver(1) + header(2) + raw_frame(AMQP_FRAME_BODY, 1, "xyz")},
        Attack{"EmptyBodyFrame", deliver(1) + header(2) + raw_frame(AMQP_FRAME_BODY, 1, "")},
        Attack{"ShortHeader", deliver(1) + raw_frame(AMQP_FRAME_HEADER, 1, "x")},
        Attack{"MalformedProperties", deliver(1) + header(0, be(AMQP_BASIC_HEADERS_FLAG, 2))},
        Attack{"DeepTable", deliver(1) + header(0, deep())},
        Attack{"MoreThanAskedFor", many(5), "more messages than were asked for"},
        Attack{"CloseWithoutReason", method(1, AMQP_CHANNEL_CLOSE_METHOD)},
        Attack{"CloseOkWithoutClose", method(1, AMQP_CHANNEL_CLOSE_OK_METHOD)},
        Attack{"SecondLogin", method(0, AMQP_CONNECTION_OPEN_OK_METHOD, short_string(""))},
        Attack{
            "ConnectionClose",
            method(0, AMQP_CONNECTION_CLOSE_METHOD, be(320, 2) + short_string("forced") + be(0, 4)),
            "320 forced"}),
    [](const auto& instance) { return std::string(instance.param.name); });

TEST_F(RabbitmqWorker, ADeliveryBeforeTheConsumer) {
    broker_.answers_consumer = false;
    make();
    std::atomic<bool> done = false;
    std::string error;
    std::thread opener([&] {
        try {
            worker_->open({});
        } catch (const SourceError& failed) {
            error = failed.what();
        }
        done = true;
    });
    wait_for_request("consume q");
    broker_.send(ScriptedBroker::delivery(1, "1"));
    wait_for([&] { return done.load(); });
    opener.join();
    EXPECT_THAT(error, HasSubstr("a frame that nobody expects"));
}

// Nothing of it is read.
TEST_F(RabbitmqWorker, AMessageThatIsTooLarge) {
    for (const std::uint64_t size : {std::uint64_t(101), ~std::uint64_t(0)}) {
        make();
        ASSERT_EQ(open(), "");
        broker_.send(deliver(1) + header(size));
        EXPECT_THAT(receive_error(), HasSubstr("max_message_size is 100"));
        EXPECT_FALSE(transient_);
        TearDown();
    }
}

TEST(RabbitmqSourceTest, AStopEndsALoginThatIsNotAnswered) {
    SilentBroker broker;
    RabbitmqOptions options{.server = broker.address(), .queue = "q"};
    options.connect_timeout = options.request_timeout = std::chrono::hours(1);
    broker.expect_stop_while_opening(std::make_unique<RabbitmqSource>(options));
}

}  // namespace
}  // namespace inbox::rabbitmq
