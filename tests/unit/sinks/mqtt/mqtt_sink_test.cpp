// The mqtt sink against a scripted broker: each answer, connections that end, and a broker that is
// hostile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <map>

#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/mutations.hpp"
#include "unit/sinks/mqtt/scripted_broker.hpp"

namespace outbox {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

class MqttSinkTest : public DrivenSink {
  protected:
    // Timeouts are long, so that only tests that wait for them meet them.
    void create(std::vector<Option> options = {}, const std::vector<Option>& mapping = {}) {
        options.push_back({"url", broker_.url()});
        make(options, mapping);
    }

    Event& event(const std::string& topic = "t.events") {
        const std::string& key = texts_.emplace_back("k" + std::to_string(events_.size()));
        Event& event = events_.emplace_back();
        event.position = static_cast<std::int64_t>(events_.size());
        event.topic = texts_.emplace_back(topic);
        event.aggregate_type = "t";
        event.aggregate_id = event.ordering_key = key;
        event.event_type = "Thing";
        event.content_type = "application/json";
        event.payload = R"({"n":1})";
        event.has_payload = true;
        return event;
    }

    Batch& batch(std::size_t count = 1) {
        Batch& batch = batches_.emplace_back();
        for (std::size_t i = 0; i < count; i++)
            batch.events.push_back(&event());
        return batch;
    }

    Outcome send_one() { return send(batch()); }

    static std::vector<Fate> fates(const Outcome& outcome, std::size_t count) {
        std::vector<Fate> all(count, outcome.fate);
        for (std::size_t i = 0; i < outcome.of_events.size(); i++)
            all[i] = outcome.of_events[i].fate;
        return all;
    }

    template <class Condition>
    void step_until(Condition condition, const char* what) {
        const Micros give_up = clock_.now() + patience;
        while (!condition() && clock_.now() < give_up) {
            std::vector<Outcome> none;
            step_once(none);
            ASSERT_TRUE(none.empty());
        }
        ASSERT_TRUE(condition()) << what;
    }

    ScriptedBroker broker_;
    std::deque<Event> events_;
    std::deque<std::string> texts_;
    std::deque<Batch> batches_;
};

TEST_F(MqttSinkTest, ConfirmsABatchWhenEachMessageHasItsAnswer) {
    create();
    EXPECT_EQ(send(batch(3)).fate, Fate::confirmed);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 1);
    std::vector<int> ids;
    for (const Sent& sent : broker_.sent(3)) {
        EXPECT_EQ(sent.topic(), "t.events");
        EXPECT_EQ(sent.flags, 2);
        ids.push_back(sent.id());
    }
    EXPECT_THAT(ids, ElementsAre(1, 2, 3, 4));
}

TEST_F(MqttSinkTest, LogsInWithItsOptionsAndDisconnects) {
    create({{"client_id", "mine"}, {"keep_alive", "7"}, {"retain", "on"}},
           {{"user", "alice"}, {"password", "s3cret"}});
    ASSERT_EQ(send_one().fate, Fate::confirmed);
    const std::string body = broker_.sent(1).front().body;
    const std::string properties = std::string("\x27\0\0\x40\0", 5);  // maximum packet size
    EXPECT_EQ(body, mqtt_text("MQTT") + "\x05\xC2" + two(7) + with_properties(properties) +
                        mqtt_text("mine") + mqtt_text("alice") + mqtt_text("s3cret"));
    EXPECT_EQ(broker_.sent(3).front().flags, 3);
    sink_.reset();
    while (broker_.sent(14).empty())
        std::this_thread::yield();
    EXPECT_EQ(broker_.sent(14).front().body, "");
}

