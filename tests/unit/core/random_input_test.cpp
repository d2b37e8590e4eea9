// Parsers under random input: they always return, and what they accept has the promised form. Meant
// for the sanitizers.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/snapshot.hpp"
#include "core/topic_filter.hpp"
#include "core/url.hpp"
#include "sinks/registry.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

constexpr int rounds = 50'000;

TEST(RandomInput, AUrlThatIsAcceptedCanStandInARequestLine) {
    Mutations urls(
        {"https://example.com/events", "postgresql://me@db.example.com:5433/a%20b?sslmode=require",
         "http://[::1]:8080/x?y=%41&z", "null:", "postgresql:///catalog"},
        ":/?#[]@%&=. \r\n\t\0a1");
    int accepted = 0;
    for (int i = 0; i < rounds; i++) {
        const std::string text = urls.next();
        Result<Url> url = Url::parse(text);
        if (!url)
            continue;
        accepted++;
        for (const std::string* part : {&url.value().path, &url.value().port, &url.value().scheme})
            EXPECT_TRUE(std::none_of(part->begin(), part->end(), [](unsigned char c) {
                return c <= ' ' || c == 0x7f;
            })) << text;
        EXPECT_EQ(url.value().host.find('\0'), std::string::npos) << text;
    }
    EXPECT_GT(accepted, rounds / 100);
}

TEST(RandomInput, ASnapshotThatIsAcceptedReadsAsItIsWritten) {
    Mutations snapshots({"1:1:", "10:20:10,14,15", "795:799:795,797", "18446744073709551615:1:"},
                        ":,0123456789");
    int accepted = 0;
    for (int i = 0; i < rounds; i++) {
        const std::string text = snapshots.next();
        const std::optional<Snapshot> snapshot = Snapshot::parse(text);
        if (!snapshot)
            continue;
        accepted++;
        EXPECT_EQ(Snapshot::parse(snapshot->to_string()), snapshot) << text;
        EXPECT_LT(snapshot->to_string().size(), snapshot->text_size());
        for (std::uint64_t xid : snapshot->xip)
            EXPECT_FALSE(snapshot->finished(xid)) << text;
    }
    EXPECT_GT(accepted, rounds / 100);
}

TEST(RandomInput, ATopicFilterMatchesAtOnce) {
    Mutations filters({"video.*, user.created", "*", "a*b*c*d*e*f", "**x**"}, "*,. ab");
    Mutations topics({"video.events", "user.created", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab"}, ".ab");
    for (int i = 0; i < rounds; i++) {
        Result<TopicFilter> filter = TopicFilter::parse(filters.next());
        const std::string topic = topics.next();
        if (filter && filter.value().matches_everything())
            EXPECT_TRUE(filter.value().matches(topic));
        else if (filter)
            static_cast<void>(filter.value().matches(topic));
    }
}

TEST(RandomInput, OptionsAreRefusedWithAReasonOrUsable) {
    Mutations values(
        {"https://example.com/events", "10s", "video.*", "16", "binary", "end", "/etc/ca.pem"},
        " ,.*%/:0a\n");
    const char* const names[] = {"url",        "topics", "start",           "connect_timeout",
                                 "batch_size", "format", "max_connections", "ca_file"};
    for (int i = 0; i < rounds; i++) {
        std::vector<Option> options = {{"url", "https://example.com/"}};
        options.push_back({names[values.below(std::size(names))], values.next()});
        if (options[1].name == "url")
            options.erase(options.begin());
        if (const std::optional<Error> error = validate_server_options(options)) {
            EXPECT_FALSE(error->message.empty());
            continue;
        }
        const Result<Destination> destination = parse_destination("d", options, {}, {});
        EXPECT_TRUE(destination);
    }
}

}  // namespace
}  // namespace outbox
