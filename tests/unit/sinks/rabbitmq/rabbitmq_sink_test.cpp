// The rabbitmq sink against a scripted server, hostile ones among them. A real one is in
// tests/system/sinks/test_rabbitmq.py.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

#include "core/check.hpp"
#include "core/text.hpp"
#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/sample_event.hpp"
#include "unit/sinks/rabbitmq/scripted_broker.hpp"

extern "C" outbox::Check* OUTBOX_CREATE_CHECK(const outbox::CheckContext& context) noexcept;

namespace outbox {
namespace {

using testing::HasSubstr;

class RabbitmqSink : public DrivenSink {
  protected:
    void create(std::vector<Option> options = {}, std::vector<Option> mapping = {},
                const std::string& path = "") {
        options.push_back({"url", "amqp://127.0.0.1:" + std::to_string(broker_.port) + path});
        make(options, mapping);
    }

    Batch& batch(std::size_t count = 1) {
        Batch& made = batches_.emplace_back();
        for (std::size_t i = 0; i < count; i++) {
            Event& event = samples_.emplace_back().event;
            event.event_id[0] = static_cast<std::uint8_t>(++number_ >> 8);
            event.event_id[1] = static_cast<std::uint8_t>(number_);
            event.ordering_key = {};
            made.events.push_back(&event);
        }
        return made;
    }

    std::vector<Outcome> run(std::size_t count) {
        std::vector<Outcome> all;
        run_until([&] { return all.size() >= count; }, all);
        EXPECT_EQ(all.size(), count);
        all.resize(count);
        return all;
    }

    template <class Condition>
    void run_until(Condition condition, std::vector<Outcome>& all) {
        const Micros give_up = clock_.now() + patience;
        while (!condition() && clock_.now() < give_up) {
            broker_.step();
            pollfd watched{sink_->descriptor(), POLLIN, 0};
            if (sink_->deadline() > clock_.now())
                poll(&watched, 1, 1);
            sink_->step(clock_.now(), all);
        }
        EXPECT_TRUE(condition());
    }

    Outcome deliver(Batch& batch) {
        sink_->submit(batch);
        return run(1).front();
    }

    static std::string id_of(const Event& event) {
        std::string text;
        append_uuid(text, event.event_id);
        return text;
    }