TEST_F(MqttSinkTest, KeepsWithinTheReceiveMaximum) {
    int in_flight = 0, most = 0;
    std::string held;
    broker_.answer_with([&](const Sent& sent) -> Said {
        if (sent.type == 1)
            return {connack(0, '\x21' + two(3))};
        if (sent.type != 3)
            return usual_answer(sent);
        most = std::max(most, ++in_flight);
        held += usual_answer(sent).bytes;
        if (in_flight < 3)
            return {};
        in_flight = 0;
        return {std::exchange(held, "")};
    });
    create();
    EXPECT_EQ(send(batch(30)).fate, Fate::confirmed);
    EXPECT_EQ(most, 3);
}

TEST_F(MqttSinkTest, PacketIdsComeAround) {
    broker_.answer_with([&](const Sent& sent) -> Said {
        return sent.type == 1 ? Said{connack(0, '\x21' + two(7))} : usual_answer(sent);
    });
    create({{"batch_size", "10000"}});
    for (int i = 0; i < 7; i++)
        ASSERT_EQ(send(batch(10'000)).fate, Fate::confirmed);
    const std::vector<Sent> sent = broker_.sent(3);
    EXPECT_EQ(sent[65'534].id(), 65'535);
    EXPECT_EQ(sent[65'535].id(), 1);
}

// -- answers --------------------------------------------------------------------------------------

struct Verdict {
    int code;
    Fate fate;
    Scope scope;
    bool permanent;
};

TEST_F(MqttSinkTest, EachAnswerHasItsMeaning) {
    constexpr Verdict verdicts[] = {
        {0x00, Fate::confirmed, Scope::destination, false},
        {0x10, Fate::confirmed, Scope::destination, false},
        {0x80, Fate::failed, Scope::lane, false},
        {0x83, Fate::refused, Scope::destination, false},
        {0x87, Fate::unavailable, Scope::lane, false},
        {0x90, Fate::refused, Scope::destination, true},
        {0x91, Fate::failed, Scope::lane, false},
        {0x95, Fate::refused, Scope::destination, true},
        {0x97, Fate::throttled, Scope::lane, false},
        {0x99, Fate::refused, Scope::destination, true},
        {0xff, Fate::failed, Scope::lane, false},
    };
    for (const char* qos : {"1", "2"}) {
        create({{"qos", qos}});
        for (const Verdict& verdict : verdicts) {
            broker_.answer_with([code = verdict.code](const Sent& sent) -> Said {
                return sent.type == 3
                           ? Said{ack((sent.flags & 6) == 2 ? 4 : 5, sent.id(), code, "because")}
                           : usual_answer(sent);
            });
            const Outcome outcome = send_one();
            EXPECT_EQ(outcome.fate, verdict.fate) << verdict.code;
            if (outcome.fate == Fate::confirmed)
                continue;
            EXPECT_EQ(outcome.scope, verdict.scope) << verdict.code;
            EXPECT_EQ(outcome.permanent, verdict.permanent) << verdict.code;
            EXPECT_THAT(outcome.error,
                        AllOf(HasSubstr("topic \"t.events\": 0x"), HasSubstr("because")));
        }
    }
    EXPECT_EQ(broker_.connections(), 2);
}

TEST_F(MqttSinkTest, ABatchCanBeTakenInPart) {
    broker_.answer_with([](const Sent& sent) -> Said {
        if (sent.type == 3 && sent.id() == 2)
            return {ack(4, 2, 0x90)};
        if (sent.type == 3 && sent.id() == 4)
            return {ack(4, 4, 0x97)};
        return usual_answer(sent);
    });
    create();
    const Outcome outcome = send(batch(4));
    EXPECT_THAT(fates(outcome, 4),
                ElementsAre(Fate::confirmed, Fate::refused, Fate::confirmed, Fate::throttled));
    EXPECT_TRUE(outcome.of_events[1].permanent);
}

TEST_F(MqttSinkTest, ADeniedTopicFailsTheLaneUnlessTopicsDifferWithinIt) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 3 ? Said{ack(4, sent.id(), 0x87)} : usual_answer(sent);
    });
    create();
    Outcome outcome = send(batch(3));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::lane);
    EXPECT_THAT(outcome.of_events, SizeIs(0));
    create({{"topic", "things/{aggregate_id}"}});
    outcome = send(batch(2));
    EXPECT_THAT(fates(outcome, 2), Each(Fate::refused));
    EXPECT_FALSE(outcome.of_events[0].permanent);
    EXPECT_THAT(outcome.of_events[0].error,
                HasSubstr("topic \"things/k3\": 0x87 (not authorized)"));
}

TEST_F(MqttSinkTest, WithoutSubscribersTheLaneFailsOnlyIfTheOptionSaysSo) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 3 ? Said{ack((sent.flags & 6) == 2 ? 4 : 5, sent.id(), 0x10)}
                              : usual_answer(sent);
    });
    for (const char* qos : {"1", "2"}) {
        create({{"no_subscribers", "fail"}, {"qos", qos}});
        const Outcome outcome = send_one();
        EXPECT_EQ(outcome.fate, Fate::unavailable);
        EXPECT_EQ(outcome.scope, Scope::lane);
        EXPECT_THAT(outcome.error, HasSubstr("no matching subscribers"));
        create({{"qos", qos}});
        EXPECT_EQ(send_one().fate, Fate::confirmed);
    }
}

