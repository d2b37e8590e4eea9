// Answers of Redis: complete or in pieces, long, deep, and from peers that only pretend.
#include "net/resp.hpp"

#include <gtest/gtest.h>

#include <random>

namespace outbox {
namespace {

using State = RespReader::State;
using Kind = RespValue::Kind;

TEST(Resp, WritesCommands) {
    std::string out;
    append_command_of(out, std::string_view("XADD"), std::string_view("a\r\n"), std::int64_t{-5});
    EXPECT_EQ(out, "*3\r\n$4\r\nXADD\r\n$3\r\na\r\n\r\n$2\r\n-5\r\n");
}

const std::string all_kinds =
    "*7\r\n+OK\r\n-ERR no\r\n:-42\r\n$5\r\na\r\nbc\r\n$-1\r\n*-1\r\n*2\r\n*0\r\n$0\r\n\r\n";

void expect_all_kinds(const RespValue& value) {
    ASSERT_EQ(value.kind, Kind::array);
    ASSERT_EQ(value.elements.size(), 7u);
    EXPECT_EQ(value.elements[0].text, "OK");
    EXPECT_TRUE(value.elements[1].is_error());
    EXPECT_EQ(value.elements[1].text, "ERR no");
    EXPECT_EQ(value.elements[2].integer, -42);
    EXPECT_EQ(value.elements[3].text, "a\r\nbc");
    EXPECT_EQ(value.elements[4].kind, Kind::nil);
    EXPECT_EQ(value.elements[5].kind, Kind::nil);
    ASSERT_EQ(value.elements[6].elements.size(), 2u);
    EXPECT_TRUE(value.elements[6].elements[0].is_array());
    EXPECT_EQ(value.elements[6].elements[1].kind, Kind::text);
    EXPECT_EQ(value.at(7), nullptr);
}

TEST(Resp, ReadsAllKinds) {
    RespReader reader;
    const std::string twice = all_kinds + all_kinds;
    std::string_view input = twice;
    for (int i = 0; i < 2; i++) {
        ASSERT_EQ(reader.read(input), State::complete);
        expect_all_kinds(reader.value());
    }
    EXPECT_TRUE(input.empty());
    EXPECT_EQ(reader.read(input), State::more);
}

TEST(Resp, ReadsPieces) {
    for (std::size_t size = 1; size < all_kinds.size(); size++) {
        RespReader reader;
        State state = State::more;
        for (std::size_t at = 0; at < all_kinds.size(); at += size) {
            ASSERT_EQ(state, State::more);
            std::string_view piece = std::string_view(all_kinds).substr(at, size);
            state = reader.read(piece);
            ASSERT_TRUE(piece.empty());
        }
        ASSERT_EQ(state, State::complete);
        expect_all_kinds(reader.value());
    }
}

State read(const std::string& bytes) {
    RespReader reader;
    std::string_view input = bytes;
    return reader.read(input);
}

TEST(Resp, RefusesWhatIsNotRedis) {
    for (const char* bytes :
         {"HTTP/1.1 400 Bad Request\r\n", "\r\n", "\n", "$\r\n", "$x\r\n", "$-2\r\n", "*-2\r\n",
          ":1x\r\n", ":\r\n", "$1\r\nabc", "$1\r\na\rb", "%1\r\n", "_\r\n", "*1\r\n!\r\n",
          "$99999999999999999999\r\n", "*99999999999999999999\r\n", "$1 \r\n"})
        EXPECT_EQ(read(bytes), State::broken) << bytes;
    std::string deep;
    for (int i = 0; i < 8; i++)
        deep += "*1\r\n";
    EXPECT_EQ(read(deep + ":1\r\n"), State::complete);
    EXPECT_EQ(read("*1\r\n" + deep + ":1\r\n"), State::broken);
}

TEST(Resp, KeepsTheBeginningOfWhatIsLong) {
    RespReader reader({.text = 4, .elements = 3});
    const std::string long_text = "$10\r\n0123456789\r\n";
    const std::string nested = "*2\r\n" + long_text + "*2\r\n:1\r\n" + long_text;
    const std::string bytes = "*4\r\n:1\r\n" + long_text + nested + nested + "-12345678\r\n:7\r\n";
    std::string_view input = bytes;
    ASSERT_EQ(reader.read(input), State::complete);
    const RespValue& value = reader.value();
    ASSERT_EQ(value.elements.size(), 3u);
    EXPECT_EQ(value.elements[1].text, "0123");
    EXPECT_TRUE(value.elements[2].is_array());
    EXPECT_TRUE(value.elements[2].elements.empty());
    ASSERT_EQ(reader.read(input), State::complete);
    EXPECT_EQ(reader.value().text, "1234");
    ASSERT_EQ(reader.read(input), State::complete) << "the limit is that of one answer";
    EXPECT_EQ(reader.value().integer, 7);
}

TEST(Resp, KeepsTheFirstFieldsOfAnEntry) {
    RespReader reader({.fields = 2});
    const std::string bytes = "*2\r\n*2\r\n:1\r\n*3\r\n:2\r\n:3\r\n:4\r\n*2\r\n:5\r\n*1\r\n:6\r\n";
    std::string_view input = bytes;
    ASSERT_EQ(reader.read(input), State::complete);
    ASSERT_EQ(reader.value().elements.size(), 2u);
    EXPECT_EQ(reader.value().elements[0].elements[1].elements.size(), 2u);
    EXPECT_EQ(reader.value().elements[1].elements[1].elements.size(), 1u);
    EXPECT_EQ(reader.bytes(), bytes.size());
}

// What a peer claims costs nothing; what it sends is dropped as it comes.
TEST(Resp, MemoryDoesNotFollowThePeer) {
    for (const std::string claim : {"$9223372036854775807\r\n", "*9223372036854775807\r\n",
                                    "*1\r\n*9223372036854775807\r\n"}) {
        RespReader reader;
        std::string_view input = claim;
        EXPECT_EQ(reader.read(input), State::more);
        const std::string much(1 << 20, claim[0] == '$' ? 'x' : '+');
        for (int i = 0; i < 64; i++) {
            input = much;
            EXPECT_EQ(reader.read(input), State::more);
        }
        EXPECT_LT(reader.value().text.capacity(), 2048u);
        EXPECT_EQ(reader.value().elements.size() <= 1, true);
    }
    RespReader reader;
    std::string many = "*1000000000\r\n";
    std::string_view input = many;
    EXPECT_EQ(reader.read(input), State::more);
    std::string elements;
    for (int i = 0; i < 10'000; i++)
        elements += ":1\r\n";
    for (int i = 0; i < 100; i++) {
        input = elements;
        EXPECT_EQ(reader.read(input), State::more);
    }
    EXPECT_EQ(reader.value().elements.size(), RespReader::Limits{}.elements);
}

TEST(Resp, SaysWhatIsCut) {
    const auto read = [](std::string_view input, RespReader::Limits limits) {
        RespReader reader(limits);
        EXPECT_EQ(reader.read(input), State::complete);
        return reader.value();
    };
    const std::string two = "*2\r\n$4\r\nabcd\r\n$4\r\nefgh\r\n";
    RespValue value = read(two, {});
    EXPECT_FALSE(value.is_cut || value.elements[0].is_cut || value.elements[1].is_cut);
    value = read(two, {.text = 3});
    EXPECT_FALSE(value.is_cut);
    EXPECT_TRUE(value.elements[0].is_cut && value.elements[1].is_cut);
    value = read(two, {.bytes = 6});
    EXPECT_FALSE(value.elements[0].is_cut);
    EXPECT_TRUE(value.elements[1].is_cut);
    EXPECT_EQ(value.elements[1].text, "ef");
    value = read(two, {.elements = 1});
    EXPECT_TRUE(value.is_cut);
    EXPECT_EQ(value.elements.size(), 1u);
}

TEST(Resp, OfALineWithoutEndOnlyTheBeginningIsKept) {
    RespReader reader({.text = 64 << 20});
    const std::string much(1 << 20, 'x');
    std::string_view input = "-";
    EXPECT_EQ(reader.read(input), State::more);
    for (int i = 0; i < 4; i++) {
        input = much;
        EXPECT_EQ(reader.read(input), State::more);
    }
    input = "\r\n";
    EXPECT_EQ(reader.read(input), State::complete);
    EXPECT_LE(reader.value().text.size(), 64u * 1024);
}

TEST(Resp, SurvivesRandomBytes) {
    std::mt19937 random(1);
    const std::string characters = "*$:+-0123456789\r\n\r\nab";
    for (int round = 0; round < 20'000; round++) {
        std::string bytes;
        for (std::size_t n = random() % 40; n > 0; n--)
            bytes += characters[random() % characters.size()];
        RespReader reader({.text = 4, .elements = 4});
        std::string_view input = bytes;
        while (reader.read(input) == State::complete) {
        }
    }
}

}  // namespace
}  // namespace outbox