    ScriptedBroker broker_;
    std::deque<SampleEvent> samples_;
    std::deque<Batch> batches_;
    unsigned number_ = 0;
};

TEST_F(RabbitmqSink, LogsInAndPublishes) {
    create({{"exchange", "e"}, {"routing_key", "{topic}.{aggregate_id}"}},
           {{"user", "alice"}, {"password", "s3cret"}}, "/a%2Fb");
    Batch& sent = batch();
    EXPECT_EQ(deliver(sent).fate, Fate::confirmed);
    EXPECT_EQ(broker_.mechanism, "PLAIN");
    EXPECT_EQ(broker_.response, std::string("\0alice\0s3cret", 13));
    EXPECT_EQ(broker_.virtual_host, "a/b");
    ASSERT_EQ(broker_.messages.size(), 1u);
    const ScriptedBroker::Message& message = broker_.messages.front();
    EXPECT_EQ(message.exchange, "e");
    EXPECT_EQ(message.routing_key, "video.events.v1");
    EXPECT_EQ(message.id, id_of(*sent.events.front()));
    EXPECT_EQ(message.body, sent.events.front()->payload);
    EXPECT_TRUE(message.mandatory);
}

TEST_F(RabbitmqSink, ABatchIsConfirmedWhenAllOfItIs) {
    broker_.on_message = [](const auto&) {};
    create();
    Batch& first = batch(3);
    Batch& second = batch(2);
    sink_->submit(first);
    sink_->submit(second);
    std::vector<Outcome> all;
    run_until([&] { return broker_.messages.size() == 5; }, all);
    broker_.ack(1, 2);
    broker_.ack(1, 5);
    broker_.ack(1, 4, true);
    run_until([&] { return all.size() == 2; }, all);
    EXPECT_EQ(all[0].fate, Fate::confirmed);
    EXPECT_EQ(all[1].fate, Fate::confirmed);
}

TEST_F(RabbitmqSink, ALargeMessageIsSplitIntoFrames) {
    create();
    const std::string payload(100'000, 'x');
    Batch& sent = batch();
    sent.events.front()->payload = payload;
    EXPECT_EQ(deliver(sent).fate, Fate::confirmed);
    EXPECT_EQ(broker_.messages.front().body, payload);
}

TEST_F(RabbitmqSink, AMessageThatIsReturnedIsNotConfirmed) {
    broker_.on_message = [&](const auto& m) {
        if (m.tag == 2)
            broker_.give_back(m, m.id);
        broker_.ack(m.channel, m.tag);
    };
    create({{"exchange", "e"}, {"routing_key", "{aggregate_id}"}});
    const Outcome outcome = deliver(batch(3));
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::refused);
    EXPECT_FALSE(outcome.of_events[1].permanent);
    EXPECT_THAT(outcome.of_events[1].error, HasSubstr("NO_ROUTE"));
    EXPECT_EQ(outcome.of_events[2].fate, Fate::confirmed);
}

TEST_F(RabbitmqSink, AMissingQueueFailsTheLane) {
    broker_.on_message = [&](const auto& m) {
        broker_.give_back(m, m.id);
        broker_.ack(m.channel, m.tag);
    };
    create();
    const Outcome outcome = deliver(batch(2));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("queue \"video.events\""));
}

TEST_F(RabbitmqSink, AMessageReturnedThatWasNotSentEndsTheConnection) {
    broker_.on_message = [&](const auto& m) { broker_.give_back(m, "something else"); };
    create();
    const Outcome outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_THAT(outcome.error, HasSubstr("returned a message that was not sent"));
}

TEST_F(RabbitmqSink, ANackIsThrottlingOfALaneOrAFailureOfAnEvent) {
    broker_.on_message = [&](const auto& m) { broker_.nack(m.channel, m.tag); };
    create();
    Outcome outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::throttled);
    EXPECT_EQ(outcome.scope, Scope::lane);
    create({{"exchange", "e"}, {"routing_key", "{ordering_key}"}});
    outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::failed);
}

TEST_F(RabbitmqSink, AChannelThatIsClosedIsOpenedAgain) {
    broker_.on_message = [&](const auto& m) {
        if (broker_.opened.size() == 1)
            broker_.close_channel(m.channel, 404, "NOT_FOUND - no exchange 'e' in vhost '/'");
        else
            broker_.ack(m.channel, m.tag);
    };
    create({{"exchange", "e"}});
    const Outcome outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.error, HasSubstr("404 NOT_FOUND - no exchange 'e'"));
    EXPECT_EQ(deliver(batch()).fate, Fate::confirmed);
    EXPECT_EQ(broker_.closed.size(), 1u);
    EXPECT_EQ(broker_.connections, 1);
}

TEST_F(RabbitmqSink, AnExchangeHasAChannelOfItsOwn) {
    broker_.on_message = [&](const auto& m) {
        if (m.exchange == "bad")
            broker_.close_channel(m.channel, 404, "NOT_FOUND");
    };
    create({{"exchange", "{aggregate_type}"}, {"routing_key", "x"}});
    Batch& good = batch();
    Batch& bad = batch();
    good.events.front()->aggregate_type = "good";
    bad.events.front()->aggregate_type = "bad";
    sink_->submit(good);
    sink_->submit(bad);
    const Outcome outcome = run(1).front();
    EXPECT_EQ(outcome.batch, &bad);
    broker_.ack(1, 1);
    EXPECT_EQ(run(1).front().fate, Fate::confirmed);
}

TEST_F(RabbitmqSink, OfAMessageThatIsTooLargeOthersAreNotToBlame) {
    broker_.on_message = [&](const auto& m) {
        if (m.tag == 2)
            broker_.close_channel(m.channel, 406,
                                  "PRECONDITION_FAILED - message size 3000 is larger than "
                                  "configured max size 2000");
    };
    create();
    const std::string payload(3000, 'x');
    Batch& sent = batch(3);
    sent.events[1]->payload = payload;
    const Outcome outcome = deliver(sent);
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::undone);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::refused);
    EXPECT_TRUE(outcome.of_events[1].permanent);
    EXPECT_EQ(outcome.of_events[2].fate, Fate::undone);
}

