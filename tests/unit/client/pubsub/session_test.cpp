// The Pub/Sub source and its session, against a service that the test plays: what goes over the wire,
// and when.
#include "pubsub/session.hpp"

#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>
#include <future>
#include <thread>

#include "scripted_pubsub.hpp"

namespace inbox::pubsub {
namespace {

using namespace std::chrono_literals;
using grpc::StatusCode;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing::UnorderedElementsAre;
using ScriptedStream = ScriptedPubSub::Stream;

constexpr const char* subscription = "projects/p/subscriptions/sub";
constexpr auto hour = 3'600'000ms;

struct Sent {
    std::string id;
    std::string key{};
    std::string data = "x";
    std::string ack_id{};  // empty: ack-<id>
    std::map<std::string, std::string> attributes{};
};

struct Delivering {
    bool exactly_once = false, ordered = false;
};

StreamingPullResponse response(const std::vector<Sent>& messages, Delivering how = {}) {
    StreamingPullResponse all;
    for (const Sent& sent : messages) {
        ReceivedMessage& received = *all.add_received_messages();
        received.set_ack_id(sent.ack_id.empty() ? "ack-" + sent.id : sent.ack_id);
        Message& message = *received.mutable_message();
        message.set_message_id(sent.id);
        message.set_data(sent.data);
        message.set_ordering_key(sent.key);
        for (const auto& [name, value] : sent.attributes)
            (*message.mutable_attributes())[name] = value;
    }
    all.mutable_subscription_properties()->set_exactly_once_delivery_enabled(how.exactly_once);
    all.mutable_subscription_properties()->set_message_ordering_enabled(how.ordered);
    return all;
}

std::vector<Sent> numbered(int count, int first = 1, const std::string& key = "") {
    std::vector<Sent> messages;
    for (int n = first; n < first + count; n++)
        messages.push_back({.id = std::to_string(n), .key = key});
    return messages;
}

// How a call ends where delivery is exactly once: with what became of single ack ids.
grpc::Status partly(StatusCode code, const std::map<std::string, std::string>& reasons) {
    ErrorInfo info;
    for (const auto& [ack_id, reason] : reasons)
        (*info.mutable_metadata())[ack_id] = reason;
    Status details;
    Any& any = *details.add_details();
    any.set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
    any.set_value(info.SerializeAsString());
    return {code, "some", details.SerializeAsString()};
}

grpc::Status failure(StatusCode code) {
    return {code, "as the test wants it"};
}

class PubSubSessionTest : public testing::Test {
  protected:
    // Opens it, and returns the stream that it reads.
    ScriptedStream& open(PubSubOptions options = {.project = "p", .subscription = "sub"}) {
        make(std::move(options)).open();
        return service.next_stream();
    }
    PubSubSource& make(PubSubOptions options = {.project = "p", .subscription = "sub"}) {
        options.emulator_host = service.address();
        if (options.heartbeat == 30s)  // the default
            options.heartbeat = hour;
        source.emplace(std::move(options));
        source->set_log([this](Level level, const std::string& text) {
            const std::lock_guard lock(mutex);
            logged.push_back((level == Level::warning ? "warning: " : "") + text);
        });
        return *source;
    }

    std::vector<std::string> log() const {
        const std::lock_guard lock(mutex);
        return logged;
    }

    // Waits for this many, and takes no more.
    std::vector<Delivery> receive(std::size_t count) {
        std::vector<Delivery> all;
        const auto until = std::chrono::steady_clock::now() + patience;
        while (all.size() < count && std::chrono::steady_clock::now() < until)
            std::ranges::move(source->receive(count - all.size(), 1000ms), std::back_inserter(all));
        EXPECT_EQ(all.size(), count);
        all.resize(count);
        return all;
    }
    static std::vector<std::string> ids(const std::vector<Delivery>& deliveries) {
        std::vector<std::string> all;
        for (const Delivery& delivery : deliveries)
            all.push_back(delivery.message_id);
        return all;
    }

    // What the source counts changes without anything that could be waited for.
    template <typename Reached>
    PubSubStats wait_stats(Reached reached) {
        const auto until = std::chrono::steady_clock::now() + patience;
        for (;;) {
            const PubSubStats stats = source->stats();
            if (reached(stats))
                return stats;
            if (std::chrono::steady_clock::now() > until) {
                ADD_FAILURE() << "waited in vain for figures";
                return stats;
            }
            std::this_thread::yield();
        }
    }
    void wait_given_back(std::size_t count) {
        service.wait([&] { return service.given_back().size() >= count; }, "messages given back");
    }
    void wait_acked(std::size_t count) {
        wait_stats([&](const PubSubStats& stats) { return stats.acked == count; });
    }