TEST_F(MqttSinkTest, RefusesAnEventThatCannotBecomeAMessage) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 1 ? Said{connack(0, std::string("\x27\0\0\x01\0", 5))}
                              : usual_answer(sent);
    });
    create();
    Batch& mixed = batch(4);
    const std::string large(300, 'x'), wild = "a/+/b", zero("a\0b", 3), binary = "a\xff";
    mixed.events[0]->payload = large;
    mixed.events[1]->topic = wild;
    mixed.events[2]->topic = zero;
    const Outcome outcome = send(mixed);
    EXPECT_THAT(fates(outcome, 4),
                ElementsAre(Fate::refused, Fate::refused, Fate::refused, Fate::confirmed));
    EXPECT_THAT(outcome.of_events[0].error, HasSubstr("the broker takes at most 256"));
    EXPECT_THAT(outcome.of_events[1].error, HasSubstr("cannot be a topic"));
    EXPECT_TRUE(outcome.of_events[0].permanent && outcome.of_events[1].permanent);
    Batch& other = batch();
    other.events[0]->topic = binary;
    EXPECT_EQ(send(other).fate, Fate::refused);
    EXPECT_EQ(broker_.connections(), 1);
    EXPECT_EQ(broker_.sent(3).size(), 1u);
}

TEST_F(MqttSinkTest, AnAttributeThatIsTooLongIsNotCutOff) {
    create();
    Batch& one = batch();
    const std::string name = "x-long", value(70'000, 'x');
    const Header header{name, value};
    one.events[0]->headers = {&header, 1};
    const Outcome outcome = send(one);
    EXPECT_EQ(outcome.fate, Fate::refused);
    EXPECT_TRUE(outcome.permanent);
    EXPECT_THAT(outcome.error, HasSubstr("\"x-long\" is longer than 65,535 bytes"));
}

TEST_F(MqttSinkTest, AnAttributeThatMqttDoesNotAllowIsNotReplaced) {
    for (const char* format : {"attributes", "binary", "structured"}) {
        create({{"format", format}});
        for (const char* wrong : {"a\tb", "a\x7f", "\xC2\x85", "\xEF\xBF\xBF", "a\xff"}) {
            Batch& mixed = batch(3);
            const Header header{"X-header", wrong};
            mixed.events[0]->headers = {&header, 1};
            mixed.events[1]->payload = wrong;
            mixed.events[2]->aggregate_id = wrong;
            const bool is_in_document = std::string_view(format) == "structured";
            const Outcome outcome = send(mixed);
            EXPECT_THAT(fates(outcome, 3),
                        ElementsAre(Fate::refused, Fate::confirmed,
                                    is_in_document ? Fate::confirmed : Fate::refused))
                << format;
            EXPECT_THAT(outcome.of_events[0].error,
                        HasSubstr("\"X-header\" has control characters, or others that are not"));
        }
    }
}

// -- a broker that does not let us in -------------------------------------------------------------

TEST_F(MqttSinkTest, EachAnswerToConnectHasItsMeaning) {
    constexpr std::pair<int, Scope> meanings[] = {
        {0x80, Scope::connection},  {0x84, Scope::destination}, {0x85, Scope::destination},
        {0x86, Scope::destination}, {0x87, Scope::destination}, {0x88, Scope::connection},
        {0x89, Scope::connection},  {0x8a, Scope::destination}, {0x97, Scope::connection},
        {0x9c, Scope::destination}, {0x9f, Scope::connection}};
    create();
    for (const auto& [code, scope] : meanings) {
        broker_.answer_with([code = code](const Sent&) -> Said {
            return {connack(code, '\x1c' + mqtt_text("other:1883")), true};
        });
        const Outcome outcome = send(batch(2));
        EXPECT_EQ(outcome.fate, Fate::unavailable) << code;
        EXPECT_EQ(outcome.scope, scope) << code;
        EXPECT_THAT(outcome.error, AllOf(HasSubstr("refuses the connection: 0x"),
                                         HasSubstr("it names the server other:1883")));
    }
}

TEST_F(MqttSinkTest, NamesAPeerThatIsNotAnMqtt5Broker) {
    const std::map<std::string, std::string> answers{
        {packet(2, std::string("\0\1", 2)), "the broker speaks MQTT 3 only"},
        {packet(2, std::string("\0\0", 2)), "the broker speaks MQTT 3 only"},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", "the peer does not speak MQTT"},
        {packet(2, "\x02"), "malformed CONNACK"},
        {connack(0, "", 1), "malformed CONNACK"},  // a session that nobody asked for
        {connack(0, "\x24\x05"), "malformed CONNACK"},
        {connack(0, "\x21\0\0"), "malformed CONNACK"},
        {packet(13, ""), "something else than CONNACK"},
        {"", "closed the connection instead of answering CONNECT"}};
    create();
    for (const auto& [bytes, error] : answers) {
        broker_.answer_with([bytes = bytes](const Sent&) -> Said { return {bytes, true}; });
        const Outcome outcome = send_one();
        EXPECT_EQ(outcome.fate, Fate::unavailable) << error;
        EXPECT_THAT(outcome.error, HasSubstr(error));
    }
}

TEST_F(MqttSinkTest, ABrokerThatAllowsLessThanTheOptionsNeedIsOfNoUse) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 1 ? Said{connack(0, "\x24\x01\x25" + std::string(1, '\0'))}
                              : usual_answer(sent);
    });
    create({{"qos", "2"}});
    EXPECT_THAT(send_one().error, HasSubstr("the broker takes QoS 1 at most (qos)"));
    create({{"retain", "on"}});
    const Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_THAT(outcome.error, HasSubstr("does not keep messages (retain)"));
    create();
    EXPECT_EQ(send_one().fate, Fate::confirmed);
}

