// Modules of sinks, and which of them are used.
#include "sinks/sink_loader.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "sinks/registry.hpp"

namespace outbox {
namespace {

using testing::HasSubstr;

// Beside this program is a pg_outbox_http.so of another build: see other_module.cpp.
TEST(SinkLoader, AModuleOfAnotherBuildIsNotEntered) {
    DestinationDefaults defaults;
    defaults.allowed_hosts = "127.0.0.1";
    Result<Destination> destination =
        parse_destination("d", {{"url", "http://127.0.0.1:1/"}}, {}, defaults);
    ASSERT_TRUE(destination) << destination.error().message;
    const SystemClock clock;

    const auto sink = create_sink({destination.value(), clock});
    ASSERT_FALSE(sink);
    EXPECT_EQ(sink.error().kind, ErrorKind::unavailable);
    EXPECT_THAT(sink.error().message, HasSubstr("pg_outbox_http.so is not of the same build"));
    EXPECT_EQ(sink.error().hint, "Restart the server or outbox-relay.");

    const auto check = create_check({destination.value(), clock, {}});
    ASSERT_FALSE(check);
    EXPECT_EQ(check.error().hint, "Restart the server or outbox-relay.");
}

}  // namespace
}  // namespace outbox
