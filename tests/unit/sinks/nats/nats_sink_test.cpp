// The nats sink against a scripted server, also one that breaks the protocol.
#include <gmock/gmock.h>

#include <string>

#include "core/text.hpp"
#include "unit/drive.hpp"
#include "unit/failing_new.hpp"
#include "unit/mutations.hpp"
#include "unit/sample_event.hpp"
#include "unit/sinks/nats/scripted_nats.hpp"

namespace outbox {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class NatsSinkTest : public DrivenSink {
  protected:
    NatsSinkTest() : events_(3) {
        for (std::size_t i = 0; i < events_.size(); i++) {
            Event& event = events_[i].event;
            event.event_id[15] = static_cast<std::uint8_t>(i);
            event.topic = topics_[i];
            batch_.events.push_back(&event);
        }
    }

    void serve(ScriptedNats::Script script) { server_.emplace(std::move(script)); }

    void open(std::vector<Option> options = {}, const std::vector<Option>& mapping = {},
              const std::string& scheme = "nats") {
        options.insert(options.begin(), {"url", scheme + "://" + server_->address()});
        if (std::none_of(options.begin(), options.end(),
                         [](const Option& one) { return one.name == "request_timeout"; }))
            options.push_back({"request_timeout", "1h"});
        if (std::none_of(options.begin(), options.end(),
                         [](const Option& one) { return one.name == "connect_timeout"; }))
            options.push_back({"connect_timeout", "1h"});
        make(options, mapping);
    }

    Outcome send_to(ScriptedNats::Script script, const std::vector<Option>& options = {}) {
        serve(std::move(script));
        open(options);
        return send(batch_);
    }

    static ScriptedNats::Script script(std::function<std::string(const Published&)> answer) {
        ScriptedNats::Script made;
        made.answer = std::move(answer);
        return made;
    }
    static ScriptedNats::Script with_info(std::string info) {
        ScriptedNats::Script made;
        made.info = std::move(info);
        return made;
    }
    static ScriptedNats::Script with_login(std::string login) {
        ScriptedNats::Script made;
        made.login = std::move(login);
        return made;
    }

    const std::string topics_[3] = {"a.events", "b.events", "c.events"};
    std::vector<SampleEvent> events_;
    Batch batch_;
    std::optional<ScriptedNats> server_;
};

// -------------------------------------------------------------------------------------------------
// Answers
// -------------------------------------------------------------------------------------------------

TEST_F(NatsSinkTest, AnAcknowledgementOfEachEventConfirmsTheBatch) {
    const Outcome outcome = send_to({}, {{"receipts", "on"}});
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
    EXPECT_EQ(outcome.batch, &batch_);
    EXPECT_THAT(outcome.message_ids, testing::ElementsAre("S:1", "S:1", "S:1"));
    const std::vector<Published> published = server_->published();
    ASSERT_EQ(published.size(), 3u);
    EXPECT_EQ(published[1].subject, "b.events");
    EXPECT_EQ(published[1].payload, events_[1].event.payload);
    EXPECT_NE(published[0].reply, published[1].reply);
    EXPECT_THAT(server_->received(),
                AllOf(HasSubstr("\"headers\":true"), HasSubstr("\"no_responders\":true")));
    EXPECT_EQ(send(batch_).fate, Fate::confirmed);
    EXPECT_EQ(server_->connections(), 1);
}

TEST_F(NatsSinkTest, EachEventHasItsOwnOutcome) {
    const Outcome outcome = send_to(script([](const Published& published) {
        if (published.subject == "a.events")
            return ScriptedNats::acknowledge(published);
        if (published.subject == "b.events")
            return "HMSG " + published.reply + " 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\n";
        return ScriptedNats::message(
            published.reply, R"({"error":{"code":400,"err_code":10054,"description":"large"}})");
    }));
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::unavailable);
    EXPECT_EQ(outcome.of_events[1].scope, Scope::lane);
    EXPECT_EQ(outcome.of_events[2].fate, Fate::refused);
    EXPECT_TRUE(outcome.of_events[2].permanent);
}