TEST_F(MqttSinkTest, SilenceEndsWithATimeLimit) {
    broker_.answer_with([](const Sent&) { return Said(); });
    create({{"connect_timeout", "50ms"}});
    Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::connection);
    EXPECT_EQ(outcome.error, "no answer to CONNECT within 50ms (connect_timeout)");

    broker_.answer_with(
        [](const Sent& sent) { return sent.type == 1 ? usual_answer(sent) : Said(); });
    create({{"request_timeout", "50ms"}});
    outcome = send(batch(2));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.error, "no answer within 50ms (request_timeout)");
    broker_.answer_with(usual_answer);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
}

// -- connections that end -------------------------------------------------------------------------

// Of what is in flight, the oldest one has failed.
TEST_F(MqttSinkTest, AConnectionThatEndsBlamesTheOldestEvent) {
    broker_.answer_with([](const Sent& sent) -> Said {
        if (sent.connection == 1 && sent.type == 3)
            return {sent.id() <= 2 ? usual_answer(sent).bytes : "", sent.id() == 5};
        return usual_answer(sent);
    });
    create();
    sink_->submit(batch(4));
    sink_->submit(batch(1));
    const std::vector<Outcome> both = outcomes(2);
    const Outcome& four = both[0].batch->events.size() == 4 ? both[0] : both[1];
    const Outcome& one = both[0].batch->events.size() == 4 ? both[1] : both[0];
    EXPECT_THAT(fates(four, 4),
                ElementsAre(Fate::confirmed, Fate::confirmed, Fate::failed, Fate::undone));
    EXPECT_EQ(one.fate, Fate::undone);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 2);
}

