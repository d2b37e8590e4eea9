#include "core/trace_context.hpp"

#include <string>

#include <gtest/gtest.h>

namespace outbox {
namespace {

const std::string valid = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

std::string traceparent_of(std::string_view statement) {
    const auto context = trace_of_comment(statement);
    return context ? context->traceparent : "";
}

std::string tracestate_of(std::string_view statement) {
    const auto context = trace_of_comment(statement);
    return context ? context->tracestate : "no traceparent";
}

TEST(TraceContext, HasTheFormOfVersionZero) {
    EXPECT_TRUE(is_traceparent(valid));
    EXPECT_TRUE(is_traceparent("cc" + valid.substr(2)));  // a later version
    for (const std::string& text :
         {std::string(), "ff" + valid.substr(2), valid + "-", valid.substr(0, 54), valid + "-00",
          "00-00000000000000000000000000000000-00f067aa0ba902b7-01" + std::string(),
          "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01" + std::string(),
          "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01" + std::string(),
          "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01" + std::string(),
          "00-4bf92f3577b34da6a3ce929d0e0e473g-00f067aa0ba902b7-01" + std::string()})
        EXPECT_FALSE(is_traceparent(text)) << text;
}

TEST(TraceContext, StateIsShortAndPrintable) {
    EXPECT_TRUE(is_tracestate(""));
    EXPECT_TRUE(is_tracestate("rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"));
    EXPECT_TRUE(is_tracestate(std::string(max_tracestate_length, 'a')));
    EXPECT_FALSE(is_tracestate(std::string(max_tracestate_length + 1, 'a')));
    EXPECT_FALSE(is_tracestate("a=1\r\nx: y"));
    EXPECT_FALSE(is_tracestate("a=\xc3\xa4"));
}

TEST(TraceContext, IsFoundInCommentAtTheEndOrTheBeginning) {
    const std::string comment = "/*traceparent='" + valid + "'*/";
    EXPECT_EQ(traceparent_of("SELECT 1 " + comment), valid);
    EXPECT_EQ(traceparent_of("SELECT 1 " + comment + " ;\n"), valid);
    EXPECT_EQ(traceparent_of(" \n" + comment + " SELECT 1"), valid);
    EXPECT_EQ(traceparent_of(comment + " SELECT 1 /* another */"), valid);
    EXPECT_EQ(traceparent_of("/* another */ SELECT 1 /* more */ " + comment), valid);
    EXPECT_EQ(traceparent_of("SELECT 1 " + comment + " + 1"), "");
    EXPECT_EQ(traceparent_of("SELECT '" + comment + "'"), "");
    EXPECT_EQ(traceparent_of("SELECT $$" + comment + "$$;"), "");
    EXPECT_EQ(traceparent_of(std::string(1 << 20, ' ') + comment), valid);
}

TEST(TraceContext, KeysHaveAnyOrderAndValuesAreEncoded) {
    EXPECT_EQ(traceparent_of("SELECT 1 /*action='%2Fa*b\\'c',framework='x', traceparent='" + valid +
                             "' , tracestate='a%3D1%2Cb%3D2'*/"),
              valid);
    EXPECT_EQ(tracestate_of("SELECT 1 /*tracestate='a%3D1%2Cb%3D2',traceparent='" + valid + "'*/"),
              "a=1,b=2");
    EXPECT_EQ(tracestate_of("SELECT 1 /*traceparent='" + valid + "',tracestate='a%0A'*/"), "");
    EXPECT_EQ(tracestate_of("SELECT 1 /*traceparent='" + valid + "',tracestate='" +
                            std::string(2000, 'a') + "'*/"),
              "");
}

TEST(TraceContext, AMalformedCommentIsIgnored) {
    for (const char* statement :
         {"", "*/", "/*", "/*/", "/**/", "; ;", "/*traceparent*/", "/*traceparent=*/",
          "/*traceparent='*/", "/*traceparent=''*/", "/*traceparent='%'*/", "/*traceparent='\\'*/",
          "/*traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0'*/",
          "/*traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-012'*/",
          "/*xtraceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'*/",
          "/*traceparent='00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01'"})
        EXPECT_EQ(traceparent_of(statement), "") << statement;
    EXPECT_EQ(traceparent_of("/*traceparent='" + valid + std::string(5000, ' ') + "'*/"), "");
}

}  // namespace
}  // namespace outbox