TEST_F(NatsSinkTest, AnswersMayComeInAnyOrderAndTwice) {
    auto waiting = std::make_shared<std::vector<Published>>();
    const Outcome outcome = send_to(script([waiting](const Published& published) -> std::string {
        waiting->push_back(published);
        if (waiting->size() < 3)
            return "";
        std::string all =
            ScriptedNats::message("_INBOX.other.1", "{}") + ScriptedNats::message("x", "{}");
        for (auto one = waiting->rbegin(); one != waiting->rend(); one++)
            all += ScriptedNats::acknowledge(*one) + ScriptedNats::message(one->reply, "{}");
        return all;
    }));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

TEST_F(NatsSinkTest, AnswersToUnknownRequestsMeanNothing) {
    auto server = script([](const Published& published) {
        const std::string prefix = published.reply.substr(0, published.reply.rfind('.') + 1);
        std::string all;
        for (const char* token : {"", "zzzzzzzzzzzzzzzzzzzz", "0", "-1", "9999", "1.2", "1x!"})
            all += ScriptedNats::message(prefix + token, "{\"stream\":\"S\",\"seq\":1}");
        all += "MSG " + published.reply + " 2 0\r\n\r\n";  // of another subscription
        return all + (published.subject == "c.events" ? "-ERR 'Stale Connection'\r\n" : "");
    });
    const Outcome outcome = send_to(std::move(server));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_THAT(outcome.error, HasSubstr("Stale Connection"));
}

TEST_F(NatsSinkTest, AMissingPermissionEndsEventsOfItsSubject) {
    events_[1].event.topic = "b\"\\.events";
    const Outcome outcome = send_to(script([](const Published& published) {
        return published.subject == "b\"\\.events"
                   ? "-ERR 'Permissions Violation for Publish to \"b\\\"\\\\.events\"'\r\n"
                   : ScriptedNats::acknowledge(published);
    }));
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::unavailable);
    EXPECT_EQ(outcome.of_events[1].scope, Scope::lane);
    EXPECT_EQ(outcome.of_events[2].fate, Fate::confirmed);
}

TEST_F(NatsSinkTest, NothingIsSentThatTheServerWouldEndTheConnectionFor) {
    serve(with_info("INFO {\"version\":\"2\",\"headers\":true,\"max_payload\":1000}\r\n"));
    open({{"subject", "{topic}.{aggregate_id}"}});
    const std::string large(1000, 'x'), key(4000, 'k');
    events_[0].event.payload = large;
    events_[1].event.aggregate_id = key;
    const Outcome outcome = send(batch_);
    ASSERT_EQ(outcome.of_events.size(), 3u);
    for (const int i : {0, 1}) {
        EXPECT_EQ(outcome.of_events[static_cast<std::size_t>(i)].fate, Fate::refused);
        EXPECT_TRUE(outcome.of_events[static_cast<std::size_t>(i)].permanent);
    }
    EXPECT_THAT(outcome.of_events[0].error, HasSubstr("max_payload"));
    EXPECT_EQ(outcome.of_events[2].fate, Fate::confirmed);
    EXPECT_EQ(server_->published().size(), 1u);
}

// -------------------------------------------------------------------------------------------------
// No answers
// -------------------------------------------------------------------------------------------------

TEST_F(NatsSinkTest, WithoutASignOfLifeTheConnectionIsReplaced) {
    const Outcome outcome =
        send_to(script([](const Published&) { return ""; }), {{"request_timeout", "50ms"}});
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_THAT(outcome.error, HasSubstr("no answer within 50ms (request_timeout)"));
    EXPECT_EQ(send(batch_).fate, Fate::failed);
    EXPECT_EQ(server_->connections(), 2);
}

TEST_F(NatsSinkTest, OneAnswerThatIsMissingConcernsOneEvent) {
    const Outcome outcome = send_to(
        script([](const Published& published) {
            return published.subject == "b.events" ? "" : ScriptedNats::acknowledge(published);
        }),
        {{"request_timeout", "500ms"}});
    ASSERT_EQ(outcome.of_events.size(), 3u);
    EXPECT_EQ(outcome.of_events[0].fate, Fate::confirmed);
    EXPECT_EQ(outcome.of_events[1].fate, Fate::failed);
    EXPECT_EQ(outcome.of_events[2].fate, Fate::confirmed);
    EXPECT_EQ(server_->connections(), 1);
}