TEST_F(RabbitmqSink, AReasonThatFitsNoMessageIsAFailure) {
    broker_.on_message = [&](const auto& m) {
        broker_.close_channel(m.channel, 406, "PRECONDITION_FAILED - message size 1 is too large");
    };
    create();
    EXPECT_EQ(deliver(batch()).fate, Fate::failed);
}

TEST_F(RabbitmqSink, EventsThatNoMessageCanCarryAreRefused) {
    create({{"max_message_size", "1000"}});
    Batch& sent = batch(4);
    const std::string payload(1001, 'x'), name(256, 'n'), value(5000, 'v');
    sent.events[0]->payload = payload;
    samples_[1].add("CC", "elsewhere");
    samples_[2].add(name, "x");
    samples_[3].add("large", value);
    const Outcome outcome = deliver(sent);
    ASSERT_EQ(outcome.of_events.size(), 4u);
    for (const EventOutcome& own : outcome.of_events) {
        EXPECT_EQ(own.fate, Fate::refused);
        EXPECT_TRUE(own.permanent);
    }
    EXPECT_THAT(outcome.of_events[0].error, HasSubstr("max_message_size"));
    EXPECT_THAT(outcome.of_events[1].error, HasSubstr("routing keys"));
    EXPECT_THAT(outcome.of_events[2].error, HasSubstr("255 bytes"));
    EXPECT_THAT(outcome.of_events[3].error, HasSubstr("frame"));
    EXPECT_EQ(deliver(batch()).fate, Fate::confirmed);
}

TEST_F(RabbitmqSink, ABlockedConnectionIsThrottled) {
    create({{"request_timeout", "2s"}});  // longer than it takes to hear of the block
    EXPECT_EQ(deliver(batch()).fate, Fate::confirmed);
    broker_.on_message = [](const auto&) {};
    Batch& sent = batch();
    sink_->submit(sent);
    std::vector<Outcome> all;
    run_until([&] { return broker_.messages.size() == 2; }, all);
    broker_.send(method(0, AMQP_CONNECTION_BLOCKED_METHOD, short_string("low on memory")));
    // Batches are sent until the sink knows.
    std::size_t submitted = 1;
    Batch* waiting = nullptr;
    run_until(
        [&] {
            if (all.empty()) {
                waiting = &batch();
                sink_->submit(*waiting);
                submitted++;
            }
            return !all.empty();
        },
        all);
    EXPECT_EQ(all.back().batch, waiting);
    EXPECT_EQ(all.back().fate, Fate::throttled);
    EXPECT_THAT(all.back().error, HasSubstr("low on memory"));
    run_until([&] { return all.size() == submitted; }, all);
    for (const Outcome& late : all)
        EXPECT_EQ(late.fate, Fate::throttled) << "it is sent, and not confirmed in time";
    EXPECT_EQ(broker_.connections, 1);
    broker_.send(method(0, AMQP_CONNECTION_UNBLOCKED_METHOD));
    broker_.ack(1, 2);  // nobody waits for it
    broker_.on_message = [&](const auto& m) { broker_.ack(m.channel, m.tag); };
    Outcome outcome;
    do {  // until the sink knows
        outcome = deliver(sent);
    } while (outcome.fate == Fate::throttled);
    EXPECT_EQ(outcome.fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections, 1);
}

TEST_F(RabbitmqSink, NoAnswerInTimeIsAFailureOfTheBatch) {
    create({{"request_timeout", "100ms"}});
    broker_.on_message = [&](const auto& m) {
        if (m.tag % 2 == 0)
            broker_.ack(m.channel, m.tag);
    };
    Batch& first = batch();
    Batch& second = batch();
    sink_->submit(first);
    sink_->submit(second);
    std::vector<Outcome> all = run(2);
    EXPECT_EQ(all[0].batch, &second);
    EXPECT_EQ(all[0].fate, Fate::confirmed);
    EXPECT_EQ(all[1].fate, Fate::failed);
    EXPECT_THAT(all[1].error, HasSubstr("no answer within 100ms"));
    EXPECT_EQ(broker_.connections, 1);
    broker_.ack(1, 1);  // too late, and not an error
    broker_.on_message = [&](const auto& m) { broker_.ack(m.channel, m.tag); };
    EXPECT_EQ(deliver(batch()).fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections, 1);
}

