#include "core/url.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outbox {
namespace {

using testing::HasSubstr;
using testing::Not;

Url parsed(std::string_view text) {
    Result<Url> url = Url::parse(text);
    EXPECT_TRUE(url) << text << ": " << url.error().message;
    return url ? url.value() : Url{};
}

Error refusal(std::string_view text) {
    const Result<Url> url = Url::parse(text);
    EXPECT_FALSE(url) << text << " was accepted, with the host \"" << url.value().host << '"';
    return url ? Error{} : url.error();
}

TEST(Url, IsParsedIntoItsParts) {
    const Url url = parsed("HTTPS://alice@Example.com:8443/a/b%20c?x=1&y=two");
    EXPECT_EQ(url.scheme, "https");
    EXPECT_EQ(url.user, "alice");
    EXPECT_FALSE(url.has_password);
    EXPECT_EQ(url.host, "Example.com");
    EXPECT_EQ(url.port, "8443");
    EXPECT_EQ(url.path, "/a/b%20c") << "the path goes over the wire as it was written";
    EXPECT_EQ(url.query, (decltype(url.query){{"x", "1"}, {"y", "two"}}));
}

TEST(Url, NeedsNothingButAScheme) {
    const Url url = parsed("null:");
    EXPECT_EQ(url.scheme, "null");
    EXPECT_EQ(url.user, std::nullopt);
    EXPECT_EQ(url.host, "");
    EXPECT_EQ(url.port, "");
    EXPECT_EQ(url.path, "");
    EXPECT_TRUE(url.query.empty());
}

TEST(Url, MayHaveSeveralHosts) {
    const auto url = Url::parse("kafka://a:1,[::1]:2,c/", Url::Hosts::list);
    ASSERT_TRUE(url);
    EXPECT_EQ(url.value().host + url.value().port, "a1");
    EXPECT_EQ(url.value().further_hosts, (decltype(Url::further_hosts){{"::1", "2"}, {"c", ""}}));
    EXPECT_EQ(url.value().path, "/");
    EXPECT_FALSE(Url::parse("kafka://a:1,b:x", Url::Hosts::list));
    EXPECT_FALSE(Url::parse("http://a:1,b:2/")) << "unless they are asked for";
}

TEST(Url, HostMayBeEmpty) {
    const Url url = parsed("postgresql:///catalog");
    EXPECT_EQ(url.host, "");
    EXPECT_EQ(url.path, "/catalog");
}

TEST(Url, AUserIsNotAnEmptyUser) {
    EXPECT_EQ(parsed("http://host/").user, std::nullopt);
    EXPECT_EQ(parsed("http://@host/").user, "");
}

TEST(Url, NoticesAPasswordAndDropsIt) {
    for (const char* text :
         {"http://alice:secret@host/", "http://alice:@host/", "http://:secret@host/",
          "http://alice:sec:ret@host/", "http://alice:sec@ret@host/"}) {
        const Url url = parsed(text);
        EXPECT_TRUE(url.has_password) << text;
        EXPECT_EQ(url.host, "host") << text;
        EXPECT_THAT(url.user.value_or(""), Not(HasSubstr("sec"))) << text;
    }
}

TEST(Url, DecodesUserHostAndQuery) {
    const Url url = parsed("postgresql://al%69ce%40home@ex%61mple/db?app%6Cication_name=a%20b%26c");
    EXPECT_EQ(url.user, "alice@home");
    EXPECT_EQ(url.host, "example");
    EXPECT_EQ(url.query, (decltype(url.query){{"application_name", "a b&c"}}));
}

TEST(Url, QueryHasNamesWithoutValuesAndEmptyPairs) {
    EXPECT_EQ(parsed("http://h/?a&b=&=c&d=e=f").query,
              (decltype(Url::query){{"a", ""}, {"b", ""}, {"", "c"}, {"d", "e=f"}}));
    EXPECT_TRUE(parsed("http://h/?").query.empty());
    EXPECT_EQ(parsed("http://h?a=1").query, (decltype(Url::query){{"a", "1"}}));
}

TEST(Url, TakesIpv6Addresses) {
    EXPECT_EQ(parsed("http://[::1]/").host, "::1");
    const Url url = parsed("http://alice@[2001:db8::1]:8080/x");
    EXPECT_EQ(url.user, "alice");
    EXPECT_EQ(url.host, "2001:db8::1");
    EXPECT_EQ(url.port, "8080");
}

TEST(Url, AuthorityEndsAtTheFirstSlash) {
    const Url url = parsed("http://host/path@other:99/");
    EXPECT_EQ(url.host, "host");
    EXPECT_EQ(url.path, "/path@other:99/");
    EXPECT_EQ(url.user, std::nullopt);
}

TEST(Url, RefusesWhatHasNoScheme) {
    for (const char* text : {"", "host", "/path", "//host/", ":x", "1http://host/", "ht tp://host/",
                             "ht_tp://host/", "-http://host"})
        EXPECT_NE(refusal(text).message, "") << text;
}

TEST(Url, RefusesCharactersThatCouldBreakOutOfARequestLine) {
    for (std::string_view text :
         {std::string_view("http://host/a b"), std::string_view("http://host/\r\nx: y"),
          std::string_view("http://host/\t"), std::string_view("http://host/\x7f"),
          std::string_view("http://host/\0", 13), std::string_view("http://host/\"x\""),
          std::string_view("http://host/<x>"), std::string_view("\nhttp://host/")})
        EXPECT_THAT(refusal(text).message, HasSubstr("blanks or control characters"));
}

TEST(Url, RefusesSuchCharactersWhenEncodedToo) {
    // The host becomes part of a header line, and the user part of a connection string.
    for (const char* text :
         {"http://ho%0d%0ast/", "http://ho%7Fst/", "postgresql://al%0Aice@host/db"})
        refusal(text);
}

TEST(Url, HostMayBeADirectoryOfSockets) {
    EXPECT_EQ(parsed("postgresql://%2Fvar%2Frun%2Fpostgresql/db").host, "/var/run/postgresql");
}

TEST(Url, RefusesAFragment) {
    EXPECT_THAT(refusal("http://host/#here").message, HasSubstr("fragment"));
}

TEST(Url, RefusesBadPercentEncoding) {
    for (const char* text :
         {"http://h%/", "http://h%4/", "http://h%4g/", "http://h%zz/", "http://%u@h/",
          "http://h/?a=%", "http://h/?%4x=1", "http://h%00/", "http://h/?a=%00"})
        EXPECT_THAT(refusal(text).message, HasSubstr("badly encoded")) << text;
}

TEST(Url, RefusesBadPorts) {
    for (const char* text :
         {"http://h:0/", "http://h:65536/", "http://h:-1/", "http://h:+80/", "http://h:80x/",
          "http://h:8:0/", "http://[::1]:x/", "http://h:99999999999999999999/"})
        EXPECT_THAT(refusal(text).message, HasSubstr("port is not a number from 1 to 65535"))
            << text;
    EXPECT_EQ(parsed("http://h:1/").port, "1");
    EXPECT_EQ(parsed("http://h:65535/").port, "65535");
}

TEST(Url, RefusesBadIpv6Addresses) {
    refusal("http://[::1/");
    refusal("http://[::1]x/");
    refusal("http://[::1]8080/");
}

TEST(Url, ARefusalDoesNotRepeatPossibleSecrets) {
    for (const char* text : {"http://alice:hunter2@host:x/", "http://alice:hunter2@h%zz/",
                             "http://alice:hunter2@host/#f", "http://alice:hunter2@host/ ",
                             "http://alice:hunter2@[::1/", "http://%zz:hunter2@host/",
                             "http://alice:hunter2@host/?a=%"}) {
        const Error error = refusal(text);
        EXPECT_THAT(error.message + error.detail + error.hint, Not(HasSubstr("hunter2"))) << text;
    }
}

TEST(Url, KnowsAHostName) {
    for (const char* host : {"a", "a-b.c_d", "127.0.0.1", "::1", "fe80::1"})
        EXPECT_TRUE(is_host_name(host)) << host;
    for (const char* host :
         {"", "a b", "a/b", "a@b", "a,b", "a#b", "a?b", "[::1]", "a%b", "a\r\nb"})
        EXPECT_FALSE(is_host_name(host)) << host;
}

TEST(Url, OnlyAUrlWithoutSchemeIsToldToHaveOne) {
    EXPECT_THAT(refusal("example.com/events").hint, HasSubstr("starts with a scheme"));
    for (const char* text : {"http://h%zz/", "http://h/?a=%", "http://h/#f", "http://[x/"})
        EXPECT_THAT(refusal(text).hint, Not(HasSubstr("starts with a scheme"))) << text;
}

}  // namespace
}  // namespace outbox
