// The sink with endpoints: what each endpoint gets, and what the database is told.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <numeric>

#include "sinks/http/endpoint_secret.hpp"
#include "sinks/http/endpoints_sink.hpp"
#include "unit/failing_new.hpp"
#include "unit/sinks/http/driven_endpoints.hpp"

namespace outbox {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;

class EndpointsSinkTest : public DrivenEndpoints {
  protected:
    // An endpoint that has fallen back because it does not answer, and an event that it lacks.
    void fall_back(const std::string& name) {
        log("t");
        read();
        ASSERT_TRUE(turn_until([&] { return is_behind(name) && all_confirmed(); }));
    }

    // One that is behind has just accepted this event, and the question that tells it is under way.
    void settle_one(const std::string& name) {
        // An earlier request may still be in flight, with the answer of an earlier script.
        const auto waits = std::make_shared<std::atomic<bool>>(false);
        answer_with([waits](const std::string&, std::int64_t) {
            *waits = true;
            return 0;
        });
        ASSERT_TRUE(turn_until([&] { return waits->load(); }));
        asks_ = false;
        answer_now(up);
        ASSERT_TRUE(turn_until([&] { return endpoints().in_flight() == 0; }));
        EXPECT_THAT(accepted(name), ElementsAre(1));
        ASSERT_TRUE(ask_next());
        ASSERT_THAT(question_,
                    HasSubstr("\"settled\":[{\"endpoint\":\"acme\",\"positions\":[1]}]"));
        ASSERT_THAT(question_, HasSubstr("\"fetch\":[\"acme\"]"));
    }

    static int down(const std::string&, std::int64_t) { return 500; }
    static int up(const std::string&, std::int64_t) { return 204; }
};

// -- Memory ---------------------------------------------------------------------------------------

// An answer that lists an endpoint, and one that fetches an event for it.
EndpointAnswer an_answer(const EndpointRow& row, const LoggedEvent& fetched) {
    EndpointAnswer answer;
    answer.known = "5:5:";
    answer.count = 1;
    answer.changed.push_back(row);
    answer.blocks.push_back(std::make_unique<EventBlock>());
    EndpointFetched& fetches = answer.fetched.emplace_back();
    fetches.name = row.name;
    fetches.events = {append_logged(*answer.blocks.back(), fetched)};
    fetches.attempts = {0};
    return answer;
}

TEST_F(EndpointsSinkTest, ThrowsBadAllocWhenMemoryRunsOut) {
    start();
    answer_with(
        [](const std::string&, std::int64_t position) { return position == 1 ? 413 : 204; });
    EndpointRow live = endpoint("acme").row;
    EndpointRow behind = live;
    behind.behind = true;
    for (long n = 0;; n++) {
        restart();
        EventBlock block;
        Batch batch{.events = {append_logged(block, {.xid = 500, .position = 1, .topic = "t"}),
                               append_logged(block, {.xid = 500, .position = 2, .topic = "t"})}};
        std::deque<EndpointAnswer> answers;
        answers.push_back(an_answer(live, {}));
        while (answers.size() < 5)
            answers.push_back(an_answer(behind, {.xid = 501, .position = 3, .topic = "t"}));
        std::vector<Outcome> outcomes;
        const SystemClock real;
        const Micros give_up = real.now() + patience;
        bool thrown = false;
        allocations_until_failure = n;
        try {
            sink_->submit(batch);
            while ((outcomes.empty() || !answers.empty()) && real.now() < give_up) {
                clock_.tick();
                sink_->step(clock_.now(), outcomes);
                if (is_due() && !answers.empty()) {
                    endpoints().ask({});
                    endpoints().answered(std::move(answers.front()));
                    answers.pop_front();
                }
                pollfd watched{sink_->descriptor(), POLLIN, 0};
                poll(&watched, 1, sink_->deadline() > clock_.now() ? 1 : 0);
            }
        } catch (const std::bad_alloc&) {
            thrown = true;
        }
        const bool happened = allocation_failed();
        if (!thrown) {
            ASSERT_EQ(outcomes.size(), 1u);
            EXPECT_EQ(outcomes.front().fate, Fate::confirmed);
        }
        if (!happened)
            return;
    }
}

// -- Copies ---------------------------------------------------------------------------------------

TEST_F(EndpointsSinkTest, SendsAnEventToEachEndpointThatTakesItsTopic) {
    endpoint("all", "*");
    endpoint("orders", "order, order.*");
    endpoint("both", "invoice.*,order");
    endpoint("none", "nothing");
    start();
    for (const char* topic : {"order", "order.paid", "invoice.sent", "other"})
        log(topic);
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("all"), UnorderedElementsAre(1, 2, 3, 4));
    EXPECT_THAT(accepted("orders"), UnorderedElementsAre(1, 2));
    EXPECT_THAT(accepted("both"), UnorderedElementsAre(1, 3));
    EXPECT_THAT(accepted("none"), IsEmpty());
    EXPECT_EQ(questions_.size(), 1u) << "endpoints that work cost the database nothing";
}