TEST_F(NatsSinkTest, SilenceEndsTheLogin) {
    Outcome outcome = send_to(with_info(""), {{"connect_timeout", "50ms"}});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::connection);
    EXPECT_THAT(outcome.error, HasSubstr("did not introduce itself within 50ms"));
    outcome = send_to(with_login(""), {{"connect_timeout", "50ms"}});
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("no answer to the login within 50ms"));
}

// -------------------------------------------------------------------------------------------------
// Logins
// -------------------------------------------------------------------------------------------------

TEST_F(NatsSinkTest, ARefusedLoginFailsTheDestination) {
    const Outcome outcome = send_to(with_login("-ERR 'Authorization Violation'\r\n"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::destination);
    EXPECT_THAT(outcome.error, HasSubstr("Authorization Violation"));
    EXPECT_TRUE(server_->published().empty());
}

TEST_F(NatsSinkTest, AServerThatIsFullIsOneConnection) {
    const Outcome outcome = send_to(with_login("-ERR 'maximum connections exceeded'\r\n"));
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_EQ(outcome.scope, Scope::connection);
}

TEST_F(NatsSinkTest, CredentialsAreSentOnlyOverTlsIfTheUrlSaysSo) {
    serve({});
    open({}, {{"user", "u"}, {"password", "s3cret"}}, "tls");
    const Outcome outcome = send(batch_);
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("offers no TLS"));
    EXPECT_EQ(server_->received(), "");
}

TEST_F(NatsSinkTest, BytesBetweenInfoAndTlsAreAFailure) {
    serve(with_info("INFO {\"headers\":true,\"tls_required\":true}\r\nPONG\r\n"));
    open({}, {}, "tls");
    const Outcome outcome = send(batch_);
    EXPECT_THAT(outcome.error, HasSubstr("between INFO and TLS"));
    EXPECT_THAT(server_->received(), Not(HasSubstr("CONNECT")));
}

TEST_F(NatsSinkTest, GarbageInsteadOfTlsIsAFailure) {
    auto info = with_info("INFO {\"headers\":true,\"tls_required\":true}\r\n");
    info.login = "";
    serve(std::move(info));
    open({{"connect_timeout", "50ms"}}, {}, "tls");
    const Outcome outcome = send(batch_);
    EXPECT_EQ(outcome.fate, Fate::unavailable);
    EXPECT_THAT(outcome.error, HasSubstr("TLS was not ready within 50ms"));
}

TEST_F(NatsSinkTest, OneWayToLogIn) {
    serve({});
    for (const std::vector<Option>& mapping :
         {std::vector<Option>{{"user", "u"}, {"token", "t"}},
          std::vector<Option>{{"password", "p"}},
          std::vector<Option>{{"nkey_seed", "SU" + std::string(56, 'A')}},
          std::vector<Option>{
              {"credentials",
               "-----BEGIN NATS USER JWT-----\nx\n-----BEGIN USER NKEY SEED-----\ny\n"}}}) {
        open({}, mapping);
        const Outcome outcome = send(batch_);
        EXPECT_EQ(outcome.fate, Fate::unavailable);
        EXPECT_EQ(outcome.scope, Scope::destination);
        EXPECT_THAT(outcome.error, HasSubstr("user mapping"));
    }
    EXPECT_EQ(server_->connections(), 0);
}

// -------------------------------------------------------------------------------------------------
// Servers that break the protocol
// -------------------------------------------------------------------------------------------------

TEST_F(NatsSinkTest, ServersThatTheClusterNamesAreNotConnectedTo) {
    ScriptedNats other({});
    const std::string info =
        "INFO {\"headers\":true,\"connect_urls\":[\"" + other.address() + "\"],\"ldm\":true}\r\n";
    auto server = with_info(info);
    server.answer = [info](const Published& published) {
        return published.subject == "c.events" ? info + "-ERR 'Server Shutdown'\r\n"
                                               : info + ScriptedNats::acknowledge(published);
    };
    EXPECT_EQ(send_to(std::move(server)).fate, Fate::failed);
    send(batch_);
    EXPECT_EQ(other.connections(), 0);
    EXPECT_EQ(server_->connections(), 2);
}