    ScriptedPubSub service;
    mutable std::mutex mutex;
    std::vector<std::string> logged;
    std::optional<PubSubSource> source;  // ends before the service
};

// ------------------------------------------------------------------------------------------------
// The stream
// ------------------------------------------------------------------------------------------------

TEST_F(PubSubSessionTest, TheFirstRequestSaysWhatIsReadAndHowMuch) {
    const StreamingPullRequest first = open({.project = "p",
                                             .subscription = "sub",
                                             .max_outstanding_messages = 7,
                                             .max_outstanding_bytes = 10'000,
                                             .min_ack_deadline = 30s,
                                             .client_id = "me"})
                                           .first();
    EXPECT_EQ(first.subscription(), subscription);
    EXPECT_EQ(first.max_outstanding_messages(), 7);
    EXPECT_EQ(first.max_outstanding_bytes(), 10'000);
    EXPECT_EQ(first.stream_ack_deadline_seconds(), 30);
    EXPECT_EQ(first.client_id(), "me");
}

TEST_F(PubSubSessionTest, AnIdleStreamIsKeptAliveAndNothingElseIsDone) {
    const auto began = std::chrono::steady_clock::now();
    ScriptedStream& stream = open({.project = "p", .subscription = "sub", .heartbeat = 20ms});
    service.wait([&] { return stream.requests().size() >= 5; }, "four heartbeats");
    const auto requests = stream.requests();
    for (std::size_t i = 1; i < requests.size(); i++) {
        EXPECT_THAT(requests[i].first.subscription() + requests[i].first.client_id(), IsEmpty());
        EXPECT_GE(requests[i].second - began, 20ms * i) << "too early";
    }
    EXPECT_THAT(service.calls(), IsEmpty());
    EXPECT_EQ(source->stats().streams, 1u);
}

TEST_F(PubSubSessionTest, AMessageAsADelivery) {
    const std::string id = "00112233-4455-6677-8899-aabbccddeeff";
    ScriptedStream& stream = open({.project = "p", .subscription = "sub", .topic = "video.events"});
    stream.send(response({{.id = "17",
                           .key = "v1",
                           .data = "{}",
                           .attributes = {{"event_id", id}, {"event_type", "VideoUpdated"}}},
                          {.id = "18"}}));
    const auto deliveries = receive(2);
    const Delivery& first = deliveries[0];
    EXPECT_EQ(first.source, "pubsub://p/sub");
    EXPECT_EQ(first.message_id, "17");
    EXPECT_EQ(first.event.id, id);
    EXPECT_EQ(first.event.type, "VideoUpdated");
    EXPECT_EQ(first.event.ordering_key, "v1");
    EXPECT_EQ(first.event.payload, "{}");
    EXPECT_EQ(first.event.topic, "video.events");
    EXPECT_EQ(deliveries[1].event.topic, "video.events");
    EXPECT_GT(first.size, 2 + id.size() + std::string("VideoUpdated").size());
}

class StreamThatEnds : public PubSubSessionTest, public testing::WithParamInterface<StatusCode> {};

TEST_P(StreamThatEnds, IsOpenedAgain) {
    ScriptedStream& stream = open();
    stream.send(response({{.id = "1"}}));
    auto held = receive(1);
    stream.end(GetParam());
    ScriptedStream& again = service.next_stream();
    EXPECT_EQ(again.first().client_id(), stream.first().client_id());
    EXPECT_EQ(again.first().subscription(), subscription);
    again.send(response({{.id = "2"}}));
    held.push_back(receive(1).front());
    source->ack(held);
    wait_acked(2);
    EXPECT_THAT(service.acked(), ElementsAre("ack-1", "ack-2"));
}

INSTANTIATE_TEST_SUITE_P(PubSub, StreamThatEnds,
                         testing::Values(StatusCode::ABORTED, StatusCode::DEADLINE_EXCEEDED,
                                         StatusCode::INTERNAL, StatusCode::RESOURCE_EXHAUSTED,
                                         StatusCode::UNAVAILABLE, StatusCode::UNKNOWN,
                                         StatusCode::CANCELLED, StatusCode::OK));

class SubscriptionThatCannotBeUsed : public PubSubSessionTest,
                                     public testing::WithParamInterface<StatusCode> {};

TEST_P(SubscriptionThatCannotBeUsed, IsAnError) {
    ScriptedStream& stream = open();
    stream.send(response({{.id = "1"}}));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 1; });
    stream.end(GetParam());
    EXPECT_THAT(ids(receive(1)), ElementsAre("1")) << "what was read before is handed out first";
    try {
        source->receive(10, patience);
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_FALSE(error.transient());
        EXPECT_THAT(error.what(), HasSubstr(std::string("cannot read ") + subscription));
        EXPECT_THAT(error.what(), HasSubstr("as the test wants it"));
    }
    source->close(patience);
    EXPECT_EQ(service.streams(), 1u);
}

INSTANTIATE_TEST_SUITE_P(PubSub, SubscriptionThatCannotBeUsed,
                         testing::Values(StatusCode::NOT_FOUND, StatusCode::PERMISSION_DENIED,
                                         StatusCode::UNAUTHENTICATED, StatusCode::INVALID_ARGUMENT,
                                         StatusCode::FAILED_PRECONDITION));

// The first is nothing special: the service moves streams. Pauses are random, so that it is their
// upper bounds that grow.
TEST_F(PubSubSessionTest, TheEndOfAStreamIsReportedIfItIsNotTheFirst) {
    open().end(StatusCode::UNAVAILABLE);
    service.next_stream().end(StatusCode::UNAVAILABLE);
    service.next_stream();
    source->close(patience);
    EXPECT_THAT(log(), ElementsAre(testing::StartsWith("the stream ended, and is opened again in "),
                                   testing::StartsWith("warning: the stream ended, and")));
}

// ------------------------------------------------------------------------------------------------
// Leases
// ------------------------------------------------------------------------------------------------

TEST_F(PubSubSessionTest, WhatComesIsLeasedAtOnce) {
    open().send(response(numbered(3)));
    wait_stats([](const PubSubStats& s) { return s.extended == 3 && s.waiting == 3; });
    const auto calls = service.calls("ModifyAckDeadline");
    ASSERT_THAT(calls, SizeIs(1));
    EXPECT_EQ(parsed<ModifyAckDeadlineRequest>(calls[0].request).subscription(), subscription);
    EXPECT_EQ(calls[0].seconds, 10);
    EXPECT_THAT(calls[0].ack_ids, ElementsAre("ack-1", "ack-2", "ack-3"));
}

// Takes up to 1.4 s: a lease is no shorter than a second.
TEST_F(PubSubSessionTest, LeasesAreExtendedUntilAMessageIsSettledAlsoWithoutAStream) {
    ScriptedStream& stream = open(
        {.project = "p", .subscription = "sub", .min_ack_deadline = 1s, .max_ack_deadline = 1s});
    stream.send(response(numbered(3)));
    const auto held = receive(3);
    source->ack(std::span(held).first(1));
    source->nack(std::span(held).last(1));
    wait_given_back(1);
    wait_acked(1);
    stream.end(StatusCode::UNAVAILABLE);
    const std::size_t before = service.calls("ModifyAckDeadline").size();
    service.wait([&] { return service.calls("ModifyAckDeadline").size() >= before + 2; },
                 "two extensions");
    const auto calls = service.calls("ModifyAckDeadline");
    for (std::size_t i = before; i < calls.size(); i++) {
        EXPECT_THAT(calls[i].ack_ids, ElementsAre("ack-2"));
        EXPECT_EQ(calls[i].seconds, 1);
    }
}

TEST_F(PubSubSessionTest, AnExtensionThatFailsIsTriedAgain) {
    service.fail("ModifyAckDeadline", failure(StatusCode::UNAVAILABLE));
    open().send(response(numbered(2)));
    wait_stats([](const PubSubStats& stats) { return stats.extended == 2; });
    EXPECT_THAT(service.extended(),
                ElementsAre(ElementsAre("ack-1", "ack-2"), ElementsAre("ack-1", "ack-2")));
}

// An extension that arrives last would keep it from coming again.
TEST_F(PubSubSessionTest, AMessageIsNotExtendedAfterItWasGivenBack) {
    service.fail("ModifyAckDeadline", failure(StatusCode::UNAVAILABLE));
    open().send(response(numbered(2)));
    source->nack(receive(1));
    wait_stats([](const PubSubStats& stats) { return stats.extended == 1; });
    EXPECT_THAT(service.given_back(), ElementsAre("ack-1"));
    EXPECT_THAT(service.extended().back(), ElementsAre("ack-2"));
}

// ------------------------------------------------------------------------------------------------
// Acknowledgements
// ------------------------------------------------------------------------------------------------

TEST_F(PubSubSessionTest, AcknowledgementsAreGathered) {
    open().send(response(numbered(300)));
    const auto messages = receive(300);
    const auto began = std::chrono::steady_clock::now();
    for (const Delivery& message : messages)
        source->ack({&message, 1});
    wait_acked(300);
    const auto took = std::chrono::steady_clock::now() - began;
    EXPECT_THAT(service.acked(), SizeIs(300));
    EXPECT_EQ(source->stats().leased, 0u);
    EXPECT_LE(service.calls("Acknowledge").size(), static_cast<std::size_t>(took / 10ms + 1));
    const auto request = parsed<AcknowledgeRequest>(service.calls("Acknowledge")[0].request);
    EXPECT_EQ(request.subscription(), subscription);
}

TEST_F(PubSubSessionTest, RequestsAreNoLargerThanTheServiceTakes) {
    ScriptedStream& stream =
        open({.project = "p", .subscription = "sub", .max_outstanding_messages = 10'000});
    std::vector<Sent> messages = numbered(1500);
    for (Sent& sent : messages)
        sent.ack_id = std::string(1000 - sent.id.size(), '0') + sent.id;
    stream.send(response(messages));
    stream.send(response(numbered(1200, 1501)));
    wait_stats([](const PubSubStats& stats) { return stats.extended == 2700; });
    source->ack(receive(2700));
    wait_acked(2700);
    for (const char* method : {"Acknowledge", "ModifyAckDeadline"}) {
        std::size_t ids = 0, largest = 0;
        for (const auto& call : service.calls(method)) {
            ids += call.ack_ids.size();
            largest = std::max(largest, call.request.Length());
            EXPECT_LE(call.ack_ids.size(), 1000u);
        }
        EXPECT_EQ(ids, 2700u) << method;
        EXPECT_GT(largest, 400'000u) << method;
        EXPECT_LT(largest, 524'288u) << method;
    }
}

class AcknowledgementThatFails : public PubSubSessionTest,
                                 public testing::WithParamInterface<StatusCode> {};

TEST_P(AcknowledgementThatFails, IsSentAgain) {
    service.fail("Acknowledge", failure(GetParam()));
    open().send(response(numbered(1)));
    source->ack(receive(1));
    wait_acked(1);
    EXPECT_THAT(service.acked(), ElementsAre("ack-1", "ack-1"));
    EXPECT_EQ(source->stats().lost_acks, 0u);
}

INSTANTIATE_TEST_SUITE_P(PubSub, AcknowledgementThatFails,
                         testing::Values(StatusCode::UNAVAILABLE, StatusCode::DEADLINE_EXCEEDED,
                                         StatusCode::INTERNAL, StatusCode::ABORTED));

TEST_F(PubSubSessionTest, AcknowledgementsDoNotWaitForOneThatIsTriedAgain) {
    service.answer("Acknowledge", [](const ScriptedPubSub::Called& call) {
        return std::ranges::count(call.ack_ids, "ack-1") > 0 ? failure(StatusCode::UNAVAILABLE)
                                                             : grpc::Status::OK;
    });
    open().send(response(numbered(2)));
    const auto messages = receive(2);
    source->ack(std::span(messages).first(1));
    service.wait([&] { return !service.acked().empty(); }, "the first attempt");
    source->ack(std::span(messages).last(1));
    wait_acked(1);
    service.answer("Acknowledge", [](const auto&) { return grpc::Status::OK; });
    wait_acked(2);
}

TEST_F(PubSubSessionTest, AnAcknowledgementThatIsRefusedIsCountedAndReported) {
    service.fail("Acknowledge", failure(StatusCode::PERMISSION_DENIED));
    open().send(response(numbered(2)));
    const auto messages = receive(2);
    source->ack(std::span(messages).first(1));
    wait_stats([](const PubSubStats& stats) { return stats.lost_acks == 1; });
    source->ack(std::span(messages).last(1));
    wait_acked(1);
    source->close(patience);
    EXPECT_THAT(log(),
                Contains(HasSubstr("warning: cannot acknowledge 1 messages: PERMISSION_DENIED")));
    EXPECT_THAT(service.acked(), ElementsAre("ack-1", "ack-2"));
}

TEST_F(PubSubSessionTest, WhatIsNotHeldIsNotSettled) {
    open().send(response(numbered(3)));
    const auto messages = receive(3);
    const auto one = [&](std::size_t i) { return std::span(messages).subspan(i, 1); };
    source->ack(one(0));
    source->ack(one(0));
    source->nack(one(0));
    source->close(patience);
    source->open();
    source->ack(one(1));
    source->nack(one(2));
    service.next_stream().send(response(numbered(1, 4)));
    source->ack(receive(1));
    wait_acked(2);
    source->close(patience);
    EXPECT_THAT(service.acked(), ElementsAre("ack-1", "ack-4"));
    EXPECT_THAT(service.given_back(), ElementsAre("ack-2", "ack-3")) << "by close()";
}

// ------------------------------------------------------------------------------------------------
// Order
// ------------------------------------------------------------------------------------------------

constexpr Delivering ordered{.ordered = true};

TEST_F(PubSubSessionTest, GivingBackAMessageGivesBackLaterOnesOfItsKey) {
    open().send(response(
        {{"1", "a"}, {"2", "a"}, {"3", "a"}, {"4", "b"}, {"5", "a"}, {"6", "a"}, {"7"}}, ordered));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 7; });
    const auto received = receive(2);
    source->nack(std::span(received).last(1));
    wait_given_back(4);
    EXPECT_THAT(service.given_back(), ElementsAre("ack-2", "ack-3", "ack-5", "ack-6"));
    EXPECT_THAT(ids(receive(2)), ElementsAre("4", "7")) << "other keys and none do not matter";
    const PubSubStats stats = source->stats();
    EXPECT_EQ(stats.nacked, 1u);
    EXPECT_EQ(stats.overtaken, 3u);
    EXPECT_EQ(stats.leased, 3u);
}

TEST_F(PubSubSessionTest, WhatOvertakesAMessageThatWasGivenBackIsGivenBack) {
    ScriptedStream& stream = open();
    stream.send(response({{"1", "a"}}, ordered));
    source->nack(receive(1));
    // Under way before the service knew.
    stream.send(response({{"2", "a"}, {"3", "a"}, {"4", "b"}}, ordered));
    EXPECT_THAT(ids(receive(1)), ElementsAre("4"));
    wait_given_back(3);
    EXPECT_THAT(service.given_back(), ElementsAre("ack-1", "ack-2", "ack-3"));
    // Now it begins anew, and goes on.
    stream.send(response({{"1", "a"}, {"2", "a"}, {"3", "a"}, {"5", "a"}}, ordered));
    EXPECT_THAT(ids(receive(4)), ElementsAre("1", "2", "3", "5"));
}

TEST_F(PubSubSessionTest, AKeyContinuesIfItsFirstMessageWentToAnotherConsumer) {
    ScriptedStream& stream = open();
    stream.send(response(numbered(2, 1, "a"), ordered));
    source->nack(receive(2));
    stream.send(response(numbered(2, 2, "a"), ordered));
    EXPECT_THAT(ids(receive(2)), ElementsAre("2", "3"));
}

TEST_F(PubSubSessionTest, WithoutOrderNothingIsTakenAlong) {
    ScriptedStream& stream = open();
    stream.send(response(numbered(3, 1, "a")));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 3; });
    source->nack(receive(1));
    stream.send(response(numbered(1, 4, "a")));
    EXPECT_THAT(ids(receive(3)), ElementsAre("2", "3", "4"));
    wait_given_back(1);
    source->close(patience);
    EXPECT_EQ(service.given_back().front(), "ack-1");
}

// ------------------------------------------------------------------------------------------------
// Flow control
// ------------------------------------------------------------------------------------------------

class FlowControl : public PubSubSessionTest, public testing::WithParamInterface<bool> {};

// A message in each answer. What is not read from the stream, gRPC's flow control holds back.
TEST_P(FlowControl, NoMoreIsReadThanThereIsRoomFor) {
    const bool by_bytes = GetParam();
    ScriptedStream& stream = open(
        by_bytes
            ? PubSubOptions{.project = "p", .subscription = "sub", .max_outstanding_bytes = 200'000}
            : PubSubOptions{.project = "p", .subscription = "sub", .max_outstanding_messages = 10});
    constexpr int count = 200;
    for (Sent& sent : numbered(count)) {
        sent.data = std::string(20'000, 'x');
        stream.send(response({sent}));
    }
    wait_stats([](const PubSubStats& stats) { return stats.waiting >= 10; });
    std::vector<Delivery> all;
    while (all.size() < count) {
        EXPECT_LE(source->stats().received, all.size() + 10);
        std::ranges::move(receive(1), std::back_inserter(all));
    }
    for (int n = 0; n < count; n++)
        ASSERT_EQ(all[static_cast<std::size_t>(n)].message_id, std::to_string(n + 1));
    source->ack(all);
    wait_acked(count);
    EXPECT_EQ(source->stats().streams, 1u);
}

INSTANTIATE_TEST_SUITE_P(PubSub, FlowControl, testing::Bool());

TEST_F(PubSubSessionTest, APausedStreamThatEndsIsNoticed) {
    ScriptedStream& stream =
        open({.project = "p", .subscription = "sub", .max_outstanding_messages = 5});
    stream.send(response(numbered(5)));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 5; });
    stream.end(StatusCode::UNAVAILABLE);
    source->ack(receive(5));
    service.next_stream().send(response(numbered(1, 6)));
    EXPECT_THAT(ids(receive(1)), ElementsAre("6"));
}

// ------------------------------------------------------------------------------------------------
// Exactly once
// ------------------------------------------------------------------------------------------------

constexpr Delivering exactly_once{.exactly_once = true};

TEST_F(PubSubSessionTest, ExactlyOnceAMessageIsHandedOutWhenItsLeaseIsSure) {
    service.hold();
    open().send(response(numbered(2), exactly_once));
    service.wait([&] { return !service.calls().empty(); }, "the leases to be asked for");
    EXPECT_THAT(source->receive(10, 0ms), IsEmpty());
    EXPECT_EQ(source->stats().received, 2u);
    service.let_go();
    EXPECT_THAT(ids(receive(2)), UnorderedElementsAre("1", "2"));
    EXPECT_EQ(service.calls()[0].seconds, 60);
}

TEST_F(PubSubSessionTest, ExactlyOnceWhatIsNotOursIsNotHandedOut) {
    service.fail("ModifyAckDeadline", partly(StatusCode::FAILED_PRECONDITION,
                                             {{"ack-2", "PERMANENT_FAILURE_INVALID_ACK_ID"}}));
    ScriptedStream& stream = open();
    constexpr Delivering both{.exactly_once = true, .ordered = true};
    stream.send(response({{"1", "a"}, {"2", "a"}, {"3", "b"}, {"4", "a"}}, both));
    EXPECT_THAT(ids(receive(2)), ElementsAre("1", "3"));
    wait_given_back(1);
    EXPECT_THAT(service.given_back(), ElementsAre("ack-4")) << "it must not overtake the second";
    stream.send(response({{.id = "2", .key = "a", .ack_id = "again-2"}}, both));
    EXPECT_THAT(ids(receive(1)), ElementsAre("2"));
    EXPECT_EQ(source->stats().refused, 1u);
}

TEST_F(PubSubSessionTest, ExactlyOnceALeaseThatMayHaveFailedIsGivenBack) {
    service.fail("ModifyAckDeadline", failure(StatusCode::UNAVAILABLE));
    open().send(response(numbered(2), exactly_once));
    wait_given_back(2);
    EXPECT_THAT(service.given_back(), ElementsAre("ack-1", "ack-2"));
    const PubSubStats stats = source->stats();
    EXPECT_EQ(stats.refused, 2u);
    EXPECT_EQ(stats.waiting, 0u);
}

TEST_F(PubSubSessionTest, ExactlyOnceAcknowledgementsAreConfirmedOneByOne) {
    open().send(response(numbered(4), exactly_once));
    const auto messages = receive(4);
    service.fail("Acknowledge", partly(StatusCode::FAILED_PRECONDITION,
                                       {{"ack-1", "PERMANENT_FAILURE_INVALID_ACK_ID"},
                                        {"ack-2", "TRANSIENT_FAILURE_UNORDERED_ACK_ID"},
                                        {"ack-3", "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"},
                                        {"retry", "of no id"}}));
    service.fail("Acknowledge", partly(StatusCode::UNAVAILABLE,
                                       {{"ack-3", "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"}}));
    source->ack(messages);
    const PubSubStats stats =
        wait_stats([](const PubSubStats& s) { return s.acked == 3 && s.lost_acks == 1; });
    EXPECT_EQ(stats.leased, 0u);
    const auto calls = service.calls("Acknowledge");
    ASSERT_THAT(calls, SizeIs(3));
    EXPECT_THAT(calls[0].ack_ids, UnorderedElementsAre("ack-1", "ack-2", "ack-3", "ack-4"));
    EXPECT_THAT(calls[1].ack_ids, UnorderedElementsAre("ack-2", "ack-3"));
    EXPECT_THAT(calls[2].ack_ids, ElementsAre("ack-3"));
    source->close(patience);
    EXPECT_THAT(log(), Contains(HasSubstr("PERMANENT_FAILURE_INVALID_ACK_ID")));
}

// ------------------------------------------------------------------------------------------------
// Seek
// ------------------------------------------------------------------------------------------------

TEST_F(PubSubSessionTest, SeekToATime) {
    ScriptedStream& stream = open();
    stream.send(response(numbered(3)));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 3; });
    const auto held = receive(1);
    bool had_ended = false;
    service.answer("Seek", [&](const auto&) {
        had_ended = stream.closed();
        return grpc::Status::OK;
    });
    source->seek(Time{std::chrono::microseconds{1'700'000'000'123'456}});
    EXPECT_TRUE(had_ended) << "what the service sends after it must not come on the old stream";
    const auto request = parsed<SeekRequest>(service.calls("Seek").at(0).request);
    EXPECT_EQ(request.subscription(), subscription);
    EXPECT_EQ(request.time().seconds(), 1'700'000'000);
    EXPECT_EQ(request.time().nanos(), 123'456'000);
    // What was read before and not received, the service sends again if it is still to come.
    wait_given_back(2);
    EXPECT_THAT(service.given_back(), ElementsAre("ack-2", "ack-3"));
    service.next_stream().send(response(numbered(1, 7)));
    EXPECT_THAT(ids(receive(1)), ElementsAre("7"));
    source->ack(held);
    wait_acked(1);
    EXPECT_THAT(service.acked(), ElementsAre("ack-1"));
    EXPECT_THAT(log(), testing::Each(testing::Not(HasSubstr("warning"))));
}

TEST_F(PubSubSessionTest, WhatComesTooLateOnAnOldStreamIsGivenBack) {
    ScriptedStream& stream =
        open({.project = "p", .subscription = "sub", .max_outstanding_messages = 1});
    for (const Sent& sent : numbered(4))
        stream.send(response({sent}));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 1; });
    source->seek(Time{});
    wait_given_back(4);
    EXPECT_THAT(service.given_back(), UnorderedElementsAre("ack-1", "ack-2", "ack-3", "ack-4"));
    EXPECT_THAT(source->receive(10, 0ms), IsEmpty());
}

TEST_F(PubSubSessionTest, SeekToASnapshot) {
    open();
    source->create_snapshot("before");
    source->seek_to_snapshot("before");
    const auto created =
        parsed<CreateSnapshotRequest>(service.calls("CreateSnapshot").at(0).request);
    const auto sought = parsed<SeekRequest>(service.calls("Seek").at(0).request);
    EXPECT_EQ(created.name(), "projects/p/snapshots/before");
    EXPECT_EQ(sought.snapshot(), "projects/p/snapshots/before");
    EXPECT_EQ(created.subscription(), subscription);
    EXPECT_EQ(sought.subscription(), subscription);
}

TEST_F(PubSubSessionTest, ASourceThatIsNotOpenCanBeMoved) {
    make().create_snapshot("before");
    source->seek(Time{});
    EXPECT_THAT(service.calls("CreateSnapshot"), SizeIs(1));
    EXPECT_THAT(service.calls("Seek"), SizeIs(1));
    EXPECT_EQ(service.streams(), 0u);
}

TEST_F(PubSubSessionTest, ASeekThatFailsIsAnErrorAndReadingGoesOn) {
    open();
    for (const auto& [code, transient] : {std::pair{StatusCode::UNIMPLEMENTED, false},
                                          {StatusCode::NOT_FOUND, false},
                                          {StatusCode::UNAVAILABLE, true}}) {
        service.fail("Seek", failure(code));
        try {
            source->seek(Time{});
            ADD_FAILURE();
        } catch (const SourceError& error) {
            EXPECT_EQ(error.transient(), transient);
            EXPECT_THAT(error.what(), HasSubstr(std::string("cannot seek ") + subscription));
        }
        service.next_stream().send(response(numbered(1)));
        receive(1);
    }
}

// ------------------------------------------------------------------------------------------------
// The end
// ------------------------------------------------------------------------------------------------

TEST_F(PubSubSessionTest, CloseSendsWhatIsToBeSentAndGivesBackTheRest) {
    ScriptedStream& stream = open();
    stream.send(response(numbered(6)));
    wait_stats([](const PubSubStats& stats) { return stats.waiting == 6; });
    const auto received = receive(4);
    source->ack(std::span(received).first(2));
    source->close(patience);
    EXPECT_THAT(service.acked(), ElementsAre("ack-1", "ack-2"));
    EXPECT_THAT(service.given_back(), ElementsAre("ack-3", "ack-4", "ack-5", "ack-6"));
    EXPECT_TRUE(stream.closed());
    EXPECT_THAT(source->receive(10, 0ms), IsEmpty());
    EXPECT_EQ(source->stats().leased, 0u);
    source->open();
    service.next_stream().send(response(numbered(1, 7)));
    EXPECT_THAT(ids(receive(1)), ElementsAre("7"));
    EXPECT_EQ(source->stats().received, 7u) << "counters go on";
}

TEST_F(PubSubSessionTest, CloseWaitsForNoAnswerLongerThanItMay) {
    open().send(response(numbered(2)));
    const auto messages = receive(2);
    wait_stats([](const PubSubStats& stats) { return stats.extended == 2; });
    service.hold();
    source->ack(std::span(messages).first(1));
    source->close(50ms);  // returns
    EXPECT_EQ(source->stats().acked, 0u);
}

TEST_F(PubSubSessionTest, CloseEndsAReceiveThatWaits) {
    open();
    std::thread closer([&] { source->close(patience); });
    EXPECT_THAT(source->receive(10, std::chrono::hours{1}), IsEmpty());
    closer.join();
}

// No thread of gRPC may be the last to let go of a channel. If one is, it ends the queue that it
// serves, and the process crashes, often in what comes next.
TEST(PubSubStream, ReleasesItsChannelBeforeItReportsItsEnd) {
    ScriptedPubSub service;
    PubSubOptions options{.project = "p", .subscription = "sub"};
    options.emulator_host = service.address();
    const std::shared_ptr<grpc::Channel> channel = make_channel(options);
    std::promise<long> owners;
    auto stream = std::make_shared<Stream>(
        StreamingPullRequest(), [](StreamingPullResponse&) { return true; },
        [&](const grpc::Status&) { owners.set_value(channel.use_count()); });
    Stream::start(stream, channel);
    stream.reset();
    service.next_stream().end(StatusCode::OK);
    EXPECT_EQ(owners.get_future().get(), 1);
}

TEST(PubSubSession, CanFollowAnother) {
    for (int i = 0; i < 100; i++) {
        ScriptedPubSub service;
        PubSubOptions options{.project = "p", .subscription = "sub"};
        options.emulator_host = service.address();
        PubSubSource source(options);
        source.open();
        service.next_stream().send(response({{.id = "1"}}));
        source.ack(source.receive(1, patience));
        source.close(patience);
        EXPECT_EQ(service.acked().size(), 1u);
    }
}

// ------------------------------------------------------------------------------------------------
// Options
// ------------------------------------------------------------------------------------------------

TEST(PubSubOptionsTest, AreChecked) {
    const PubSubOptions good{.project = "p", .subscription = "s"};
    EXPECT_NO_THROW(PubSubSource{good});
    for (const auto& [spoil, complaint] :
         std::initializer_list<std::pair<void (*)(PubSubOptions&), const char*>>{
             {[](PubSubOptions& o) { o.project = ""; }, "project is empty"},
             {[](PubSubOptions& o) { o.subscription = ""; }, "subscription is empty"},
             {[](PubSubOptions& o) { o.min_ack_deadline = 700s; }, "from 1 s to 600 s"},
             {[](PubSubOptions& o) {
                  o.min_ack_deadline = 20s;
                  o.max_ack_deadline = 10s;
              },
              "from 1 s to 600 s"},
             {[](PubSubOptions& o) { o.max_outstanding_messages = 0; },
              "max_outstanding_messages is 0"},
             {[](PubSubOptions& o) { o.max_outstanding_bytes = 0; }, "max_outstanding_bytes is 0"},
             {[](PubSubOptions& o) { o.max_lease = 1s; }, "max_lease is less"},
             {[](PubSubOptions& o) { o.heartbeat = 0ms; }, "heartbeat is 0"}}) {
        PubSubOptions options = good;
        spoil(options);
        try {
            PubSubSource source(options);
            ADD_FAILURE() << complaint;
        } catch (const std::invalid_argument& error) {
            EXPECT_THAT(error.what(), HasSubstr(complaint));
        }
    }
}

TEST(PubSubOptionsTest, AnInvalidKeyFileIsAPermanentError) {
    const std::string path = testing::TempDir() + "key-" + std::to_string(getpid()) + ".json";
    for (const char* text : {"", "{}", R"({"type": "service_account"})"}) {
        std::ofstream(path) << text;
        PubSubSource source({.project = "p", .subscription = "s", .key_file = path});
        try {
            source.open();
            ADD_FAILURE() << text;
        } catch (const SourceError& error) {
            EXPECT_FALSE(error.transient());
            EXPECT_THAT(error.what(), HasSubstr(path));
        }
    }
    unlink(path.c_str());
    PubSubSource source({.project = "p", .subscription = "s", .key_file = path});
    EXPECT_THROW(source.open(), SourceError);
}

}  // namespace
}  // namespace inbox::pubsub