TEST_F(EndpointsSinkTest, CopiesNothingBeforeItKnowsTheEndpoints) {
    endpoint("acme");
    start();
    log("t");
    read();
    asks_ = false;
    turn_for(seconds(2));
    EXPECT_EQ(tries("acme"), 0u);
    std::uint64_t xid = 0;
    std::int64_t position = 0;
    EXPECT_FALSE(endpoints().last_event(xid, position));
    asks_ = true;
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1));
    EXPECT_TRUE(endpoints().last_event(xid, position));
    EXPECT_EQ(position, 1);
}

TEST_F(EndpointsSinkTest, KeepsTheOrderOfEachKeyAndSendsOtherKeysMeanwhile) {
    endpoint("acme");
    start();
    // It is known to work, so it gets several requests at a time.
    for (int i = 0; i < 4; i++)
        log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    answer_with([](const std::string&, std::int64_t position) { return position == 5 ? 0 : 204; });
    for (const char* key : {"a", "a", "b", "b", ""})
        log("t", key);
    read();
    ASSERT_TRUE(turn_until([&] { return accepted("acme").size() == 7; }));
    EXPECT_THAT(accepted("acme"), Not(testing::Contains(6))) << "it is behind an event of its key";
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return accepted("acme").size() == 9; }));
    const std::vector<std::int64_t> order = accepted("acme");
    EXPECT_LT(std::find(order.begin(), order.end(), 5), std::find(order.begin(), order.end(), 6));
    EXPECT_LT(std::find(order.begin(), order.end(), 7), std::find(order.begin(), order.end(), 8));
}

TEST_F(EndpointsSinkTest, LimitsTheRequestsToOneEndpoint) {
    endpoint("acme");
    start({{"requests_per_endpoint", "2"}});
    answer_with([](const std::string&, std::int64_t position) { return position < 3 ? 204 : 0; });
    for (int i = 0; i < 9; i++)
        log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return endpoints().in_flight() == 2; }));
    turn_for(milliseconds(500));
    EXPECT_EQ(endpoints().in_flight(), 2u);
    answer_now(up);
    EXPECT_TRUE(turn_until([&] { return all_confirmed(); }));
}

