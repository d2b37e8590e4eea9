// Frames of AMQP: limits, tables that a peer has made to hurt, and bytes at random.
#include "net/amqp/frames.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace outbox {
namespace {

std::string number(std::uint64_t value, std::size_t size) {
    std::string bytes;
    for (std::size_t i = size; i-- > 0;)
        bytes += static_cast<char>(value >> (8 * i));
    return bytes;
}

std::string sized(const std::string& bytes) {
    return number(bytes.size(), 4) + bytes;
}

std::string frame(char type, std::uint16_t channel, const std::string& payload) {
    return type + number(channel, 2) + sized(payload) + '\xCE';
}

// A table in a table, this many of them.
std::string nested(int depth) {
    std::string table = sized("");
    for (int i = 1; i < depth; i++)
        table = sized("\x01xF" + table);
    return table;
}

std::string nested_arrays(int depth) {
    std::string array = sized("");
    for (int i = 1; i < depth; i++)
        array = sized("A" + array);
    return sized("\x01xA" + array);
}

std::string start_method(const std::string& table) {
    return number(AMQP_CONNECTION_START_METHOD, 4) + std::string("\0\x09", 2) + table +
           sized("PLAIN") + sized("en_US");
}

TEST(AmqpFrames, AFrameIsReadWhenAllOfItIsThere) {
    const std::string bytes = frame(1, 7, "payload");
    Frame read;
    for (std::size_t size = 0; size < bytes.size(); size++)
        EXPECT_EQ(read_frame(std::string_view(bytes).substr(0, size), 4096, read),
                  Framing::incomplete);
    const std::string more = bytes + "more";
    ASSERT_EQ(read_frame(more, 4096, read), Framing::complete);
    EXPECT_EQ(read.type, 1);
    EXPECT_EQ(read.channel, 7);
    EXPECT_EQ(read.payload, "payload");
}

TEST(AmqpFrames, AFrameThatIsTooLargeIsRefusedByItsHead) {
    Frame read;
    EXPECT_EQ(read_frame(std::string("\1\0\0", 3) + number(4089, 4), 4096, read),
              Framing::malformed);
    EXPECT_EQ(read_frame(std::string("\1\0\0", 3) + number(4088, 4), 4096, read),
              Framing::incomplete);
    EXPECT_EQ(read_frame(std::string("\1\0\0\xff\xff\xff\xff", 7), 4096, read), Framing::malformed);
}

TEST(AmqpFrames, AFrameEndsWithItsMark) {
    std::string bytes = frame(1, 0, "x");
    bytes.back() = 'x';
    Frame read;
    EXPECT_EQ(read_frame(bytes, 4096, read), Framing::malformed);
}

TEST(AmqpFrames, TablesHaveALimitedDepth) {
    EXPECT_TRUE(is_shallow(nested(16)));
    EXPECT_FALSE(is_shallow(nested(17)));
    EXPECT_FALSE(is_shallow(nested(20'000)));
    EXPECT_FALSE(is_shallow(nested_arrays(20'000)));
}

TEST(AmqpFrames, TablesThatAreMalformed) {
    for (const std::string& table :
         {std::string(), number(1, 4), sized("\x05x"), sized("\x01x"), sized("\x01xZ"),
          sized("\x01xI\0"), sized(std::string("\x01xS\xff\xff\xff\xff", 7)),
          sized(std::string("\x01xF\0\0\0\x09", 7))})
        EXPECT_FALSE(is_shallow(table)) << table.size();
}

TEST(AmqpFrames, TheDecoderGetsNoDeepTable) {
    AmqpDecoder decoder;
    const std::string good = start_method(sized("\x07productS" + sized("X")));
    Frame read{AMQP_FRAME_METHOD, 0, good};
    const auto* start = decoder.decode<amqp_connection_start_t>(read);
    ASSERT_NE(start, nullptr);
    EXPECT_EQ(text_of(start->mechanisms), "PLAIN");
    const std::string deep = start_method(nested(20'000));
    read.payload = deep;
    EXPECT_EQ(decoder.decode<amqp_connection_start_t>(read), nullptr);

    const std::string content_head = number(AMQP_BASIC_CLASS, 2) + number(0, 2) + number(5, 8);
    const std::string properties =
        content_head + number(AMQP_BASIC_CONTENT_TYPE_FLAG | AMQP_BASIC_HEADERS_FLAG, 2) + "\x01t";
    std::uint64_t size = 0;
    for (const int depth : {3, 20'000}) {
        const std::string header = properties + nested(depth);
        const auto* decoded = decoder.decode_properties({AMQP_FRAME_HEADER, 1, header}, size);
        EXPECT_EQ(decoded != nullptr, depth == 3);
        EXPECT_EQ(size, 5u);
    }
}

TEST(AmqpFrames, AMessageIsSplitIntoFrames) {
    std::string out;
    amqp_basic_properties_t properties{};
    const std::string body(10'000, 'x');
    ASSERT_TRUE(append_content(out, 3, 4096, properties, body));
    std::string got;
    std::string_view rest = out;
    int frames = 0;
    for (Frame read; !rest.empty(); frames++) {
        ASSERT_EQ(read_frame(rest, 4096, read), Framing::complete);
        if (read.type == AMQP_FRAME_BODY)
            got += read.payload;
        rest.remove_prefix(read.payload.size() + frame_overhead);
    }
    EXPECT_EQ(got, body);
    EXPECT_EQ(frames, 4);
}

TEST(AmqpFrames, PropertiesLargerThanAFrameAreRefused) {
    std::string out = "before", value(5000, 'x');
    amqp_table_entry_t entry{};
    entry.key = amqp_bytes("k");
    entry.value.kind = AMQP_FIELD_KIND_UTF8;
    entry.value.value.bytes = amqp_bytes(value);
    amqp_basic_properties_t properties{};
    properties._flags = AMQP_BASIC_HEADERS_FLAG;
    properties.headers = {1, &entry};
    EXPECT_FALSE(append_content(out, 3, 4096, properties, "body"));
    EXPECT_EQ(out, "before");
    EXPECT_TRUE(append_content(out, 3, 8192, properties, "body"));
}

TEST(AmqpFrames, RandomBytesAreDecodedOrRefused) {
    std::mt19937 dice(1);
    AmqpDecoder decoder;
    const std::string good =
        start_method(sized("\x07productS" + sized("X") + "\x01yA" + sized("VVt\1")));
    for (int round = 0; round < 20'000; round++) {
        std::string bytes = good;
        for (int i = 0; i < 3; i++)
            bytes[4 + dice() % (bytes.size() - 4)] = static_cast<char>(dice());
        bytes.resize(4 + dice() % (bytes.size() - 3));
        decoder.decode<amqp_connection_start_t>({AMQP_FRAME_METHOD, 0, bytes});
        std::string header = number(AMQP_BASIC_CLASS, 2);
        for (unsigned i = dice() % 60; i > 0; i--)
            header += static_cast<char>(dice());
        std::uint64_t size = 0;
        decoder.decode_properties({AMQP_FRAME_HEADER, 0, header}, size);
    }
}

}  // namespace
}  // namespace outbox