TEST_F(MqttSinkTest, ABatchOfWhichNothingIsKnownFailsAsAWhole) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 3 ? Said{"", true} : usual_answer(sent);
    });
    create();
    const Outcome outcome = send(batch(4));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_EQ(outcome.scope, Scope::connection);
    EXPECT_THAT(outcome.of_events, SizeIs(0));
}

TEST_F(MqttSinkTest, EachGoodbyeHasItsMeaning) {
    constexpr Verdict verdicts[] = {{0x00, Fate::unavailable, Scope::connection, false},
                                    {0x81, Fate::failed, Scope::connection, false},
                                    {0x87, Fate::unavailable, Scope::lane, false},
                                    {0x89, Fate::unavailable, Scope::connection, false},
                                    {0x8b, Fate::unavailable, Scope::connection, false},
                                    {0x8d, Fate::unavailable, Scope::connection, false},
                                    {0x93, Fate::unavailable, Scope::connection, false},
                                    {0x96, Fate::throttled, Scope::lane, false},
                                    {0x97, Fate::throttled, Scope::lane, false},
                                    {0x98, Fate::unavailable, Scope::destination, false},
                                    {0x9b, Fate::unavailable, Scope::destination, false},
                                    {0x9d, Fate::unavailable, Scope::destination, false},
                                    // There is one message that it can mean.
                                    {0x90, Fate::refused, Scope::destination, true},
                                    {0x95, Fate::refused, Scope::destination, true},
                                    {0x99, Fate::refused, Scope::destination, true}};
    create();
    for (const Verdict& verdict : verdicts) {
        broker_.answer_with([code = verdict.code](const Sent& sent) -> Said {
            return sent.type == 3 ? Said{goodbye(code), true} : usual_answer(sent);
        });
        const Outcome outcome = send_one();
        EXPECT_EQ(outcome.fate, verdict.fate) << verdict.code;
        EXPECT_EQ(outcome.scope, verdict.scope) << verdict.code;
        EXPECT_EQ(outcome.permanent, verdict.permanent) << verdict.code;
        EXPECT_THAT(outcome.error, HasSubstr("the broker ended the connection: 0x"));
    }
}

TEST_F(MqttSinkTest, AGoodbyeThatMayMeanAnyOfSeveralRefusesNone) {
    int messages = 0;
    broker_.answer_with([&](const Sent& sent) -> Said {
        if (sent.type != 3)
            return usual_answer(sent);
        return ++messages == 2 ? Said{goodbye(0x95), true} : Said();
    });
    create();
    EXPECT_EQ(send(batch(2)).fate, Fate::failed);
}

TEST_F(MqttSinkTest, TheSinkDoesNotFightForItsClientId) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 3 ? Said{goodbye(0x8e), true} : usual_answer(sent);
    });
    create({{"client_id", "shared"}});
    const Outcome first = send_one();
    EXPECT_EQ(first.fate, Fate::unavailable);
    EXPECT_EQ(first.scope, Scope::destination);
    EXPECT_THAT(first.error,
                HasSubstr("another client of the broker has the client id \"shared\""));
    EXPECT_GT(first.retry_after, 0);
    EXPECT_LE(first.retry_after, seconds(1));
    const Outcome second = send_one();
    EXPECT_EQ(second.error, first.error);
    EXPECT_GT(second.retry_after, 0);
    EXPECT_EQ(broker_.connections(), 1);
}