TEST_F(EndpointsSinkTest, StopsToCopyWhenTooManyCopiesWait) {
    for (int i = 0; i < 10'000; i++)
        endpoint("e" + std::to_string(i));
    start();
    endpoints().pause(true);
    for (int i = 0; i < 25; i++)
        log("t");
    read();
    std::uint64_t xid = 0;
    std::int64_t position = 0;
    ASSERT_TRUE(
        turn_until([&] { return endpoints().last_event(xid, position) && position >= 20; }));
    turn_for(milliseconds(200));
    endpoints().last_event(xid, position);
    EXPECT_EQ(position, 20);
    EXPECT_EQ(peer_.requests().size(), 0u) << "it is paused";
}

TEST_F(EndpointsSinkTest, StartsNoRequestWhilePaused) {
    endpoint("acme");
    start();
    endpoints().pause(true);
    log("t");
    read();
    turn_for(seconds(1));
    EXPECT_EQ(tries("acme"), 0u);
    EXPECT_EQ(endpoints().in_flight(), 0u);
    endpoints().pause(false);
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_FALSE(asked("fall_back")) << "the wait was not its fault";
}

// -- Requests -------------------------------------------------------------------------------------

TEST_F(EndpointsSinkTest, SignsWithTheSecretsOfTheEndpoint) {
    const std::string master = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const std::string next = "whsec_ICEiIyQlJicoKSorLC0uLzAxMjM0NTY3ODk6Ozw9Pj8=";
    endpoint("acme").row.secret_name = "acme, acme-2";
    start({}, {{"signing_secret", master},
               {"next_signing_secret", next},
               {"headers", "X-Tenant: 7\nwebhook-id: forged"}});
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    const std::string request = peer_.requests().front();
    EXPECT_THAT(request, HasSubstr("\r\nX-Tenant: 7\r\n"));
    EXPECT_THAT(request, Not(HasSubstr("forged")));
    const auto header = [&](const std::string& name) {
        const std::size_t begin = request.find("\r\n" + name + ": ") + name.size() + 4;
        return request.substr(begin, request.find("\r\n", begin) - begin);
    };
    const std::string id = header("webhook-id");
    const std::string time = header("webhook-timestamp");
    std::vector<std::string> secrets;
    for (const char* name : {"acme", "acme-2"})
        for (const std::string& one : {master, next})
            secrets.push_back(endpoint_secret(one, name));
    Result<WebhookSigner> made = WebhookSigner::create(secrets, {});
    ASSERT_TRUE(made);
    std::string expected;
    made.value().append_headers(expected, id, seconds(std::stoll(time)), "1");
    EXPECT_THAT(expected, HasSubstr("webhook-signature: " + header("webhook-signature") + "\r\n"));
}

TEST_F(EndpointsSinkTest, AUrlThatIsInvalidOrNotAllowedConcernsItsEndpointOnly) {
    const std::vector<std::pair<std::string, std::string>> wrong = {
        {"ftp", "ftp://127.0.0.1/"},          {"host", "http:///x"},
        {"user", "http://u:p@127.0.0.1/"},    {"junk", "http://a b/"},
        {"forbidden", "http://127.0.0.2:1/"}, {"nobody", "http://nobody.invalid/"}};
    for (const auto& [name, url] : wrong)
        endpoint(name).row.url = url;
    endpoint("acme");
    start();
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1));
    for (const auto& [name, url] : wrong) {
        EXPECT_TRUE(is_behind(name)) << name;
        EXPECT_TRUE(tables_.at(name).failing) << name;
        EXPECT_NE(tables_.at(name).error, "") << name;
    }
    EXPECT_THAT(tables_.at("forbidden").error, HasSubstr("is not allowed"));
    EXPECT_THAT(tables_.at("user").error, Not(HasSubstr("u:p")));
    // A new URL takes effect at once.
    tables_.at("user").row.url = url_of("user");
    tables_.touch(tables_.at("user"));
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return !is_behind("user"); }));
    EXPECT_THAT(accepted("user"), ElementsAre(1));
    EXPECT_FALSE(tables_.at("user").failing);
}

// -- Trouble --------------------------------------------------------------------------------------

TEST_F(EndpointsSinkTest, AShortFailureCostsTheDatabaseNothing) {
    endpoint("acme");
    start({{"retry_base", "10ms"}, {"retry_max", "10ms"}});
    int left = 2;
    answer_with([&](const std::string&, std::int64_t) { return left-- > 0 ? 500 : 204; });
    log("t");
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("acme"), UnorderedElementsAre(1, 2));
    EXPECT_EQ(tries("acme"), 4u);
    EXPECT_EQ(questions_.size(), 1u);
}

