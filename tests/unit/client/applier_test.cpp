// The applier, against a scripted server that keeps transactions: what is applied, once, and what
// may be acknowledged.
#include "applier.hpp"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "inbox/sources/scripted.hpp"
#include "unit/scripted_postgresql.hpp"

namespace inbox {
namespace {

using outbox::ScriptedPostgresql;
using std::chrono::milliseconds;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using End = ScriptedPostgresql::End;
using Statement = ScriptedPostgresql::Statement;

std::string id_of(int number) {
    const std::string digits = std::to_string(number);
    return "00000000-0000-4000-8000-" + std::string(12 - digits.size(), '0') + digits;
}

// The ids in '{a,b}'.
std::vector<std::string> elements(std::string text) {
    std::vector<std::string> all;
    std::erase_if(text, [](char c) { return c == '{' || c == '}' || c == '"'; });
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(',', at), text.size());
        all.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return all;
}

// A server with pg_inbox, of which it knows what concerns deduplication.
class ApplierTest : public testing::Test {
  protected:
    ApplierTest() {
        // In one set of the ids that the statement's transaction sees.
        server.on("inbox.begin_events", [this](const Statement& s) {
            std::string answer = "{";
            for (const std::string& id : elements(s.parameters.at(1).value_or("")))
                answer.append(answer.size() > 1 ? "," : "").append(is_new(s, id) ? "t" : "f");
            return ScriptedPostgresql::value(answer + "}");
        });
        server.on("inbox.begin_event(", [this](const Statement& s) {
            return ScriptedPostgresql::value(is_new(s, s.parameters.at(1).value_or("")) ? "t"
                                                                                        : "f");
        });
        server.on("inbox.fail_event", ScriptedPostgresql::value("f"));
    }

    bool is_new(const Statement& statement, const std::string& id) const {
        for (const Statement& earlier :
             server.visible_to(statement.connection, "inbox.begin_event"))
            if (earlier.parameters.at(1).value_or("").find(id) != std::string::npos)
                return false;
        return true;
    }

    Applier& applier() {
        if (!shared)
            shared.emplace(
                options, "me", "subscription",
                [this] { return PQconnectdb(server.conninfo().c_str()); }, handler);
        if (!applier_)
            applier_.emplace(*shared, source, "me/1");
        return *applier_;
    }