// mosquitto does not say why it ends the connection of the one who had the id before.
TEST_F(MqttSinkTest, ConnectionsThatDoNotLastAreASignOfAFight) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return {usual_answer(sent).bytes, sent.type == 3};
    });
    create({{"client_id", "shared"}});
    Outcome outcome = send_one();
    while (outcome.fate == Fate::confirmed || outcome.fate == Fate::failed) {
        ASSERT_LE(broker_.connections(), 10);
        outcome = send_one();
    }
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("may have the client id \"shared\" (client_id)"));
    EXPECT_EQ(broker_.connections(), 10);
}

TEST_F(MqttSinkTest, AConnectionThatEndsAfterARefusalIsNotAShortLife) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 3 ? Said{ack(4, sent.id(), 0x87), true} : usual_answer(sent);
    });
    create();
    for (int i = 0; i < 20; i++) {
        EXPECT_EQ(send_one().scope, Scope::lane);
        step_until([&] { return sink_->deadline() == never; }, "the end of the connection");
    }
}

TEST_F(MqttSinkTest, OnlyAllowedAddressesAreConnectedTo) {
    make({{"url", broker_.url()}}, {}, "10.0.0.0/8");
    const Outcome outcome = send_one();
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("outbox.allowed_hosts"));
    EXPECT_EQ(broker_.connections(), 0);
}

TEST_F(MqttSinkTest, AnIdleConnectionThatEndsIsNoFailure) {
    create();
    ASSERT_EQ(send_one().fate, Fate::confirmed);
    broker_.say(goodbye(0x98));
    SinkReport report;
    step_until([&] { return sink_->deadline() == never; }, "the end of the connection");
    sink_->report(report);
    EXPECT_THAT(report.lines,
                ElementsAre("the broker ended the connection: 0x98 (administrative action)"));
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 2);
}

TEST_F(MqttSinkTest, AnIdleConnectionIsTested) {
    create({{"keep_alive", "1"}, {"request_timeout", "100ms"}});
    ASSERT_EQ(send_one().fate, Fate::confirmed);
    step_until([&] { return broker_.sent(12).size() == 2; }, "two pings");
    EXPECT_EQ(broker_.connections(), 1);
    broker_.answer_with(
        [](const Sent& sent) { return sent.type == 12 ? Said() : usual_answer(sent); });
    step_until([&] { return broker_.sent(12).size() == 3; }, "a third ping");
    step_until([&] { return sink_->deadline() == never; }, "the end of the connection");
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 2);
}

TEST_F(MqttSinkTest, TheBrokersKeepAliveCounts) {
    broker_.answer_with([](const Sent& sent) {
        return sent.type == 1 ? Said{connack(0, '\x13' + two(1))} : usual_answer(sent);
    });
    create({{"keep_alive", "3600"}});
    ASSERT_EQ(send_one().fate, Fate::confirmed);
    step_until([&] { return !broker_.sent(12).empty(); }, "a ping");
}

// -- QoS 2 ----------------------------------------------------------------------------------------

// A broker that keeps the session, and ends the first connection after some packet of a kind.
class Qos2 : public MqttSinkTest {
  protected:
    void end_after(int type, bool keeps_session = true) {
        broker_.answer_with([this, type, keeps_session](const Sent& sent) -> Said {
            if (sent.type == 1)
                return {connack(0, "", keeps_session && sent.connection > 1 ? 1 : 0)};
            if (sent.connection == 1 && sent.type == type && ++seen_ == 2)
                return {"", true};
            if (sent.type == 6 && sent.connection > 1 && type == 6)
                return {ack(7, sent.id(), 0x92)};  // it has forgotten them already
            return usual_answer(sent);
        });
        create({{"qos", "2"}});
    }
    int seen_ = 0;
};