TEST_F(EndpointsSinkTest, AnEndpointThatFailsFallsBackAndIsFetchedForUntilItHasCaughtUp) {
    endpoint("acme");
    endpoint("other");
    start();
    answer_with([](const std::string& name, std::int64_t) { return name == "acme" ? 503 : 204; });
    for (int i = 0; i < 3; i++)
        log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); })) << "nothing waits for it";
    EXPECT_TRUE(is_behind("acme"));
    EXPECT_TRUE(tables_.at("acme").failing);
    EXPECT_EQ(tables_.at("acme").error, "HTTP 503");
    EXPECT_THAT(tables_.at("acme").batch, ElementsAre(1, 2, 3));
    EXPECT_THAT(accepted("other"), ElementsAre(1, 2, 3));
    for (int i = 0; i < 20; i++)
        log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_FALSE(tables_.at("acme").failing);
    std::vector<std::int64_t> all(23);
    std::iota(all.begin(), all.end(), 1);
    EXPECT_EQ(accepted("acme"), all);
    // Live again.
    const std::size_t asked_before = questions_.size();
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_EQ(accepted("acme").back(), 24);
    EXPECT_LE(questions_.size(), asked_before + 1);
}

TEST_F(EndpointsSinkTest, AnEndpointThatHangsFallsBack) {
    endpoint("acme");
    start();
    answer_with([](const std::string&, std::int64_t) { return 0; });
    log("t", "k");
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return is_behind("acme"); }));
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_EQ(endpoints().in_flight(), 1u) << "the request goes on";
    turn_for(seconds(2));
    EXPECT_FALSE(asked("\"fetch\"")) << "before the request has ended";
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_TRUE(asked("\"settled\":[{\"endpoint\":\"acme\",\"positions\":[1"));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 2)) << "none of them twice";
}

TEST_F(EndpointsSinkTest, ARefusedEventMakesItsEndpointFallBackAtOnce) {
    endpoint("acme");
    start();
    answer_with(
        [](const std::string&, std::int64_t position) { return position == 2 ? 400 : 204; });
    for (const char* key : {"a", "b", "b", "c"})
        log("t", key);
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !is_behind("acme"); }));
    const auto& deliveries = tables_.at("acme").deliveries;
    ASSERT_EQ(deliveries.size(), 1u);
    EXPECT_TRUE(deliveries.at(2).dead);
    EXPECT_EQ(deliveries.at(2).attempts, tables_.refused_after);
    EXPECT_EQ(tables_.at("acme").error, "HTTP 400");
    EXPECT_THAT(accepted("acme"), UnorderedElementsAre(1, 3, 4));
    EXPECT_FALSE(tables_.at("acme").failing);
}

TEST_F(EndpointsSinkTest, AnEventThatIsTooLargeIsRefusedForGood) {
    endpoint("acme");
    start();
    answer_with([](const std::string&, std::int64_t) { return 413; });
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !is_behind("acme"); }));
    EXPECT_EQ(tables_.at("acme").deliveries.at(1).attempts, 1);
}

TEST_F(EndpointsSinkTest, AFailureOfTheEndpointIsNotRecordedForAnEvent) {
    for (const int status : {401, 404, 405, 408, 302, 429})
        endpoint("e" + std::to_string(status));
    start();
    answer_with([](const std::string& name, std::int64_t) { return std::stoi(name.substr(1)); });
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    turn_for(seconds(3));
    for (const auto& [name, one] : tables_.all()) {
        EXPECT_TRUE(one.failing) << name;
        EXPECT_THAT(one.deliveries, IsEmpty()) << name;
    }
    answer_with(up);
    EXPECT_TRUE(turn_until([&] {
        return std::none_of(tables_.all().begin(), tables_.all().end(),
                            [](const auto& entry) { return entry.second.row.behind; });
    }));
}

TEST_F(EndpointsSinkTest, AnEventThatAlwaysFailsIsAtFaultIfOthersAreAccepted) {
    endpoint("acme");
    start();
    answer_with(
        [](const std::string&, std::int64_t position) { return position == 1 ? 500 : 204; });
    log("t", "a");
    log("t", "b");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !is_behind("acme"); }));
    EXPECT_TRUE(tables_.at("acme").deliveries.at(1).dead);
    EXPECT_THAT(accepted("acme"), ElementsAre(2));
}

