// The Redis source: options, and servers that do not say what a Redis would.
#include "inbox/sources/redis.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>

#include "inbox/error.hpp"
#include "unit/client/silent_broker.hpp"
#include "unit/sinks/redis/scripted_redis.hpp"

namespace inbox {
namespace {

using outbox::Answer;
using outbox::Command;
using outbox::ScriptedRedis;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;

RedisOptions options(const std::string& servers = "127.0.0.1") {
    return {.servers = servers,
            .streams = {"s"},
            .group = "g",
            .consumer = "c",
            .min_idle = milliseconds(300),
            .connect_timeout = seconds(10),
            .request_timeout = seconds(10),
            .retry_base = milliseconds(1),
            .retry_max = milliseconds(5)};
}

TEST(RedisSourceTest, OptionsThatMakeNoSense) {
    EXPECT_NO_THROW(RedisSource{options()});
    EXPECT_EQ(RedisSource{options()}.subscription(), "redis://s/g");
    for (const auto& [spoil, complaint] :
         std::initializer_list<std::pair<void (*)(RedisOptions&), const char*>>{
             {[](RedisOptions& o) { o.servers = ""; }, "servers must be a list"},
             {[](RedisOptions& o) { o.servers = "a/b"; }, "servers must be a list"},
             {[](RedisOptions& o) { o.servers = "a,b%20c"; }, "servers must be a list"},
             {[](RedisOptions& o) { o.servers = "u:p@a"; }, "servers must be a list"},
             {[](RedisOptions& o) { o.servers = "a,,b"; }, "servers"},
             {[](RedisOptions& o) { o.streams = {}; }, "streams must be 1 to 64 keys"},
             {[](RedisOptions& o) {
                  o.streams = {"a", "a"};
              },
              "one twice"},
             {[](RedisOptions& o) { o.streams = {""}; }, "an empty key"},
             {[](RedisOptions& o) { o.group = ""; }, "group is empty"},
             {[](RedisOptions& o) { o.consumer = ""; }, "consumer is empty"},
             {[](RedisOptions& o) { o.create_group_from = "now"; }, "create_group_from must be"},
             {[](RedisOptions& o) { o.prefetch = 0; }, "prefetch must be"},
             {[](RedisOptions& o) { o.database = -1; }, "database must not be negative"},
             {[](RedisOptions& o) { o.user = "u"; }, "user needs password"},
             {[](RedisOptions& o) { o.ca_file = "f"; }, "ca_file needs tls"},
             {[](RedisOptions& o) { o.min_idle = milliseconds(99); }, "min_idle must be"},
             {[](RedisOptions& o) { o.retry_base = seconds(60); }, "retry_max must not be less"},
             {[](RedisOptions& o) { o.request_timeout = milliseconds(0); },
              "request_timeout must be"}}) {
        RedisOptions spoiled = options();
        spoil(spoiled);
        try {
            RedisSource source(spoiled);
            ADD_FAILURE() << complaint;
        } catch (const std::invalid_argument& error) {
            EXPECT_THAT(error.what(), HasSubstr(complaint));
        }
    }
}

TEST(RedisSourceTest, CannotGoBack) {
    RedisSource source(options());
    try {
        source.seek(Time{});
        ADD_FAILURE();
    } catch (const SourceError& error) {
        EXPECT_FALSE(error.transient());
        EXPECT_THAT(error.what(), HasSubstr("outbox.replay()"));
    }
}

// ---- servers --------------------------------------------------------------------------------------

const std::string nothing = "*1\r\n*2\r\n$1\r\ns\r\n*0\r\n";
const std::string nobody = "*3\r\n$3\r\n0-0\r\n*0\r\n*0\r\n";

std::string entry(const std::string& id) {
    return "*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$" + std::to_string(id.size()) + "\r\n" + id +
           "\r\n*2\r\n$7\r\npayload\r\n$1\r\nx\r\n";
}

// Answers as Redis does when the stream has nothing, after a while if nobody waits for the rest.
Answer idle(const Command& command) {
    if (command.front() == "XREADGROUP" && command.back() == ">")
        return {"*-1\r\n", false, false};
    if (command.front() == "XREADGROUP")
        return {nothing, false, false};
    if (command.front() == "XAUTOCLAIM")
        return {nobody, false, false};
    return {":1\r\n", false, false};
}

// Collects the log of a source, which must end first.
class Lines {
  public:
    void take_from(RedisSource& source) {
        source.set_log([this](Level, const std::string& line) {
            const std::lock_guard lock(mutex_);
            lines_.push_back(line);
        });
    }
    bool have(const std::string& text) const { return count(text) > 0; }
    std::ptrdiff_t count(const std::string& text) const {
        const std::lock_guard lock(mutex_);
        return std::count_if(lines_.begin(), lines_.end(), [&](const std::string& line) {
            return line.find(text) != std::string::npos;
        });
    }