TEST_F(RabbitmqSink, AConnectionThatIsLostFailsOneBatchAndUndoesOthers) {
    broker_.on_message = [](const auto&) {};
    create();
    Batch& first = batch(2);
    sink_->submit(first);
    sink_->submit(batch());
    std::vector<Outcome> all;
    run_until([&] { return broker_.messages.size() == 3; }, all);
    broker_.ack(1, 1);
    run_until(
        [&] {
            broker_.hang_up();
            return all.size() == 2;
        },
        all);
    ASSERT_EQ(all[0].batch, &first);
    ASSERT_EQ(all[0].of_events.size(), 2u);
    EXPECT_EQ(all[0].of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(all[0].of_events[1].fate, Fate::failed);
    EXPECT_EQ(all[0].of_events[1].scope, Scope::connection);
    EXPECT_EQ(all[1].fate, Fate::undone);
}

TEST_F(RabbitmqSink, AServerThatStopsBlamesNoEvent) {
    broker_.on_message = [&](const auto&) {
        broker_.close_connection(320, "CONNECTION_FORCED - broker forced connection closure");
    };
    create();
    const Outcome outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::connection);
    EXPECT_THAT(outcome.error, HasSubstr("320 CONNECTION_FORCED"));
}

TEST_F(RabbitmqSink, ASilentServerFailsAfterConnectTimeout) {
    create({{"connect_timeout", "100ms"}});
    broker_.answers = false;
    Outcome outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("no connection within 100ms"));
}

TEST_F(RabbitmqSink, AMechanismThatIsNotOffered) {
    broker_.mechanisms = "CRAM-MD5 PLAINER";
    create();
    const Outcome outcome = deliver(batch());
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_THAT(outcome.error, HasSubstr("PLAIN, only CRAM-MD5"));
}

TEST_F(RabbitmqSink, HeartbeatsGoBothWays) {
    broker_.heartbeat = 1;
    create();
    EXPECT_EQ(deliver(batch()).fate, Fate::confirmed);
    // The server sends nothing any more.
    broker_.on_message = [](const auto&) {};
    const Outcome outcome = deliver(batch());
    EXPECT_THAT(outcome.error, HasSubstr("has sent nothing for 2s"));
}

TEST_F(RabbitmqSink, MoreExchangesThanChannels) {
    broker_.channel_max = 2;
    create({{"exchange", "{aggregate_type}"}, {"routing_key", "x"}});
    std::deque<std::string> names;
    for (int i = 0; i < 6; i++) {
        Batch& sent = batch();
        sent.events.front()->aggregate_type = names.emplace_back("e" + std::to_string(i));
        sink_->submit(sent);
    }
    for (const Outcome& outcome : run(6))
        EXPECT_EQ(outcome.fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections, 1);
}

// ---- hostile ------------------------------------------------------------------------------------

// What a server may send instead of an answer to a message.
class HostileBroker : public RabbitmqSink, public testing::WithParamInterface<std::string> {};

TEST_P(HostileBroker, EndsTheConnectionAndNothingElse) {
    broker_.on_message = [&](const auto&) { broker_.send(GetParam()); };
    create();
    EXPECT_EQ(deliver(batch()).fate, Fate::failed);
    broker_.on_message = [&](const auto& m) { broker_.ack(m.channel, m.tag); };
    EXPECT_EQ(deliver(batch()).fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections, 2);
}