TEST_F(Qos2, HasAHandshake) {
    create({{"qos", "2"}, {"connect_timeout", "3s"}});
    EXPECT_EQ(send(batch(3)).fate, Fate::confirmed);
    EXPECT_EQ(broker_.sent(3).size(), 3u);
    EXPECT_EQ(broker_.sent(6).size(), 3u);
    EXPECT_THAT(broker_.sent(1).front().body, HasSubstr(std::string("\x11\0\0\0\x04", 5)));
}

TEST_F(Qos2, ResumesASession) {
    end_after(3);
    EXPECT_EQ(send(batch(3)).fate, Fate::confirmed);
    ASSERT_EQ(broker_.connections(), 2);
    EXPECT_EQ(broker_.sent(1)[0].body[7] & 2, 2) << "clean start";
    EXPECT_EQ(broker_.sent(1)[1].body[7] & 2, 0) << "no clean start";
    for (const Sent& sent : broker_.sent(3)) {
        EXPECT_LE(sent.id(), 3);
        EXPECT_EQ(sent.flags, sent.connection == 1 ? 4 : 12) << "DUP";
    }
}

TEST_F(Qos2, ABrokerMayRepeatItselfInASessionThatIsResumed) {
    broker_.answer_with([](const Sent& sent) -> Said {
        if (sent.type == 1)
            return {sent.connection == 1 ? connack() : connack(0, "", 1) + ack(5, 1) + ack(7, 9)};
        return {usual_answer(sent).bytes, sent.connection == 1 && sent.type == 3};
    });
    create({{"qos", "2"}});
    EXPECT_EQ(send(batch(3)).fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 2);
}

TEST_F(Qos2, DoesNotSendAgainWhatTheBrokerHas) {
    end_after(6);
    EXPECT_EQ(send(batch(3)).fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 2);
    for (const Sent& sent : broker_.sent(3))
        EXPECT_EQ(sent.connection, 1);
}

TEST_F(Qos2, ASessionThatTheBrokerHasLostIsUnknown) {
    end_after(3, false);
    const Outcome outcome = send(batch(3));
    EXPECT_THAT(fates(outcome, 3), Contains(Fate::failed));
    EXPECT_EQ(send_one().fate, Fate::confirmed);
    EXPECT_EQ(broker_.connections(), 2);
}

TEST_F(Qos2, GivesUpABrokerThatStaysAway) {
    int connections = 0;
    broker_.answer_with([&](const Sent& sent) -> Said {
        if (sent.type == 1 && ++connections > 1)
            return {"", true};
        return sent.type == 3 ? Said{"", true} : usual_answer(sent);
    });
    create({{"qos", "2"}, {"connect_timeout", "300ms"}});
    const Outcome outcome = send(batch(3));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("closed the connection"));
    EXPECT_GT(broker_.connections(), 1);
    broker_.answer_with(usual_answer);
    EXPECT_EQ(send_one().fate, Fate::confirmed);
}

TEST_F(Qos2, DoesNotResumeAMessageForWhichTheBrokerDisconnects) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 3 ? Said{goodbye(0x95), true} : usual_answer(sent);
    });
    create({{"qos", "2"}});
    EXPECT_EQ(send_one().fate, Fate::refused);
    EXPECT_EQ(broker_.connections(), 1);
}

TEST_F(Qos2, AnUnknownNumberWithoutASessionIsAFailure) {
    broker_.answer_with([](const Sent& sent) -> Said {
        return sent.type == 6 ? Said{ack(7, sent.id(), 0x92)} : usual_answer(sent);
    });
    create({{"qos", "2"}});
    EXPECT_EQ(send_one().fate, Fate::failed);
}

// -- hostile brokers ------------------------------------------------------------------------------

