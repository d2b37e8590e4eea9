#include "net/redis_redirect.hpp"

#include <gtest/gtest.h>

namespace outbox {
namespace {

TEST(RedisRedirect, NamesAServer) {
    const auto moved = parse_redirect("MOVED 3999 127.0.0.1:6381");
    ASSERT_TRUE(moved);
    EXPECT_FALSE(moved->ask);
    EXPECT_EQ(moved->host, "127.0.0.1");
    EXPECT_EQ(moved->port, "6381");
    const auto ask = parse_redirect("ASK 3999 2001:db8::1:6381");
    ASSERT_TRUE(ask);
    EXPECT_TRUE(ask->ask);
    EXPECT_EQ(ask->host, "2001:db8::1");
    EXPECT_EQ(parse_redirect("MOVED 3999 :6381")->host, "");
    for (const char* error :
         {"MOVED", "MOVED 1", "MOVED 1 a", "MOVED 1 a:", "MOVED 1 a:0", "MOVED 1 a:65536",
          "MOVED 1 a:x", "MOVED 1 a/b:1", "MOVED 1 a@b:1", "MOVED 1 a%b:1", "MOVED 1 a b/c:1",
          "MOVED 1:2 a", "MOVEDX 1 a:1", "ERR MOVED 1 a:1"})
        EXPECT_FALSE(parse_redirect(error)) << error;
    EXPECT_FALSE(parse_redirect("MOVED 1 " + std::string(300, 'a') + ":1"));
}

TEST(RedisRedirect, OfASentinel) {
    const auto text = [](std::string value) {
        return RespValue{.kind = RespValue::Kind::text, .text = std::move(value)};
    };
    const auto answer = [&](std::vector<RespValue> elements) {
        return RespValue{.kind = RespValue::Kind::array, .elements = std::move(elements)};
    };
    const auto primary = parse_primary(answer({text("10.0.0.1"), text("6379")}));
    ASSERT_TRUE(primary);
    EXPECT_EQ(*primary, (Redirect{false, "10.0.0.1", "6379"}));
    EXPECT_FALSE(parse_primary({}));
    EXPECT_FALSE(parse_primary(answer({text(""), text("6379")})));
    EXPECT_FALSE(parse_primary(answer({text("a/b"), text("6379")})));
    EXPECT_FALSE(parse_primary(answer({text("a"), text("0")})));
    EXPECT_FALSE(parse_primary(answer({text("a"), text("1"), text("1")})));
}

}  // namespace
}  // namespace outbox
