#include "sinks/redis/verdict.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

void expect(std::string_view error, Fate fate, Scope scope = Scope::destination) {
    const Verdict verdict = verdict_of(error);
    EXPECT_EQ(verdict.fate, fate) << error;
    if (fate == Fate::unavailable) {
        EXPECT_EQ(verdict.scope, scope) << error;
    }
    EXPECT_FALSE(verdict.permanent) << error;
}

TEST(Verdict, NoErrorOfTheServerBlamesAnEvent) {
    expect("OOM command not allowed when used memory > 'maxmemory'.", Fate::throttled);
    expect("BUSY Redis is busy running a script.", Fate::throttled);
    expect("TRYAGAIN Multiple keys request during rehashing of slot", Fate::throttled);
    expect("LOADING Redis is loading the dataset in memory", Fate::unavailable);
    expect("MASTERDOWN Link with MASTER is down", Fate::unavailable);
    expect("READONLY You can't write against a read only replica.", Fate::unavailable);
    expect("NOREPLICAS Not enough good replicas to write.", Fate::unavailable);
    expect("MISCONF Redis is configured to save RDB snapshots", Fate::unavailable);
    expect("CLUSTERDOWN The cluster is down", Fate::unavailable);
    expect("CLUSTERDOWN Hash slot not served", Fate::unavailable, Scope::lane);
    expect("WRONGTYPE Operation against a key holding the wrong kind of value", Fate::unavailable,
           Scope::lane);
    expect("NOAUTH Authentication required.", Fate::unavailable);
    expect("WRONGPASS invalid username-password pair", Fate::unavailable);
    expect("NOPERM this user has no permissions to run the 'xadd' command", Fate::unavailable);
    expect("NOPERM this user has no permissions to access one of the keys used as arguments",
           Fate::unavailable, Scope::lane);
    expect("ERR max number of clients reached", Fate::unavailable, Scope::connection);
    expect("ERR unknown command 'XADD', with args beginning with:", Fate::unavailable);
    expect("ERR The stream has exhausted the last possible ID, unable to add more items",
           Fate::unavailable, Scope::lane);
    expect("ERR something new", Fate::failed);
    expect("OOMPH", Fate::failed);
    expect("", Fate::failed);
}

TEST(Verdict, OfARefusedTransactionGoesByItsReason) {
    const std::string outer = "EXECABORT Transaction discarded because of: ";
    expect(outer + "OOM command not allowed when used memory > 'maxmemory'.", Fate::throttled);
    expect(outer + "-OOM command not allowed when used memory > 'maxmemory'.", Fate::throttled);
    expect(outer + "MISCONF Redis is configured to save RDB snapshots", Fate::unavailable);
    expect(outer + "NOREPLICAS Not enough good replicas to write.", Fate::unavailable);
    expect("EXECABORT Transaction discarded because of previous errors.", Fate::failed);
    EXPECT_TRUE(verdict_of(outer + "READONLY You can't write").ask_elsewhere);
    EXPECT_TRUE(verdict_of(outer + "MASTERDOWN Link with MASTER is down").ask_elsewhere);
}

TEST(Verdict, AnotherServerMayTakeEvents) {
    EXPECT_TRUE(verdict_of("READONLY x").ask_elsewhere);
    EXPECT_TRUE(verdict_of("LOADING x").ask_elsewhere);
    EXPECT_FALSE(verdict_of("OOM x").ask_elsewhere);
}

}  // namespace
}  // namespace outbox