TEST_F(MqttSinkTest, ALengthIsNotBelieved) {
    create();
    for (const std::string& bytes :
         {std::string("\x40\xff\xff\xff\x7f"), std::string("\x40\xff\xff\xff\xff"),
          packet(4, std::string(20'000, 'x'))}) {
        broker_.answer_with([bytes](const Sent& sent) -> Said {
            return sent.type == 3 ? Said{bytes} : usual_answer(sent);
        });
        const Outcome outcome = send_one();
        EXPECT_EQ(outcome.fate, Fate::failed);
        EXPECT_THAT(outcome.error, HasSubstr("the broker sent a"));
    }
}

TEST_F(MqttSinkTest, AnswersToNothingEndTheConnection) {
    const std::string once = ack(4, 1);
    for (const std::string& bytes :
         {ack(4, 0), ack(4, 9), once + once, ack(5, 1), ack(7, 1), packet(13, ""),
          packet(3, mqtt_text("t") + '\0' + "hello"), packet(4, "\x01"), packet(2, "\0\0\0"),
          packet(9, "abc"), packet(4, std::string("\0\1\x97\x05\x1f", 5)), packet(14, "\x8b\x7f"),
          packet(15, "")}) {
        broker_.answer_with([bytes](const Sent& sent) -> Said {
            return sent.type == 3 ? Said{bytes} : usual_answer(sent);
        });
        create();
        const Outcome outcome = send(batch(2));
        EXPECT_THAT(fates(outcome, 2), testing::Not(Each(Fate::confirmed)));
    }
}

// At each byte of its answers. What had an answer is confirmed, and nothing else.
TEST_F(MqttSinkTest, APeerMayCloseAnywhere) {
    for (const char* qos : {"1", "2"}) {
        const int type = *qos == '1' ? 4 : 5;
        const std::string hello = connack(0, '\x21' + two(9)), answer = ack(type, 1, 0, "fine");
        for (std::size_t n = 0; n < hello.size() + answer.size(); n++) {
            broker_.answer_with([=](const Sent& sent) -> Said {
                if (sent.connection > 1 && sent.type == 1)
                    return {connack(), false};
                if (sent.type == 1)
                    return {hello.substr(0, n), n < hello.size()};
                return {n > hello.size() ? answer.substr(0, n - hello.size()) : "", true};
            });
            create({{"qos", qos}});
            const Outcome outcome = send_one();
            EXPECT_TRUE(outcome.fate == Fate::unavailable || outcome.fate == Fate::failed) << n;
        }
    }
}

TEST_F(MqttSinkTest, RandomAnswersAreSurvived) {
    Mutations mutations(
        {connack(), connack(0, '\x21' + two(2)), ack(4, 1), ack(4, 2, 0x10), ack(5, 1), ack(7, 1),
         ack(4, 1, 0x87, "no"), goodbye(0x8b), connack() + ack(4, 1) + ack(4, 2), packet(13, "")},
        std::string("\0\1\2\x10\x20\x40\x80\xff", 8));
    std::mutex mutex;
    broker_.answer_with([&](const Sent& sent) -> Said {
        const std::lock_guard lock(mutex);
        const bool honest = mutations.below(4) > 0;
        Said said = honest ? usual_answer(sent) : Said{mutations.next(), mutations.below(3) == 0};
        return said;
    });
    for (int i = 0; i < 300; i++) {
        create({{"qos", i % 2 == 0 ? "1" : "2"},
                {"connect_timeout", "20ms"},
                {"request_timeout", "20ms"}});
        sink_->submit(batch(3));
        sink_->submit(batch(1));
        outcomes(2);
    }
    broker_.answer_with(usual_answer);  // before what the answers need goes
}

TEST_F(MqttSinkTest, ThrowsBadAllocWhenMemoryRunsOut) {
    const Outcome outcome = send_without_memory(
        batch(), [&] { create(); }, allocations_until_failure, allocation_failed);
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

}  // namespace
}  // namespace outbox