    // Numbers of events by key, as the dispatcher hands them out.
    std::vector<Item> items(
        const std::vector<std::pair<std::string, std::vector<int>>>& keys) const {
        std::vector<Item> all;
        for (const auto& [key, numbers] : keys) {
            const auto line = std::make_shared<Line>(Line{key, {}, {}});
            for (const int number : numbers) {
                Item& item = all.emplace_back(Item{.delivery = {}, .line = line});
                item.delivery.event.id = id_of(number);
                item.delivery.event.ordering_key = key;
                item.delivery.message_id = "m" + std::to_string(number);
                item.delivery.source = "scripted";
                item.delivery.published_at = Time{std::chrono::seconds{1'700'000'000 + number}};
            }
        }
        return all;
    }

    std::vector<HandlerResult> apply(std::vector<Item>& batch) {
        applier().apply(batch);
        std::vector<HandlerResult> results;
        for (const Item& item : batch)
            results.push_back(item.result);
        return results;
    }

    // Numbers of the events whose effects are committed, in order.
    std::vector<int> effects() const {
        std::vector<int> numbers;
        for (const Statement& statement : server.committed("INSERT effect"))
            numbers.push_back(std::stoi(statement.parameters.at(0).value_or("").substr(24)));
        return numbers;
    }

    // Makes the effect of one event fail.
    void refuse(int number, const std::string& sqlstate, int times = -1) {
        const auto left = std::make_shared<std::atomic<int>>(times);
        server.on("INSERT effect", [=](const Statement& s) {
            const bool hit = s.parameters.at(0) == id_of(number) && *left != 0;
            *left -= hit;
            return hit ? ScriptedPostgresql::error(sqlstate, "refused")
                       : ScriptedPostgresql::Answer{};
        });
    }

    ScriptedPostgresql server;
    std::vector<std::string> logged;
    ConsumerOptions options{
        .name = "c",
        .retry_base = milliseconds{1},
        .retry_max = milliseconds{1},
        .log = [this](Level, const std::string& message) { logged.push_back(message); }};
    Handler handler = [](Transaction& transaction, const Event& event) {
        transaction.queue("INSERT effect", {event.id});
    };
    ScriptedSource source{std::make_shared<Script>(), "subscription"};
    std::optional<Shared> shared;

  private:
    std::optional<Applier> applier_;
};

constexpr HandlerResult applied = HandlerResult::applied, duplicate = HandlerResult::duplicate,
                        failed = HandlerResult::failed, behind = HandlerResult::behind,
                        dead = HandlerResult::dead;

// ------------------------------------------------------------------------------------------------
// Good days
// ------------------------------------------------------------------------------------------------

TEST_F(ApplierTest, ABatchIsOneTransactionInTwoRoundTrips) {
    auto first = items({{"a", {1}}});
    apply(first);  // connects and prepares
    const int before = server.synchronized();
    auto batch = items({{"a", {2, 3}}, {"b", {4}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied, applied, applied));
    EXPECT_EQ(server.synchronized(), before + 2);
    EXPECT_THAT(effects(), ElementsAre(1, 2, 3, 4));
    EXPECT_EQ(server.count("BEGIN"), 2u);
    EXPECT_EQ(shared->counters.transactions, 2u);
    EXPECT_EQ(shared->counters.applied, 4u);
}

TEST_F(ApplierTest, ARepetitionHasNoEffect) {
    auto batch = items({{"a", {1}}});
    apply(batch);
    auto again = items({{"a", {1, 2}}});
    EXPECT_THAT(apply(again), ElementsAre(duplicate, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 2));
    EXPECT_EQ(shared->counters.duplicates, 1u);
}

// ... in the row of this worker, since workers of one row would wait for each other.
TEST_F(ApplierTest, TheOffsetOfTheNewestEventIsSavedWithTheEffects) {
    auto batch = items({{"a", {1, 9}}, {"b", {2}}});
    apply(batch);
    const auto saved = server.committed("inbox.save_offset");
    ASSERT_THAT(saved, SizeIs(1));
    EXPECT_THAT(saved[0].parameters,
                ElementsAre("c", "subscription", "m9",
                            testing::Optional(HasSubstr("2023-11-14T22:13:29")), "me/1", ""));
    server.on("INSERT effect", ScriptedPostgresql::lost(End::before), 1);
    auto next = items({{"a", {10}}});
    apply(next);
    EXPECT_THAT(server.committed("inbox.save_offset"), SizeIs(2)) << "not by the lost transaction";
}

// ------------------------------------------------------------------------------------------------
// Handlers that fail
// ------------------------------------------------------------------------------------------------

TEST_F(ApplierTest, AFailureIsRolledBackAndHoldsBackItsKeyOnly) {
    refuse(2, "23505");
    auto batch = items({{"a", {1, 2, 3}}, {"b", {4}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied, failed, behind, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 4));
    for (const Item& item : batch)
        EXPECT_EQ(is_done(item.result), item.result == applied) << "a failure is not acked";
    EXPECT_EQ(batch[1].failure.sqlstate, "23505");
    EXPECT_EQ(shared->counters.failures, 1u);
    // It comes again as new, and what it has waited for then follows.
    server.on("INSERT effect", ScriptedPostgresql::Answer{});
    auto again = items({{"a", {2, 3}}});
    EXPECT_THAT(apply(again), ElementsAre(applied, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 4, 2, 3));
}

TEST_F(ApplierTest, AnExceptionOfAHandlerUndoesItsWrites) {
    struct NoException {};
    handler = [](Transaction& transaction, const Event& event) {
        transaction.execute("INSERT effect", {event.id});
        if (event.id == id_of(1))
            throw std::runtime_error("no good");
        if (event.id == id_of(2))
            throw NoException{};
        if (event.id == id_of(3))
            throw PermanentFailure("never");
    };
    auto batch = items({{"", {1}}, {"", {2}}, {"", {3}}, {"", {4}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed, failed, failed, applied));
    EXPECT_THAT(effects(), ElementsAre(4));
    const auto reports = server.committed("inbox.fail_event");
    ASSERT_THAT(reports, SizeIs(3));
    EXPECT_EQ(reports[0].parameters.at(15), "no good");
    EXPECT_THAT(reports[1].parameters.at(15).value(), HasSubstr("not a std::exception"));
    EXPECT_EQ(reports[2].parameters.at(15), "never");
    EXPECT_EQ(reports[0].parameters.at(17), "false");
    EXPECT_EQ(reports[2].parameters.at(17), "true") << "given up at once";
}

// Otherwise what it did not do would count as done.
TEST_F(ApplierTest, AnErrorThatAHandlerSwallowsIsItsFailure) {
    handler = [](Transaction& transaction, const Event& event) {
        transaction.queue("INSERT effect", {event.id});
        try {
            transaction.execute("SELECT 1/0");
        } catch (const DatabaseError&) {
        }
    };
    server.on("SELECT 1/0", ScriptedPostgresql::error("22012"));
    auto batch = items({{"a", {1}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed));
    EXPECT_EQ(batch[0].failure.sqlstate, "22012");
    EXPECT_THAT(effects(), IsEmpty());
}

TEST_F(ApplierTest, ATextThatIsRefusedIsAFailureAlsoIfAHandlerSwallowsIt) {
    handler = [](Transaction& transaction, const Event& event) {
        transaction.queue("INSERT effect", {event.id});
        try {
            transaction.queue("INSERT note", {std::string("a\0b", 3)});
        } catch (const DatabaseError&) {
        }
    };
    auto batch = items({{"a", {1}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed));
    EXPECT_EQ(batch[0].failure.sqlstate, "22021");
    EXPECT_THAT(effects(), IsEmpty());
}

TEST_F(ApplierTest, AFailureIsReportedAfterTheRestIsCommitted) {
    refuse(1, "23505");
    auto batch = items({{"a", {1}}, {"b", {2}}});
    apply(batch);
    std::vector<std::string> order;
    for (const Statement& statement : server.committed())
        if (statement.has("fail_event") || statement.has("INSERT effect"))
            order.push_back(statement.text.substr(0, 13));
    EXPECT_THAT(order, ElementsAre("INSERT effect", "SELECT inbox."));
    EXPECT_EQ(batch[0].failure.error, "refused");
}

TEST_F(ApplierTest, AnEventThatTheDatabaseGivesUpIsDeadAndLetsItsKeyGoOn) {
    options.max_attempts = 3;
    refuse(1, "23505");
    for (int attempt = 1; attempt <= 3; attempt++) {
        if (attempt == 3)
            server.on("inbox.fail_event", ScriptedPostgresql::value("t"));
        auto batch = items({{"a", {1}}});
        EXPECT_THAT(apply(batch), ElementsAre(attempt < 3 ? failed : dead));
        EXPECT_EQ(is_done(batch[0].result), attempt == 3);
    }
    EXPECT_EQ(shared->counters.dead, 1u);
    for (const Statement& report : server.committed("inbox.fail_event"))
        EXPECT_EQ(report.parameters.at(18), "3") << "max_attempts";
    auto rest = items({{"a", {2}}});
    EXPECT_THAT(apply(rest), ElementsAre(applied));
}

TEST_F(ApplierTest, WithoutMaxAttemptsThePolicyDecides) {
    refuse(1, "23505");
    auto batch = items({{"a", {1}}});
    apply(batch);
    EXPECT_EQ(server.committed("inbox.fail_event").at(0).parameters.at(18), std::nullopt);
}

TEST_F(ApplierTest, SuccessAfterAFailureIsToldInTheSameTransaction) {
    refuse(1, "23505", 2);  // at once, and carefully
    auto batch = items({{"a", {1}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed));
    auto again = items({{"a", {1}}, {"b", {2}}});
    EXPECT_THAT(apply(again), ElementsAre(applied, applied));
    const auto told = server.committed("inbox.end_failure");
    ASSERT_THAT(told, SizeIs(1));
    EXPECT_THAT(elements(told[0].parameters.at(1).value()), ElementsAre(id_of(1)));
    auto others = items({{"b", {3}}});
    apply(others);
    EXPECT_EQ(server.count("inbox.end_failure"), 1u) << "which costs other events nothing";
}

TEST_F(ApplierTest, AnEventWithoutAValidIdIsReportedAsOneThatNeverCanSucceed) {
    auto batch = items({{"a", {1, 2}}});
    batch[0].delivery.event.id = "not a uuid";
    server.on("inbox.fail_event", ScriptedPostgresql::value("t"));
    EXPECT_THAT(apply(batch), ElementsAre(dead, behind));
    const auto reports = server.committed("inbox.fail_event");
    ASSERT_THAT(reports, SizeIs(1));
    EXPECT_EQ(reports[0].parameters.at(16), "22P02");
    EXPECT_EQ(reports[0].parameters.at(17), "true");
    EXPECT_THAT(reports[0].parameters.at(15).value(), HasSubstr("not a uuid"));
    EXPECT_THAT(effects(), IsEmpty());
}

// What deferred constraints refuse: which event it was, only trying one by one tells.
TEST_F(ApplierTest, ACommitThatIsRefusedIsDoneAgainEventByEvent) {
    server.on("COMMIT", [this](const Statement& s) {
        for (const Statement& effect : server.visible_to(s.connection, "INSERT effect"))
            if (effect.parameters.at(0) == id_of(2))
                return ScriptedPostgresql::error("23503", "at commit");
        return ScriptedPostgresql::Answer{};
    });
    auto batch = items({{"", {1}}, {"", {2}}, {"", {3}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied, failed, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 3));
    EXPECT_EQ(batch[1].failure.sqlstate, "23503");
}

// More would overflow a cache that all sessions of the server share.
TEST_F(ApplierTest, ATransactionHasAtMostFiftySavepoints) {
    std::vector<std::pair<std::string, std::vector<int>>> keys;
    for (int n = 1; n <= 120; n++)
        keys.push_back({"", {n}});
    refuse(7, "23505");
    auto batch = items(keys);
    apply(batch);
    EXPECT_THAT(effects(), SizeIs(119));
    std::size_t savepoints = 0;
    for (const Statement& statement : server.received()) {
        if (statement.text == "BEGIN")
            savepoints = 0;
        savepoints += statement.text.starts_with("SAVEPOINT");
        ASSERT_LE(savepoints, 50u);
    }
    EXPECT_EQ(server.count("SAVEPOINT inbox_event") - server.count("RELEASE") -
                  server.count("ROLLBACK TO"),
              120u);
}

// It has committed the ids of those behind it, too, and they must be handled all the same.
TEST_F(ApplierTest, WhatAHandlerCommitsForOthersIsStillHandled) {
    handler = [](Transaction& transaction, const Event& event) {
        if (event.id == id_of(2))
            transaction.execute("COMMIT");
        transaction.queue("INSERT effect", {event.id});
    };
    auto batch = items({{"", {1}}, {"", {2}}, {"", {3}}});
    EXPECT_THAT(apply(batch), ElementsAre(duplicate, duplicate, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 3));
}

// ------------------------------------------------------------------------------------------------
// What is no event's fault
// ------------------------------------------------------------------------------------------------

TEST_F(ApplierTest, ConflictsAreRepeatedAndChargedToNoEvent) {
    int number = 0;
    for (const char* sqlstate : {"40001", "40P01"})
        for (const char* where : {"INSERT effect", "COMMIT", "inbox.begin_event"}) {
            number++;
            server.on(where, ScriptedPostgresql::error(sqlstate), 2);  // carefully as well
            auto batch = items({{"a", {number}}});
            EXPECT_THAT(apply(batch), ElementsAre(applied)) << sqlstate << " at " << where;
            EXPECT_EQ(effects().back(), number);
        }
    EXPECT_THAT(effects(), SizeIs(6)) << "each once";
    EXPECT_EQ(shared->counters.failures, 0u);
    EXPECT_EQ(server.count("fail_event"), 0u);
}

TEST_F(ApplierTest, AServerInTroubleIsWaitedForAndChargedToNoEvent) {
    int number = 0;
    for (const char* sqlstate : {"53100", "53300", "58030", "25006"}) {
        refuse(++number, sqlstate, 2);
        auto batch = items({{"a", {number}}});
        EXPECT_THAT(apply(batch), ElementsAre(applied)) << sqlstate;
    }
    EXPECT_THAT(effects(), SizeIs(4));
    EXPECT_EQ(server.count("fail_event"), 0u);
    EXPECT_THAT(logged, testing::Contains(HasSubstr("SQLSTATE 53100")));
}

TEST_F(ApplierTest, StatementsThatMustBePreparedAgain) {
    auto first = items({{"a", {1}}});
    apply(first);
    server.forget_prepared();
    auto second = items({{"a", {2}}});
    EXPECT_THAT(apply(second), ElementsAre(applied));
    server.on("INSERT effect", ScriptedPostgresql::error("0A000", "cached plan"), 1);
    auto third = items({{"a", {3}}});
    EXPECT_THAT(apply(third), ElementsAre(applied));
    EXPECT_EQ(server.count("DEALLOCATE ALL"), 1u);
    EXPECT_THAT(effects(), ElementsAre(1, 2, 3));
    EXPECT_EQ(server.count("fail_event"), 0u);
}

TEST_F(ApplierTest, AnErrorThatNeedsAnOperatorEndsTheApplier) {
    for (const auto& [sqlstate, hint] : {std::pair{"3F000", "inbox.grant_consume()"},
                                         {"42883", "inbox.grant_consume()"},
                                         {"42501", "inbox.grant_consume()"},
                                         {"22P05", "names of the consumer"},
                                         {"22021", "names of the consumer"}}) {
        server.on("inbox.begin_events", ScriptedPostgresql::error(sqlstate), 1);
        auto batch = items({{"a", {1}}});
        try {
            apply(batch);
            ADD_FAILURE() << sqlstate;
        } catch (const ConnectionLost&) {
            ADD_FAILURE() << sqlstate;
        } catch (const DatabaseError& error) {
            EXPECT_EQ(error.sqlstate(), sqlstate);
            EXPECT_THAT(error.what(), HasSubstr(hint));
        }
        EXPECT_EQ(batch[0].result, HandlerResult::open);
    }
}

TEST_F(ApplierTest, ARightThatAHandlerLacksIsItsOwnFailure) {
    refuse(1, "42501");
    auto batch = items({{"a", {1}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed));
}

// ------------------------------------------------------------------------------------------------
// Connections that are lost
// ------------------------------------------------------------------------------------------------

TEST_F(ApplierTest, AConnectionLostBeforeTheCommitCostsNothing) {
    int number = 0;
    for (const char* where : {"BEGIN", "inbox.begin_events", "INSERT effect", "save_offset"}) {
        server.on(where, ScriptedPostgresql::lost(End::before), 1);
        const int first = ++number, second = ++number;
        auto batch = items({{"a", {first, second}}});
        EXPECT_THAT(apply(batch), ElementsAre(applied, applied)) << where;
    }
    EXPECT_THAT(effects(), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
    EXPECT_EQ(server.count("fail_event"), 0u);
    EXPECT_GE(shared->counters.database_reconnects, 4u);
}

TEST_F(ApplierTest, ACommitWhoseAnswerIsLostIsFoundInTheInbox) {
    server.on("COMMIT", ScriptedPostgresql::lost(End::after), 1);
    auto batch = items({{"a", {1, 2}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 2)) << "once";
    EXPECT_EQ(shared->counters.in_doubt, 1u);
    EXPECT_EQ(server.count("inbox.begin_events"), 2u) << "it is looked up, not guessed";
}

TEST_F(ApplierTest, ACommitThatNeverArrivedIsMadeAgain) {
    server.on("COMMIT", ScriptedPostgresql::lost(End::before), 1);
    auto batch = items({{"a", {1, 2}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 2)) << "once";
    EXPECT_EQ(shared->counters.in_doubt, 1u);
    EXPECT_EQ(server.count("COMMIT"), 2u);
}

// Done carefully, too: with a savepoint per event.
TEST_F(ApplierTest, ACarefulCommitInDoubtIsLookedUp) {
    int number = 0;
    for (const End end : {End::before, End::after}) {
        const int bad = ++number, good = ++number;
        refuse(bad, "23505");
        server.on("COMMIT", ScriptedPostgresql::lost(end), 1);
        auto batch = items({{"a", {bad}}, {"b", {good}}});
        EXPECT_THAT(apply(batch), ElementsAre(failed, applied));
        EXPECT_EQ(effects().back(), good);
    }
    EXPECT_THAT(effects(), ElementsAre(2, 4));
    EXPECT_EQ(shared->counters.in_doubt, 2u);
}

// Such as after an error that a handler has hidden from the library.
TEST_F(ApplierTest, ACommitThatRolledBackDoesNotCount) {
    server.on("COMMIT", ScriptedPostgresql::Answer{.tag = "ROLLBACK"},
              2);  // at once, and carefully
    auto batch = items({{"a", {1}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed));
    EXPECT_THAT(effects(), IsEmpty());
    EXPECT_EQ(shared->counters.applied, 0u);
}

TEST_F(ApplierTest, AnAdministratorWhoEndsTheConnectionIsNoFailure) {
    server.on("INSERT effect", ScriptedPostgresql::fatal("57P01"), 1);
    auto batch = items({{"a", {1}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied));
    EXPECT_EQ(server.connections(), 2);
    EXPECT_EQ(server.count("fail_event"), 0u);
}

// Its handler ends the session, or takes longer than a time-out of the server allows. The others go on.
TEST_F(ApplierTest, AnEventThatLosesTheConnectionAgainAndAgainHasFailed) {
    server.on("INSERT effect", [](const Statement& s) {
        return s.parameters.at(0) == id_of(2) ? ScriptedPostgresql::lost(End::before)
                                              : ScriptedPostgresql::Answer{};
    });
    auto batch = items({{"a", {1}}, {"b", {2, 3}}, {"c", {4}}});
    EXPECT_THAT(apply(batch), ElementsAre(applied, failed, behind, applied));
    EXPECT_THAT(effects(), ElementsAre(1, 4));
    EXPECT_EQ(server.count("fail_event"), 1u);
    EXPECT_EQ(batch[1].failure.sqlstate, "08006");
}

// A text of the event is too long, or has characters that the database cannot store.
TEST_F(ApplierTest, AFailureWhoseEventCannotBeKeptIsCountedWithoutItsContent) {
    refuse(1, "23505");
    std::vector<Statement> reports;
    server.on("inbox.fail_event", [&](const Statement& s) {
        reports.push_back(s);
        return reports.size() == 1 ? ScriptedPostgresql::error("22P05", "no equivalent")
                                   : ScriptedPostgresql::value("t");
    });
    auto batch = items({{"k\u00e9y", {1}}, {"b", {2}}});
    batch[0].delivery.event.type = "Changed";
    EXPECT_THAT(apply(batch), ElementsAre(dead, applied));
    ASSERT_THAT(reports, SizeIs(2));
    EXPECT_EQ(reports[0].parameters.at(10), "Changed");
    EXPECT_EQ(reports[1].parameters.at(10), "");
    EXPECT_EQ(reports[1].parameters.at(11), "");
    EXPECT_EQ(reports[0].parameters.at(22), "false");
    EXPECT_EQ(reports[1].parameters.at(22), "true");
    EXPECT_THAT(reports[1].parameters.at(19).value_or(""), HasSubstr("no equivalent"));
    EXPECT_THAT(effects(), ElementsAre(2));
}

// The texts have changed, so the dead letter is not the event.
TEST_F(ApplierTest, AnEventWithTextsThatAreNotUtf8IsIncomplete) {
    server.on("INSERT effect", ScriptedPostgresql::error("23505"));
    auto batch = items({{"a", {1}}, {"b", {2}}});
    batch[0].delivery.event.headers = {{"h", "a\xff"}};
    batch[1].delivery.event.payload = "a\xff";
    apply(batch);
    const std::vector<Statement> reports = server.committed("inbox.fail_event");
    ASSERT_THAT(reports, SizeIs(2));
    EXPECT_EQ(reports[0].parameters.at(22), "true");
    EXPECT_EQ(reports[1].parameters.at(22), "false");
}

// The failure is counted in the database: it must not be forgotten, nor counted without its event.
TEST_F(ApplierTest, AReportThatIsLostIsRepeated) {
    refuse(1, "23505");
    server.on("inbox.fail_event", ScriptedPostgresql::lost(End::before), 1);
    auto batch = items({{"a", {1}}, {"b", {2}}});
    EXPECT_THAT(apply(batch), ElementsAre(failed, applied));
    EXPECT_THAT(server.committed("inbox.fail_event"), SizeIs(1));
    EXPECT_THAT(effects(), ElementsAre(2));
}

// Nobody knows what became of it then, so it must not be acknowledged.
TEST_F(ApplierTest, WhatIsGivenUpStaysOpen) {
    server.hold("COMMIT");
    auto batch = items({{"a", {1}}});
    applier();
    std::thread impatient([&] {
        server.wait_for("COMMIT");
        shared->stop.raise();
        shared->give_up.raise();
    });
    EXPECT_THAT(apply(batch), ElementsAre(HandlerResult::open));
    impatient.join();
}

}  // namespace
}  // namespace inbox