  private:
    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
};

std::string error_of_open(RedisSource& source, bool& transient) {
    try {
        source.open();
        return "";
    } catch (const SourceError& error) {
        transient = error.transient();
        return error.what();
    }
}

std::string nested(int levels) {
    std::string bytes;
    for (int i = 0; i < levels; i++)
        bytes += "*1\r\n";
    return bytes + ":1\r\n";
}

struct Case {
    std::string bytes, complaint;
    bool close = false;
};

std::vector<Case> nonsense() {
    const std::string unknown = "is not understood", broken = "does not speak the protocol";
    return {
        {":5\r\n", unknown},
        {"+OK\r\n", unknown},
        {"$3\r\nabc\r\n", unknown},
        {"*0\r\n", unknown},
        {"*1\r\n*2\r\n$1\r\ns\r\n:1\r\n", unknown},
        {"*1\r\n*2\r\n$1\r\ns\r\n*1\r\n*2\r\n$3\r\nabc\r\n*0\r\n", unknown},
        {nested(7), unknown},
        {nested(100), broken},
        {"x\r\n", broken},
        {"$99999999999999999999999\r\n", broken},
        {"*-7\r\n", broken},
        {"HTTP/1.1 400 Bad Request\r\n\r\n", broken},
        {"-\r\n", "an error without a text"},
        {"-\x1b[2J\nforged\r\n", "redis://s/g: "},
        {"-MOVED 1 a b:1\r\n", "MOVED 1 a b:1"},
        {"-MOVED 1 " + std::string(1000, 'a') + ":1\r\n", "MOVED 1 aaa"},
        {"-MOVED 1 127.0.0.1:0\r\n", "MOVED 1 127.0.0.1:0"},
        {"", "redis://s/g: ", true},
        {"*1\r\n*2\r\n$1\r\ns\r\n*1000000\r\n*2\r\n", "redis://s/g: ", true},
        {"$2000000000\r\nx", "redis://s/g: ", true},
    };
}

TEST(RedisSourceTest, AServerThatTalksNonsense) {
    for (const Case& one : nonsense()) {
        ScriptedRedis redis;
        redis.on([&](const Command&) { return Answer{one.bytes, one.close, false}; });
        RedisSource source(options(redis.address()));
        bool transient = false;
        const std::string error = error_of_open(source, transient);
        EXPECT_THAT(error, HasSubstr(one.complaint)) << one.bytes.substr(0, 80);
        EXPECT_TRUE(transient) << error;
        EXPECT_LT(error.size(), 2000u);
        EXPECT_EQ(error.find('\x1b'), std::string::npos);
    }
}

TEST(RedisSourceTest, AServerThatIsSilent) {
    ScriptedRedis redis;
    redis.on([](const Command&) { return Answer{"", false, true}; });
    RedisOptions o = options(redis.address());
    o.request_timeout = milliseconds(50);
    RedisSource source(o);
    bool transient = false;
    EXPECT_THAT(error_of_open(source, transient), HasSubstr("no answer within 50ms"));
    EXPECT_TRUE(transient);
}

TEST(RedisSourceTest, RedirectsInACircle) {
    ScriptedRedis redis;
    redis.on([&](const Command&) {
        return Answer{"-MOVED 1 :" + redis.port() + "\r\n", false, false};
    });
    RedisSource source(options(redis.address()));
    bool transient = false;
    EXPECT_THAT(error_of_open(source, transient), HasSubstr("too many redirects"));
    EXPECT_TRUE(transient);
}

TEST(RedisSourceTest, ASentinelThatTalksNonsense) {
    for (const std::string bytes :
         {"*-1\r\n", "*2\r\n$3\r\na b\r\n$1\r\n1\r\n", "*2\r\n$0\r\n\r\n$1\r\n1\r\n", ":1\r\n",
          "*3\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\n1\r\n"}) {
        ScriptedRedis redis;
        redis.on([&](const Command&) { return Answer{bytes, false, false}; });
        RedisOptions o = options(redis.address());
        o.sentinel = "main";
        RedisSource source(o);
        bool transient = true;
        EXPECT_THAT(error_of_open(source, transient),
                    HasSubstr("Sentinel knows no primary \"main\""));
        EXPECT_FALSE(transient);
    }
}

TEST(RedisSourceTest, Refusals) {
    for (const std::string code : {"NOGROUP", "WRONGTYPE", "NOPERM", "NOAUTH", "ERR"}) {
        ScriptedRedis redis;
        redis.on([&](const Command&) { return Answer{'-' + code + " x\r\n", false, false}; });
        RedisSource source(options(redis.address()));
        bool transient = true;
        EXPECT_THAT(error_of_open(source, transient), HasSubstr(code + " x"));
        EXPECT_FALSE(transient) << code;
    }
    for (const std::string code : {"LOADING", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN",
                                   "BUSY", "UNBLOCKED", "ERR max number of clients"}) {
        ScriptedRedis redis;
        redis.on([&](const Command&) { return Answer{'-' + code + " x\r\n", false, false}; });
        RedisSource source(options(redis.address()));
        bool transient = false;
        EXPECT_THAT(error_of_open(source, transient), HasSubstr(code + " x"));
        EXPECT_TRUE(transient) << code;
    }
}

// After the source has worked, nonsense costs a connection each, and it goes on.
TEST(RedisSourceTest, GoesOnAfterNonsenseInAnyAnswer) {
    for (const std::string name : {"XREADGROUP", "XAUTOCLAIM", "XCLAIM", "XACK"}) {
        for (const std::string bytes :
             {"*1\r\n*1\r\n:1\r\n", "?\r\n", "-MOVED 1 a b:1\r\n", "-LOADING x\r\n"}) {
            if (name == "XACK" && bytes.front() == '*')
                continue;  // the number says nothing that matters
            ScriptedRedis redis;
            redis.on([&, bad = 0,
                      number = 0](const Command& command) mutable -> std::optional<Answer> {
                if (command.front() == name && number > 0 && bad++ < 3)
                    return Answer{bytes, false, false};
                if (command.front() == "XREADGROUP" && command.back() == ">")
                    return Answer{entry(std::to_string(++number) + "-1"), false, false};
                if (command.front() == "XCLAIM") {
                    std::string all = '*' + std::to_string(command.size() - 6) + "\r\n";
                    for (std::size_t i = 5; i + 1 < command.size(); i++)
                        all +=
                            '$' + std::to_string(command[i].size()) + "\r\n" + command[i] + "\r\n";
                    return Answer{all, false, false};
                }
                return idle(command);
            });
            RedisOptions o = options(redis.address());
            o.prefetch = 4;
            Lines lines;
            RedisSource source(o);
            lines.take_from(source);
            source.open();
            const auto deadline = std::chrono::steady_clock::now() + seconds(60);
            // Until the trouble has been seen, and entries come after it.
            std::size_t after = 0;
            while (after < 3 && std::chrono::steady_clock::now() < deadline) {
                for (Delivery& delivery : source.receive(10, milliseconds(100))) {
                    if (delivery.message_id != "1-1")  // it is held, so that its claim is extended
                        source.ack({&delivery, 1});
                    after += lines.have("redis://s/g: ");
                }
            }
            EXPECT_GE(after, 3u) << name << ' ' << bytes;
        }
    }
}

// Entries of a consumer that has died come in pages, as new ones do, and no page waits for a read that
// blocks. Entries that are gone are one line in the log, not one a page.
TEST(RedisSourceTest, TakesOverEntriesInPages) {
    constexpr int pages = 20;
    std::mutex mutex;
    std::vector<int> asked_for;
    int blocking = 0, page = 0;
    ScriptedRedis redis;
    redis.on([&](const Command& command) {
        const std::lock_guard lock(mutex);
        blocking += page > 0 && page < pages && command.front() == "XREADGROUP" &&
                    std::ranges::count(command, "BLOCK") > 0;
        if (command.front() != "XAUTOCLAIM" || page == pages)
            return idle(command);
        asked_for.push_back(std::stoi(command.back()));
        page++;
        const std::string next = page < pages ? std::to_string(page + 1) + "-1" : "0-0";
        return Answer{"*3\r\n$" + std::to_string(next.size()) + "\r\n" + next +
                          "\r\n*0\r\n*1\r\n$3\r\n1-1\r\n",
                      false, false};
    });
    RedisOptions o = options(redis.address());
    Lines lines;
    RedisSource source(o);
    lines.take_from(source);
    source.open();
    const auto deadline = std::chrono::steady_clock::now() + seconds(60);
    while (lines.count("were deleted") == 0 && std::chrono::steady_clock::now() < deadline)
        source.receive(10, milliseconds(10));
    const std::lock_guard lock(mutex);
    EXPECT_EQ(lines.count("were deleted"), 1);
    EXPECT_TRUE(lines.have("20 pending entries were deleted"));
    EXPECT_EQ(blocking, 0);
    ASSERT_EQ(asked_for.size(), static_cast<std::size_t>(pages));
    EXPECT_GE(asked_for.back(), 100);
}

// A peer that sends more than was asked for gets no more memory than an answer may have.
TEST(RedisSourceTest, UnrequestedAnswersAreDropped) {
    ScriptedRedis redis;
    redis.on([&](const Command& command) {
        Answer answer = idle(command);
        for (int i = 0; i < 1000; i++)
            answer.bytes += entry("1-1");
        return answer;
    });
    RedisSource source(options(redis.address()));
    bool transient = false;
    error_of_open(source, transient);
    const auto deadline = std::chrono::steady_clock::now() + milliseconds(300);
    while (std::chrono::steady_clock::now() < deadline)
        EXPECT_LE(source.receive(10, milliseconds(10)).size(), 1u);
}

TEST(RedisSourceTest, AStopDoesNotWaitForASilentServer) {
    ScriptedRedis redis;
    redis.on([](const Command& command) -> std::optional<Answer> {
        Answer answer = idle(command);
        answer.silent = command.back() == ">";
        return answer;
    });
    RedisOptions o = options(redis.address());
    o.request_timeout = seconds(3600);
    RedisSource source(o);
    source.open();
    const auto began = std::chrono::steady_clock::now();
    source.close(milliseconds(100));
    EXPECT_LT(std::chrono::steady_clock::now() - began, seconds(60));
}

TEST(RedisSourceTest, AStopEndsALoginThatIsNotAnswered) {
    SilentBroker broker;
    RedisOptions o = options(broker.address());
    o.connect_timeout = o.request_timeout = seconds(3600);
    broker.expect_stop_while_opening(std::make_unique<RedisSource>(o));
}

// As of a server that is not Redis, or of a proxy that asks one server and then another.
TEST(RedisSourceTest, AGroupThatIsNeverThereIsAFailure) {
    ScriptedRedis redis;
    redis.on([](const Command& command) {
        const bool reads = command.front() == "XREADGROUP";
        return Answer{reads ? "-NOGROUP No such consumer group\r\n" : "+OK\r\n", false, false};
    });
    RedisOptions o = options(redis.address());
    o.create_group_from = "0";
    RedisSource source(o);
    bool transient = false;
    EXPECT_THAT(error_of_open(source, transient),
                HasSubstr("the consumer group is missing right after it was created"));
    EXPECT_TRUE(transient);
}

}  // namespace
}  // namespace inbox