TEST_F(NatsSinkTest, WhatIsNotNatsIsAFailure) {
    for (const std::string& info :
         {std::string("HTTP/1.1 400 Bad Request\r\n"), std::string("INFO {\r\n"),
          std::string("INFO []\r\n"), std::string("INFO {\"headers\":1}\r\n"),
          std::string("PONG\r\nMSG a 1 0\r\n\r\n"), std::string("-ERR 'no'\r\n"),
          "INFO {\"a\":\"" + std::string(1024 * 1024, 'x'), std::string(1024 * 1024, 'x'),
          "INFO " + std::string(100'000, '[') + "\r\n"}) {
        const Outcome outcome = send_to(with_info(info));
        EXPECT_EQ(outcome.fate, Fate::unavailable) << info.substr(0, 50);
        EXPECT_TRUE(server_->published().empty());
    }
}

TEST_F(NatsSinkTest, AnAnswerThatIsTooLargeEndsTheConnection) {
    const Outcome outcome = send_to(script([](const Published& published) {
        return "MSG " + published.reply + " 1 2000000000\r\n" + std::string(1024 * 1024, 'x');
    }));
    EXPECT_EQ(outcome.fate, Fate::failed);
    EXPECT_THAT(outcome.error, HasSubstr("too large"));
}

TEST_F(NatsSinkTest, PingsAreNotAnsweredOneByOne) {
    std::string many;
    for (int i = 0; i < 100'000; i++)
        many += "PING\r\n";
    const Outcome outcome = send_to(script([many](const Published& published) {
        return many + ScriptedNats::acknowledge(published);
    }));
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

TEST_F(NatsSinkTest, AConnectionMayEndAtAnyByte) {
    const auto whole = static_cast<long>(std::string(ScriptedNats::usual_info).size()) + 250;
    for (long cut = 0; cut < whole; cut++) {
        ScriptedNats::Script server;
        server.cut = cut;
        const Outcome outcome = send_to(std::move(server));
        EXPECT_TRUE(outcome.fate == Fate::unavailable || outcome.fate == Fate::failed ||
                    outcome.fate == Fate::confirmed)
            << cut;
        for (const EventOutcome& own : outcome.of_events)
            EXPECT_TRUE(own.fate == Fate::failed || own.fate == Fate::confirmed) << cut;
    }
}

TEST_F(NatsSinkTest, RandomBytesAreSurvived) {
    Mutations mutations(
        {std::string("MSG $ 1 24\r\n{\"stream\":\"S\",\"seq\":1}\r\n"),
         std::string("HMSG $ 1 16 16\r\nNATS/1.0 503\r\n\r\n\r\nPING\r\n"),
         std::string("-ERR 'Permissions Violation for Publish to \"a.events\"'\r\n"),
         std::string("INFO {\"headers\":true}\r\n+OK\r\nPONG\r\n")},
        "\r\n $0123456789\"{}:,MSGHPINGO-+'");
    for (int round = 0; round < 300; round++) {
        const std::string bytes = mutations.next();
        const Outcome outcome = send_to(script([bytes](const Published& published) {
            std::string said;
            for (const char c : bytes)
                c == '$' ? said += published.reply : said += c;
            return said + "\r\n\r\n-ERR 'Stale Connection'\r\n";
        }));
        EXPECT_EQ(outcome.batch, &batch_) << bytes;
    }
}

TEST_F(NatsSinkTest, NothingIsSwallowedWhenMemoryRunsOut) {
    serve({});
    const Outcome outcome = send_without_memory(
        batch_, [&] { open(); }, allocations_until_failure, allocation_failed);
    EXPECT_EQ(outcome.fate, Fate::confirmed) << outcome.error;
}

TEST_F(NatsSinkTest, TheNextServerOfTheListIsTried) {
    serve({});
    ScriptedNats refusing(with_login("-ERR 'Authorization Violation'\r\n"));
    make({{"url", "nats://" + refusing.address() + "," + server_->address()}}, {});
    EXPECT_EQ(send(batch_).fate, Fate::confirmed);
    EXPECT_EQ(refusing.connections(), 1);
}

}  // namespace
}  // namespace outbox