TEST_F(EndpointsSinkTest, AnEndpointThatIsGoneIsPaused) {
    endpoint("acme");
    start();
    answer_with([](const std::string&, std::int64_t) { return 410; });
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_TRUE(tables_.at("acme").row.paused);
    EXPECT_THAT(tables_.at("acme").batch, ElementsAre(1));
    EXPECT_THAT(tables_.at("acme").deliveries, IsEmpty());
    EXPECT_EQ(tries("acme"), 1u);
    answer_with(up);
    tables_.pause("acme", false);
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1));
}

TEST_F(EndpointsSinkTest, AnEndpointThatIsGoneMayBeTriedAgain) {
    endpoint("acme");
    start({{"on_gone", "retry"}});
    answer_with([](const std::string&, std::int64_t) { return 410; });
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && tries("acme") > 2; }));
    EXPECT_FALSE(tables_.at("acme").row.paused);
    EXPECT_TRUE(tables_.at("acme").failing);
}

TEST_F(EndpointsSinkTest, RespectsRetryAfter) {
    endpoint("acme");
    start();
    peer_.answer_with([](const std::string&) {
        return Reply{.bytes = "HTTP/1.1 429 x\r\nRetry-After: 3600\r\nContent-Length: 0\r\n\r\n"};
    });
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    turn_for(seconds(3));
    EXPECT_EQ(peer_.requests().size(), 1u);
    endpoints().look_again();
    turn_for(seconds(3));
    EXPECT_EQ(peer_.requests().size(), 1u) << "nobody has done anything";

    tables_.change(tables_.at("acme"));
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return peer_.requests().size() == 2; }));
    turn_for(seconds(3));
    EXPECT_EQ(peer_.requests().size(), 2u);
    endpoints().forget_waits();
    ASSERT_TRUE(turn_until([&] { return peer_.requests().size() == 3; }));
}

TEST_F(EndpointsSinkTest, AnAnswerWithoutEndCountsByItsHead) {
    endpoint("acme");
    start({{"request_timeout", "300ms"}});
    peer_.answer_with([](const std::string&) {
        return Reply{.bytes = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n"};
    });
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_FALSE(is_behind("acme"));
    EXPECT_EQ(peer_.requests().size(), 1u);
}

TEST_F(EndpointsSinkTest, EndpointsThatHangDoNotStopTheOthers) {
    for (int i = 0; i < 6; i++)
        endpoint("bad" + std::to_string(i));
    endpoint("good");
    start({{"max_connections", "4"}});
    answer_with([](const std::string& name, std::int64_t) { return name == "good" ? 204 : 0; });
    for (int i = 0; i < 20; i++)
        log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return accepted("good").size() == 20; }));
    EXPECT_TRUE(turn_until([&] { return all_confirmed(); }));
}

// Events are settled in their order, so the pipeline reads no more behind one that is not.
TEST_F(EndpointsSinkTest, AHangingEndpointFallsBackSoonIfManyEventsAreHeld) {
    endpoint("good");
    endpoint("bad", "for bad");
    answer_with([](const std::string& name, std::int64_t) { return name == "good" ? 204 : 0; });
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    clock_.stop();
    constexpr std::size_t batches = 12, per_batch = 100;
    for (std::size_t i = 0; i < batches * per_batch; i++)
        log(i % per_batch == 0 ? "for bad" : "t");
    read(per_batch);
    ASSERT_TRUE(turn_until([&] { return accepted("good").size() == batches * (per_batch - 1); }));
    EXPECT_FALSE(all_confirmed());
    const Micros begin = clock_.now();
    while (!is_behind("bad") && clock_.now() < begin + EndpointsSink::max_lag) {
        clock_.advance(milliseconds(100));
        turn();
    }
    EXPECT_LT(clock_.now() - begin, 2 * EndpointsSink::patience);
    EXPECT_TRUE(turn_until([&] { return all_confirmed(); }));
}

