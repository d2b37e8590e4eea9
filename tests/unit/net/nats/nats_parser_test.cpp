#include "net/nats/nats_parser.hpp"

#include <gtest/gtest.h>

#include <string>

namespace outbox {
namespace {

using Kind = NatsInput::Kind;

NatsInput read(std::string_view bytes) {
    return read_nats(bytes, {.line = 1000, .message = 1000});
}

TEST(NatsParser, ReadsCommands) {
    EXPECT_EQ(read("PING\r\nx").kind, Kind::ping);
    EXPECT_EQ(read("PING\r\nx").size, 6u);
    EXPECT_EQ(read("pong\r\n").kind, Kind::pong);
    EXPECT_EQ(read("+OK\r\n").kind, Kind::ok);
    EXPECT_EQ(read("INFO {\"a\":1} \r\n").text, "{\"a\":1}");
    EXPECT_EQ(read("-ERR 'Stale Connection'\r\n").text, "Stale Connection");
    EXPECT_EQ(read("-ERR\r\n").text, "");
}

TEST(NatsParser, ReadsMessages) {
    const NatsInput plain = read("MSG a.b 7 3\r\nxyz\r\nPING");
    EXPECT_EQ(plain.kind, Kind::message);
    EXPECT_EQ(plain.subject, "a.b");
    EXPECT_EQ(plain.subscription, 7u);
    EXPECT_EQ(plain.reply, "");
    EXPECT_EQ(plain.payload, "xyz");
    EXPECT_EQ(plain.size, 18u);
    EXPECT_EQ(read("MSG\ta  7\tr 0\r\n\r\n").reply, "r");
    const NatsInput full = read("HMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nxy\r\n");
    EXPECT_EQ(full.reply, "r");
    EXPECT_EQ(full.headers, "NATS/1.0\r\n\r\n");
    EXPECT_EQ(full.payload, "xy");
}

TEST(NatsParser, WaitsForTheRest) {
    const std::string all = "HMSG a 1 r 12 14\r\nNATS/1.0\r\n\r\nxy\r\n";
    for (std::size_t size = 0; size < all.size(); size++)
        EXPECT_EQ(read(std::string_view(all).substr(0, size)).kind, Kind::incomplete) << size;
    EXPECT_EQ(read(all).size, all.size());
}

TEST(NatsParser, RefusesWhatIsMalformed) {
    for (const char* bytes :
         {"HTTP/1.1 400 Bad Request\r\n", "\r\n", "MSG\r\n", "MSG a 1\r\n", "MSG a x 1\r\n",
          "MSG a 1 -1\r\n", "MSG a 1 r s 1\r\n", "MSG a 1 1001\r\n",
          "MSG a 1 99999999999999999999\r\n", "MSG a 1 1\r\nxyz", "HMSG a 1 5 4\r\nxxxx\r\n",
          "HMSG a 1 4\r\n", "\x16\x03\x01\r\n"})
        EXPECT_EQ(read(bytes).kind, Kind::malformed) << bytes;
}

TEST(NatsParser, LinesHaveALimit) {
    EXPECT_EQ(read(std::string(999, 'x')).kind, Kind::incomplete);
    EXPECT_EQ(read(std::string(1000, 'x')).kind, Kind::malformed);
    EXPECT_EQ(read("INFO " + std::string(2000, 'x') + "\r\n").kind, Kind::malformed);
}

TEST(NatsParser, ReadsHeaders) {
    constexpr std::string_view status =
        "NATS/1.0 503 No Responders\r\nA: 1\r\na: 2\r\nB:  x \r\n\r\n";
    EXPECT_EQ(nats_status(status), 503);
    EXPECT_EQ(nats_status_text(status), "No Responders");
    EXPECT_EQ(nats_header(status, "a"), "1");
    EXPECT_EQ(nats_header(status, "B"), "x");
    EXPECT_EQ(nats_header(status, "C"), "");
    for (const char* other :
         {"", "NATS/1.0\r\n\r\n", "NATS/1.0 \r\n", "NATS/1.0 x\r\n", "HTTP 503"}) {
        EXPECT_EQ(nats_status(other), 0) << other;
        EXPECT_EQ(nats_status_text(other), "") << other;
        EXPECT_EQ(nats_header(other, "A"), "") << other;
    }
}

}  // namespace
}  // namespace outbox
