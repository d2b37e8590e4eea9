// Log lines: their forms, text from outside, and a pipe that nobody reads.
#include "relay/observe/log.hpp"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>
#include <string>

#include "net/json.hpp"

namespace outbox::relay {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::MatchesRegex;

class LogLines : public testing::Test {
  protected:
    LogLines() {
        EXPECT_EQ(pipe(pipe_), 0);
        fcntl(pipe_[0], F_SETFL, O_NONBLOCK);
    }
    ~LogLines() override {
        close(pipe_[0]);
        close(pipe_[1]);
    }

    // All that has been written so far.
    std::string written() {
        std::string text;
        char buffer[4096];
        for (ssize_t size; (size = read(pipe_[0], buffer, sizeof buffer)) > 0;)
            text.append(buffer, static_cast<std::size_t>(size));
        return text;
    }

    int pipe_[2];
};

TEST_F(LogLines, AsText) {
    Log log(LogFormat::text, LogLevel::info, pipe_[1]);
    log.info({}, "started");
    EXPECT_THAT(written(), MatchesRegex("20[0-9:T.-]+Z info started\n"));
    log.error({"orders", "search"}, {ErrorKind::internal, "it failed", "Why.", "Do this."});
    EXPECT_THAT(written(), EndsWith(" error [orders.search] it failed; detail: Why.; hint: Do "
                                    "this.\n"));
    log.warning({"orders"}, "it is slow");
    EXPECT_THAT(written(), EndsWith(" warning [orders] it is slow\n"));
}

TEST_F(LogLines, AsJson) {
    Log log(LogFormat::json, LogLevel::info, pipe_[1]);
    log.error({"orders", "search"}, {ErrorKind::internal, "a \"b\" \\ ü", "Why.", "Do this."});
    const std::string line = written();
    const auto object = parse_json(line);
    ASSERT_TRUE(object) << line;
    EXPECT_THAT(line, HasSubstr(R"("level":"error","database":"orders","destination":"search",)"
                                R"("message":"a \"b\" \\ ü","detail":"Why.","hint":"Do this."})"));
    log.info({}, "started");
    EXPECT_THAT(written(),
                MatchesRegex(R"(\{"time":"[^"]+","level":"info","message":"started"\}.)"));
}

TEST_F(LogLines, LevelsBelowAreLeftOut) {
    Log log(LogFormat::text, LogLevel::warning, pipe_[1]);
    log.info({}, "no");
    log.debug({}, "no");
    EXPECT_EQ(written(), "");
    EXPECT_FALSE(log.shows(LogLevel::info));
    log.warning({}, "yes");
    EXPECT_THAT(written(), HasSubstr("yes"));
}

TEST_F(LogLines, TextFromOutsideIsOneLineOfLimitedLength) {
    for (const LogFormat format : {LogFormat::text, LogFormat::json}) {
        Log log(format, LogLevel::info, pipe_[1]);
        log.warning({"d\n", "e\x1b[2J"}, "a\nb\xff\r\x7f" + std::string(5000, '"'),
                    std::string(5000, '\\'), std::string(5000, '"'));
        const std::string line = written();
        EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
        EXPECT_EQ(line.back(), '\n');
        EXPECT_EQ(line.find('\x1b'), std::string::npos);
        EXPECT_LE(line.size(), static_cast<std::size_t>(PIPE_BUF));
        EXPECT_THAT(line, HasSubstr("a b?  "));
    }
}

TEST_F(LogLines, AFullPipeDropsLinesAndBlocksNothing) {
    Log log(LogFormat::text, LogLevel::info, pipe_[1]);
    for (int i = 0; i < 5000; i++)
        log.info({}, "a line of a certain length, so that the pipe is full soon");
    const std::uint64_t dropped = log.dropped();
    EXPECT_GT(dropped, 0u);
    const std::string before = written();
    EXPECT_EQ(before.back(), '\n') << "lines are written whole or not at all";
    log.info({}, "somebody reads again");
    const std::string after = written();
    EXPECT_THAT(after, HasSubstr(std::to_string(dropped) + " log lines were dropped"));
    EXPECT_THAT(after, EndsWith("somebody reads again\n"));
    log.info({}, "next");
    EXPECT_EQ(written().find("dropped"), std::string::npos);
}

}  // namespace
}  // namespace outbox::relay