TEST_F(EndpointsSinkTest, NotAllFallBackIfTooManyFail) {
    const std::size_t most = EndpointsSink::max_troubled;
    for (std::size_t i = 0; i < most + 10; i++)
        endpoint("e" + std::to_string(i)).row.url = "http://127.0.0.1:1/";
    start();
    log("t");
    read();
    const auto behind = [&] {
        std::size_t count = 0;
        for (const auto& [name, one] : tables_.all())
            count += one.row.behind;
        return count;
    };
    const auto failing = [&] {
        std::size_t count = 0;
        for (const auto& [name, one] : tables_.all())
            count += one.failing;
        return count;
    };
    ASSERT_TRUE(turn_until([&] { return behind() == most && failing() == most + 10; }));
    turn_for(seconds(3));
    EXPECT_EQ(behind(), most);
    EXPECT_FALSE(all_confirmed()) << "the relay waits";
    for (const auto& [name, one] : tables_.all())
        if (!one.row.behind) {
            tables_.at(name).row.url = url_of(name);
            tables_.touch(tables_.at(name));
        }
    endpoints().look_again();
    // They may fall back first, because they have waited for long.
    ASSERT_TRUE(turn_until(
        [&] { return all_confirmed() && failing() == most && peer_.requests().size() == 10; }));
}

// -- Rows -----------------------------------------------------------------------------------------

TEST_F(EndpointsSinkTest, ANewEndpointGetsWhatCommitsAfterItsRow) {
    endpoint("acme");
    start();
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    endpoint("late");
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); })) << "nobody has told the sink";
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return accepted("late").size() == 1; }));
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return accepted("late").size() == 2; }));
    EXPECT_THAT(accepted("late"), ElementsAre(2, 3));
}

TEST_F(EndpointsSinkTest, ANewEndpointGetsWhatIsHandedOverWhileItIsListed) {
    endpoint("acme");
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    endpoint("late");
    endpoints().look_again();
    ASSERT_TRUE(ask_next());
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return accepted("acme").size() == 1; }));
    EXPECT_FALSE(all_confirmed()) << "it may be for another endpoint";
    answer();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("late"), ElementsAre(1));
}

TEST_F(EndpointsSinkTest, OtherTopicsTakeEffectAtOnce) {
    endpoint("acme", "a");
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    tables_.at("acme").row.topics = "b.*";
    tables_.touch(tables_.at("acme"));
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 2; }));
    log("a");
    log("b.c");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(2));
}

TEST_F(EndpointsSinkTest, EventsOfTopicsThatWereLeftAreNotSent) {
    endpoint("acme", "a,b");
    start();
    answer_with(down);
    log("b", "k");
    log("a", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return tries("acme") > 0; }));
    tables_.at("acme").row.topics = "a";
    tables_.change(tables_.at("acme"));
    const std::size_t asked_before = questions_.size();
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return questions_.size() > asked_before; }));
    ASSERT_TRUE(turn_until([&] { return endpoints().in_flight() == 0; }));
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !accepted("acme").empty(); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(2));
}

TEST_F(EndpointsSinkTest, APausedEndpointFallsBackUntilItIsResumed) {
    endpoint("acme");
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    tables_.pause("acme", true);
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return is_behind("acme"); }));
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    turn_for(seconds(2));
    EXPECT_EQ(tries("acme"), 0u);
    EXPECT_FALSE(asked("\"fetch\""));
    tables_.pause("acme", false);
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1));
}

TEST_F(EndpointsSinkTest, ADeletedEndpointIsForgotten) {
    endpoint("acme");
    endpoint("other");
    start();
    answer_with([](const std::string& name, std::int64_t) { return name == "acme" ? 0 : 204; });
    log("t", "k");
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return accepted("other").size() == 2; }));
    tables_.remove("acme");
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_EQ(endpoints().in_flight(), 1u);
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return endpoints().in_flight() == 0; }));
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_EQ(tries("acme"), 1u);
}