INSTANTIATE_TEST_SUITE_P(
    Sends, HostileBroker,
    testing::Values(std::string(100, 'x'), std::string("\1\0\1\xff\xff\xff\xff", 7),
                    method(1, AMQP_BASIC_ACK_METHOD, be(7, 8) + be(0, 1)),
                    method(1, AMQP_BASIC_ACK_METHOD, be(UINT64_MAX, 8) + be(1, 1)),
                    method(1, AMQP_BASIC_ACK_METHOD, "short"), method(2, AMQP_BASIC_ACK_METHOD),
                    method(999, AMQP_CHANNEL_CLOSE_OK_METHOD),
                    method(1, AMQP_CHANNEL_CLOSE_OK_METHOD), method(1, AMQP_BASIC_DELIVER_METHOD),
                    method(1, 0xffffffff), method(0, 12345),
                    method(0, AMQP_CONNECTION_START_METHOD),
                    method(0, AMQP_CONNECTION_BLOCKED_METHOD),
                    method(0, AMQP_CONNECTION_CLOSE_METHOD), method(1, AMQP_CHANNEL_CLOSE_METHOD),
                    method(1, AMQP_BASIC_RETURN_METHOD), raw_frame(AMQP_FRAME_BODY, 1, "body"),
                    raw_frame(AMQP_FRAME_HEADER, 1, "header"), raw_frame(9, 0, ""),
                    method(1, AMQP_BASIC_RETURN_METHOD,
                           be(312, 2) + short_string("") + short_string("") + short_string("")) +
                        raw_frame(AMQP_FRAME_BODY, 1, "body")));

// What a server may send in place of its first frame.
class HostileGreeting : public RabbitmqSink, public testing::WithParamInterface<std::string> {};

TEST_P(HostileGreeting, IsAConnectionThatCannotBeMade) {
    broker_.answers = false;
    create();
    sink_->submit(batch());
    std::vector<Outcome> all;
    bool sent = false;
    run_until(
        [&] {
            if (broker_.connections > 0 && !sent) {
                broker_.send(GetParam());
                sent = true;
            }
            return !all.empty();
        },
        all);
    EXPECT_EQ(all.front().fate, Fate::unavailable);
}

INSTANTIATE_TEST_SUITE_P(
    Sends, HostileGreeting,
    testing::Values(std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), std::string("AMQP\0\1\0\0", 8),
                    std::string("\1\0\0\0\1\0\0", 7), method(0, AMQP_CONNECTION_OPEN_OK_METHOD),
                    method(0, AMQP_CONNECTION_START_METHOD, "x"), method(1, AMQP_BASIC_ACK_METHOD),
                    method(0, AMQP_CONNECTION_CLOSE_METHOD,
                           be(403, 2) + short_string("ACCESS_REFUSED") + be(0, 4))));

TEST_F(RabbitmqSink, APropertyTableWithoutBottom) {
    std::string table = long_string("");
    for (int i = 0; i < 5000; i++)
        table = long_string("\x01xF" + table);
    broker_.server_properties = table;
    create();
    EXPECT_THAT(deliver(batch()).error, HasSubstr("malformed"));
}

TEST_F(RabbitmqSink, AFrameLimitThatIsTooSmall) {
    broker_.frame_max = 100;
    create();
    EXPECT_EQ(deliver(batch()).fate, Fate::unavailable);
}

// A server that closes at each byte of its answers.
TEST_F(RabbitmqSink, AServerThatClosesAtAnyTime) {
    for (int n = 1; n < 60; n++) {
        create();
        broker_.on_message = [](const auto&) {};
        sink_->submit(batch());
        std::vector<Outcome> all;
        int steps = 0;
        run_until(
            [&] {
                if (++steps == n)
                    broker_.hang_up();
                if (steps > n)
                    broker_.answers = false;
                if (steps > n && all.empty())
                    broker_.hang_up();
                return !all.empty();
            },
            all);
        broker_.answers = true;
        EXPECT_NE(all.front().fate, Fate::confirmed);
    }
}

TEST_F(RabbitmqSink, OutOfMemory) {
    allocations_until_failure = -1;
    for (long n = 0;; n++) {
        create();
        Batch& sent = batch(2);
        std::vector<Outcome> all;
        bool thrown = false;
        const Micros give_up = clock_.now() + patience;
        try {
            allocations_until_failure = n;
            sink_->submit(sent);
            while (all.empty() && clock_.now() < give_up) {
                const long left = std::exchange(allocations_until_failure, -1);
                const bool failed_before = left == -1;
                broker_.step();
                allocations_until_failure = failed_before ? -1 : left;
                sink_->step(clock_.now(), all);
            }
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        const bool failed = allocation_failed();
        if (thrown)
            continue;
        ASSERT_EQ(all.size(), 1u);
        // A callback of libcurl reports it in its own way.
        if (failed)
            continue;
        EXPECT_EQ(all.front().fate, Fate::confirmed);
        break;
    }
}

}  // namespace
}  // namespace outbox
