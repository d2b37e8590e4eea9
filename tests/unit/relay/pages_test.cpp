// The texts of /readyz, /metrics and /status.
#include "relay/observe/pages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

#include "net/json.hpp"

namespace outbox::relay {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;

ProcessFigures sample() {
    DestinationFigures held{.name = "search \"1\"\\\n", .state = "delivering", .held = true};
    held.published = 9'007'199'254'740'992;  // 2^53
    held.latency_p50 = milliseconds(3);
    held.oldest_pending_age = seconds(2);
    const DestinationFigures watched{.name = "mail", .state = "elsewhere"};
    DatabaseFigures orders{.name = "orders", .edition = "sql", .version = "0.2.0", .ready = true};
    orders.renewed_at = seconds(95);
    orders.statements = 12;
    orders.destinations = {held, watched};
    ProcessFigures figures;
    figures.databases = {orders};
    figures.turns = 5;
    return figures;
}

const PageContext context{.name = "relay-1",
                          .version = "0.2.0",
                          .started_at = seconds(40),
                          .now = seconds(100),
                          .last_beat = seconds(99)};

TEST(Ready, NeedsAllDatabases) {
    ProcessFigures figures = sample();
    EXPECT_EQ(why_not_ready(figures), "");
    figures.databases.push_back({.name = "stock", .trouble = "refused\nagain"});
    EXPECT_EQ(why_not_ready(figures), "stock: refused again\n");
    figures.stopping = true;
    EXPECT_EQ(why_not_ready(figures), "stopping\n");
    EXPECT_EQ(why_not_ready({}), "starting\n");
}

TEST(Metrics, AreOpenMetrics) {
    const std::string page = metrics_page(sample(), context);
    EXPECT_THAT(page, EndsWith("\n# EOF\n"));
    EXPECT_THAT(page,
                HasSubstr("# TYPE outbox_published counter\n# HELP outbox_published Events that "
                          "the destination has confirmed.\noutbox_published_total{database="
                          "\"orders\",destination=\"search \\\"1\\\"\\\\\\n\"} "
                          "9007199254740992\n"));
    EXPECT_THAT(page,
                HasSubstr("destination=\"search \\\"1\\\"\\\\\\n\",quantile=\"0.5\"} 0.003000\n"));
    EXPECT_THAT(page,
                HasSubstr("outbox_relay_lease_held{database=\"orders\",destination=\"mail\"} 0\n"));
    EXPECT_THAT(page, HasSubstr("outbox_relay_lease_age_seconds{database=\"orders\"} 5\n"));
    EXPECT_THAT(page, HasSubstr("outbox_relay_statements_total{database=\"orders\"} 12\n"));
    EXPECT_THAT(page, HasSubstr("outbox_relay_uptime_seconds 60\n"));
    EXPECT_THAT(page, HasSubstr("outbox_relay_loop_age_seconds 1\n"));
    // Figures that are not known are left out, also their heads.
    EXPECT_THAT(page, Not(HasSubstr("outbox_round_trip_seconds")));
    EXPECT_THAT(page, Not(HasSubstr("outbox_up{database=\"orders\",destination=\"mail\"")));
}

TEST(Metrics, EachFamilyIsWholeAndHasItsHeadOnce) {
    std::istringstream lines(metrics_page(sample(), context));
    std::vector<std::string> families;
    for (std::string line; std::getline(lines, line);) {
        if (line.starts_with("# TYPE ")) {
            const std::string name = line.substr(7, line.find(' ', 7) - 7);
            EXPECT_THAT(families, Not(testing::Contains(name)));
            families.push_back(name);
        } else if (!line.starts_with("#")) {
            ASSERT_FALSE(families.empty());
            EXPECT_EQ(line.compare(0, families.back().size(), families.back()), 0) << line;
        }
    }
    EXPECT_GT(families.size(), 20u);
}

TEST(Status, IsJson) {
    const std::string page = status_page(sample(), context);
    ASSERT_TRUE(parse_json(page)) << page;
    EXPECT_THAT(page,
                HasSubstr(R"("name":"relay-1","version":"0.2.0","uptime_s":60,"ready":true)"));
    EXPECT_THAT(page, HasSubstr(R"("name":"orders","ready":true,"edition":"sql")"));
    EXPECT_THAT(page, HasSubstr(R"({"name":"mail","state":"elsewhere","held":false})"));
    EXPECT_THAT(page, HasSubstr(R"("oldest_pending_ms":2000,"latency_p50_ms":3)"));
    ASSERT_TRUE(parse_json(status_page({}, context)));
}

}  // namespace
}  // namespace outbox::relay