TEST_F(EndpointsSinkTest, LeavesOutEndpointsForWhichThereIsNoRoom) {
    for (std::size_t i = 0; i < max_endpoints + 2; i++)
        endpoint("e" + std::to_string(i), "none");
    start();
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(endpoints().left_out(), testing::StartsWith("2 endpoints get nothing: "));
    EXPECT_EQ(questions_.size(), 1u) << "it does not list them again and again";
    tables_.remove("e1");
    tables_.remove("e2");
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return endpoints().left_out().empty(); }));
}

TEST_F(EndpointsSinkTest, AnEndpointThatIsInsertedAgainIsAnotherOne) {
    endpoint("acme");
    start();
    answer_with([](const std::string&, std::int64_t) { return 0; });
    log("t", "k");
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return endpoints().in_flight() == 1; }));
    tables_.remove("acme");
    endpoint("acme");
    log("t", "k");
    read();
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme") && accepted("acme").size() >= 2; }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 3));
}

TEST_F(EndpointsSinkTest, AnEndpointThatIsInsertedAgainDoesNotGetWhatWasForItsPredecessor) {
    endpoint("acme");
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    answer_with([](const std::string&, std::int64_t) { return 0; });
    log("t", "k");
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return endpoints().in_flight() == 1; }));
    tables_.remove("acme");
    endpoint("acme").row.url = url_of("successor");
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 2; }));
    answer_now(up);
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1)) << "was under way";
    EXPECT_THAT(accepted("successor"), ElementsAre(3));
}

TEST_F(EndpointsSinkTest, AnEndpointWithADeadLetterToRedriveFallsBack) {
    endpoint("acme");
    start();
    log("t");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    tables_.at("acme").deliveries[1];
    tables_.at("acme").row.wanted = true;
    tables_.touch(tables_.at("acme"));
    endpoints().look_again();
    ASSERT_TRUE(turn_until([&] { return accepted("acme").size() == 2; }));
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(tables_.at("acme").deliveries, IsEmpty());
}

// -- What happens while a question is under way -----------------------------------------------------

TEST_F(EndpointsSinkTest, NewEventsOfAnEndpointThatFallsBackAreFetched) {
    endpoint("acme");
    start();
    answer_with(down);
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    log("t", "k");
    read();
    ASSERT_TRUE(ask_next());
    EXPECT_THAT(question_, HasSubstr("\"fall_back\":[{\"endpoint\":\"acme\""));
    log("t", "k");
    read();
    turn_for(milliseconds(300));
    EXPECT_FALSE(all_confirmed());
    answer();
    EXPECT_THAT(tables_.at("acme").batch, ElementsAre(1));
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 2));
}

TEST_F(EndpointsSinkTest, NewEventsOfAnEndpointThatCatchesUpAreSent) {
    endpoint("acme");
    start();
    answer_with(down);
    fall_back("acme");
    settle_one("acme");
    // The answer's snapshot covers the first of these, and not the second one.
    log("t", "k");
    EndpointAnswer caught_up = tables_.ask(question_);
    log("t", "k");
    read();
    turn_for(milliseconds(200));
    under_way_.reset();
    endpoints().answered(std::move(caught_up));
    ASSERT_TRUE(turn_until([&] { return accepted("acme").size() == 3 && all_confirmed(); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 2, 3));
}

TEST_F(EndpointsSinkTest, ARequestThatEndsWhileItsEndpointFallsBackIsTold) {
    endpoint("acme");
    start();
    answer_with([](const std::string&, std::int64_t) { return 0; });
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    log("t", "k");
    log("t", "k");
    read();
    asks_ = false;
    ASSERT_TRUE(turn_until([&] { return is_due(); }));
    ask();
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return accepted("acme").size() == 1; }));
    turn_for(milliseconds(200));
    asks_ = true;
    answer();
    EXPECT_THAT(tables_.at("acme").batch, ElementsAre(1, 2));
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 2)) << "the first one is not sent twice";
}

TEST_F(EndpointsSinkTest, AnEndpointIsDeletedWhileItFallsBack) {
    endpoint("acme");
    start();
    answer_with(down);
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    log("t", "k");
    read();
    ASSERT_TRUE(ask_next());
    tables_.remove("acme");
    log("t", "k");
    read();
    answer();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    turn_for(milliseconds(500));
    EXPECT_EQ(endpoints().in_flight(), 0u);
}

TEST_F(EndpointsSinkTest, AnEndpointIsDeletedWhileItIsFetchedFor) {
    endpoint("acme");
    start();
    answer_with(down);
    fall_back("acme");
    settle_one("acme");
    tables_.remove("acme");
    log("t");
    read();
    answer();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
}

// -- Questions without an answer --------------------------------------------------------------------

class InDoubt : public EndpointsSinkTest, public testing::WithParamInterface<bool> {};

TEST_P(InDoubt, AnEndpointFallsBack) {
    endpoint("acme");
    start();
    answer_with(down);
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    log("t", "k");
    read();
    ASSERT_TRUE(ask_next());
    log("t", "k");
    read();
    turn_for(milliseconds(100));
    fail(GetParam());
    log("t", "k");
    read();
    turn_for(milliseconds(100));
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    answer_now(up);
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 2, 3));
}

TEST_P(InDoubt, AnEndpointCatchesUp) {
    endpoint("acme");
    start();
    answer_with(down);
    fall_back("acme");
    settle_one("acme");
    fail(GetParam());
    EXPECT_EQ(is_behind("acme"), !GetParam());
    for (int i = 0; i < 3; i++) {
        log("t", "k");
        read();
        turn_for(milliseconds(50));
    }
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1, 2, 3, 4));
}

TEST_P(InDoubt, AnEventIsRefused) {
    endpoint("acme");
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    answer_with(
        [](const std::string&, std::int64_t position) { return position == 1 ? 413 : 204; });
    log("t", "k");
    log("t", "k");
    read();
    ASSERT_TRUE(ask_next());
    ASSERT_THAT(question_, HasSubstr("\"refused\":[{\"endpoint\":\"acme\",\"xid\":"));
    fail(GetParam());
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && !is_behind("acme"); }));
    EXPECT_TRUE(tables_.at("acme").deliveries.at(1).dead);
    EXPECT_THAT(accepted("acme"), ElementsAre(2));
}

TEST_P(InDoubt, AFetchedEventIsSettled) {
    endpoint("acme");
    start();
    answer_with(down);
    fall_back("acme");
    settle_one("acme");
    fail(GetParam());
    ASSERT_TRUE(turn_until([&] { return !is_behind("acme"); }));
    EXPECT_THAT(accepted("acme"), ElementsAre(1));
}

TEST_P(InDoubt, AnEndpointIsNew) {
    endpoint("acme");
    start();
    ASSERT_TRUE(turn_until([&] { return questions_.size() == 1; }));
    endpoint("late");
    endpoints().look_again();
    ASSERT_TRUE(ask_next());
    log("t", "k");
    read();
    turn_for(milliseconds(100));
    fail(GetParam());
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed() && accepted("late").size() == 2; }));
    EXPECT_THAT(accepted("late"), ElementsAre(1, 2));
}

TEST_P(InDoubt, AnEndpointIsDeleted) {
    endpoint("acme");
    endpoint("other");
    start();
    answer_with([](const std::string& name, std::int64_t) { return name == "acme" ? 500 : 204; });
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return accepted("other").size() == 1; }));
    ASSERT_TRUE(ask_next());
    fail(GetParam());
    tables_.remove("acme");
    log("t", "k");
    read();
    ASSERT_TRUE(turn_until([&] { return all_confirmed(); }));
    EXPECT_THAT(accepted("other"), ElementsAre(1, 2));
}

INSTANTIATE_TEST_SUITE_P(Question, InDoubt, testing::Bool(), [](const auto& with_effect) {
    return with_effect.param ? "HadAnEffect" : "HadNone";
});

}  // namespace
}  // namespace outbox
