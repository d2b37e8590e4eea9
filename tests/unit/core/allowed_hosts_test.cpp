#include "core/allowed_hosts.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/un.h>

namespace outbox {
namespace {

using testing::HasSubstr;

Address address(std::string_view text) {
    const std::optional<Address> parsed = Address::parse(text);
    EXPECT_TRUE(parsed) << text;
    return parsed.value_or(Address{});
}

HostList hosts(std::string_view list) {
    const Result<HostList> parsed = HostList::parse(list);
    EXPECT_TRUE(parsed) << list << ": " << parsed.error().message;
    return parsed ? parsed.value() : HostList{};
}

// ---------------------------------------------------------------------------------------------
// Addresses
// ---------------------------------------------------------------------------------------------

TEST(Address, ReadsBothFamiliesAndShowsThemInOneSpelling) {
    EXPECT_EQ(address("192.0.2.1").text(), "192.0.2.1");
    EXPECT_EQ(address("2001:DB8:0:0::1").text(), "2001:db8::1");
    EXPECT_EQ(address("fe80::1%eth0").text(), "fe80::1");
    EXPECT_EQ(address("::1").text(), "::1");
}

TEST(Address, IPv4InsideOfIPv6IsTheSameAddress) {
    EXPECT_EQ(address("::ffff:192.0.2.1"), address("192.0.2.1"));
    EXPECT_EQ(address("::FFFF:c000:201"), address("192.0.2.1"));
    EXPECT_EQ(address("::ffff:192.0.2.1").text(), "192.0.2.1");
    EXPECT_NE(address("::192.0.2.1"), address("192.0.2.1"));
}

TEST(Address, RefusesOddSpellings) {
    for (const char* text :
         {"", "127.1", "127.0.1", "2130706433", "0x7f000001", "0x7f.0.0.1", "0177.0.0.1",
          "127.0.0.01", "127.0.0.1.", " 127.0.0.1", "127.0.0.256", "1.2.3.4.5", "[::1]", ":::1",
          "::1::", "::g", "example.com", "0000:0000:0000:0000:0000:0000:0000:0000:0000:0000:0001"})
        EXPECT_FALSE(Address::parse(text)) << text;
}

TEST(Address, IsReadFromASocketAddress) {
    sockaddr_in ipv4{};
    ipv4.sin_family = AF_INET;
    inet_pton(AF_INET, "192.0.2.1", &ipv4.sin_addr);
    EXPECT_EQ(Address::of(reinterpret_cast<const sockaddr&>(ipv4)), address("192.0.2.1"));
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    inet_pton(AF_INET6, "2001:db8::1", &ipv6.sin6_addr);
    EXPECT_EQ(Address::of(reinterpret_cast<const sockaddr&>(ipv6)), address("2001:db8::1"));
    sockaddr_un local{};
    local.sun_family = AF_UNIX;
    EXPECT_EQ(Address::of(reinterpret_cast<const sockaddr&>(local)), std::nullopt);
}

TEST(ReservedAddresses, AreThoseOfTheMachineAndItsCloud) {
    for (const char* text :
         {"127.0.0.1", "127.255.255.255", "0.0.0.0", "0.1.2.3", "169.254.0.1", "169.254.169.254",
          "100.100.100.200", "::", "::1", "fe80::1", "febf::1", "fe80::1%eth0",
          "fd00:ec2::", "fd00:ec2::23", "fd00:ec2::254", "fd00:ec2:ffff::1", "fd20:ce::254"})
        EXPECT_TRUE(is_reserved(address(text))) << text;
}

TEST(ReservedAddresses, AreKnownInsideOfIPv6) {
    for (const char* ipv4 : {"127.0.0.1", "0.0.0.0", "169.254.169.254", "100.100.100.200"})
        for (const char* prefix : {"::ffff:", "::", "64:ff9b::", "64:ff9b:1::", "64:ff9b:1:2:3:4:"})
            EXPECT_TRUE(is_reserved(address(std::string(prefix) + ipv4))) << prefix << ipv4;
    for (const char* text : {"::ffff:192.0.2.1", "::192.0.2.1", "64:ff9b::192.0.2.1",
                             "64:ff9b:1::192.0.2.1", "64:ff9b:1:2:3:4:192.0.2.1"})
        EXPECT_FALSE(is_reserved(address(text))) << text;
}

// 169.254.169.254 behind 48, 56 and 64 bits, and something in the bits that a translator ignores.
TEST(ReservedAddresses, AreKnownBehindEachPrefixOfLocalTranslators) {
    for (const char* text : {"64:ff9b:1:a9fe:a9:fe00:808:808", "64:ff9b:1:55a9:fe:a9fe:808:808",
                             "64:ff9b:1:5555:a9:fea9:fe08:808", "64:ff9b:1:7f00:0:100:808:808"})
        EXPECT_TRUE(is_reserved(address(text))) << text;
    EXPECT_FALSE(is_reserved(address("64:ff9b:1:c000:2:100:808:808")));
}

TEST(ReservedAddresses, AreNotTheirNeighboursNorPrivateNetworks) {
    for (const char* text : {"126.255.255.255", "128.0.0.1",       "1.0.0.0",
                             "169.253.255.255", "169.255.0.0",     "10.0.0.1",
                             "172.16.0.1",      "192.168.0.1",     "100.100.100.201",
                             "8.8.8.8",         "::1:0:0:1",       "1::",
                             "fe7f::1",         "fec0::1",         "fd00::1",
                             "fd00:ec1::254",   "fd00:ec3::254",   "fd20:ce::253",
                             "2001:db8::1",     "64:ff9c::7f00:1", "64:ff9b:2::127.0.0.1"})
        EXPECT_FALSE(is_reserved(address(text))) << text;
}

// ---------------------------------------------------------------------------------------------
// The list
// ---------------------------------------------------------------------------------------------

TEST(HostList, AllowNothingWhenEmpty) {
    for (const char* list : {"", "  ", "\n"}) {
        EXPECT_TRUE(hosts(list).has_default());
        EXPECT_FALSE(hosts(list).allows("example.com", address("192.0.2.1")));
    }
    EXPECT_FALSE(hosts("example.com").has_default());
    EXPECT_FALSE(hosts("::1").has_default());
}

TEST(HostList, ANameIsAllowedWithWhateverAddressItHas) {
    const HostList list = hosts("example.com, LocalHost");
    for (const char* host : {"example.com", "EXAMPLE.com", "example.com.", "localhost"}) {
        EXPECT_TRUE(list.allows(host)) << host;
        EXPECT_TRUE(list.allows(host, address("127.0.0.1"))) << host;
    }
    for (const char* host : {"", ".", "example.com..", ".example.com", "www.example.com",
                             "example.community", "notexample.com", "com", "example.com.evil.test"})
        EXPECT_FALSE(list.allows(host, address("192.0.2.1"))) << host;
}

TEST(HostList, AStarStandsForAllNamesBelow) {
    const HostList list = hosts("*.Example.com.");
    for (const char* host : {"a.example.com", "a.b.EXAMPLE.com", "a.example.com."})
        EXPECT_TRUE(list.allows(host)) << host;
    for (const char* host : {"example.com", ".example.com", "aexample.com",
                             "a.example.com.evil.test", "*", "a.example.org"})
        EXPECT_FALSE(list.allows(host)) << host;
}

TEST(HostList, AnAddressIsAllowedByWhateverNameItHas) {
    const HostList list = hosts("192.0.2.1, 2001:db8::1");
    EXPECT_TRUE(list.allows("example.com", address("192.0.2.1")));
    EXPECT_TRUE(list.allows("3221225985", address("192.0.2.1")));
    EXPECT_TRUE(list.allows("example.com", address("::ffff:192.0.2.1")));
    EXPECT_TRUE(list.allows("example.com", address("2001:db8:0::1")));
    EXPECT_FALSE(list.allows("example.com", address("192.0.2.2")));
    EXPECT_FALSE(list.allows("192.0.2.1", address("192.0.2.2"))) << "the name is not an address";
    EXPECT_FALSE(list.allows("192.0.2.1"));
}

TEST(HostList, NetworksEndWhereTheirPrefixSays) {
    const HostList list = hosts("10.0.0.0/8,192.0.2.128/25 ,\tfd00::/8,2001:db8::8/125");
    for (const char* text : {"10.0.0.0", "10.255.255.255", "::ffff:10.1.2.3", "192.0.2.128",
                             "192.0.2.255", "fd00::", "fdff:ffff::1", "2001:db8::8", "2001:db8::f"})
        EXPECT_TRUE(list.allows("h", address(text))) << text;
    for (const char* text :
         {"9.255.255.255", "11.0.0.0", "192.0.2.127", "192.0.3.128", "fc00::1",
          "fe00::", "2001:db8::7", "2001:db8::10", "::10.0.0.1", "64:ff9b::10.0.0.1"})
        EXPECT_FALSE(list.allows("h", address(text))) << text;
}

TEST(HostList, AWholeNetworkCoversItsFamilyOnly) {
    EXPECT_TRUE(hosts("0.0.0.0/0").allows("h", address("127.0.0.1")));
    EXPECT_FALSE(hosts("0.0.0.0/0").allows("h", address("::1")));
    EXPECT_TRUE(hosts("::/0").allows("h", address("::1")));
    EXPECT_FALSE(hosts("::/0").allows("h", address("127.0.0.1")));
    EXPECT_FALSE(hosts("::/0").allows("h", address("::ffff:127.0.0.1")));
    EXPECT_TRUE(hosts("::ffff:0:0/96").allows("h", address("192.0.2.1")));
}

TEST(HostList, RefuseMalformedEntriesAndShowAnExample) {
    for (const char* list : {",",
                             "example.com,",
                             ",example.com",
                             "a,,b",
                             "*",
                             "*.",
                             "*example.com",
                             "a.*.com",
                             "*.*.com",
                             "example..com",
                             ".example.com",
                             "exa mple.com",
                             "example.com:443",
                             "https://example.com",
                             "example.com/8",
                             "\"example.com\"",
                             "[::1]",
                             "::1%lo",
                             "b\u00fc.de",
                             "10.0.0.0/33",
                             "10.0.0.0/-1",
                             "10.0.0.0/",
                             "10.0.0.0/8/8",
                             "10.0.0.0/255.0.0.0",
                             "10.0.0.1/8",
                             "fd00::/129",
                             "fd00::1/8",
                             "10.0.0.0-10.0.0.9"}) {
        const Result<HostList> parsed = HostList::parse(list);
        ASSERT_FALSE(parsed) << list;
        EXPECT_EQ(parsed.error().kind, ErrorKind::invalid_value);
        EXPECT_THAT(parsed.error().message, HasSubstr("is not a host name, address or network"));
        EXPECT_THAT(parsed.error().hint, HasSubstr("example.com"));
    }
}

TEST(HostList, RefuseOddSpellingsOfAddresses) {
    for (const char* list : {"127.1", "2130706433", "0x7f000001", "0x7f.1", "127.0x1", "0177.0.0.1",
                             "127.0.0.1.", "*.127", "127.0.0.0x1", "1.2.3.4.5", "0x"})
        EXPECT_FALSE(HostList::parse(list)) << list;
    for (const char* list : {"1.example", "0x7f.test", "3com", "a-b_c.d", "10.in-addr.arpa"})
        EXPECT_TRUE(HostList::parse(list)) << list;
}

TEST(HostList, AListWithDefaultAllowsMoreThanAnEmptyOne) {
    for (const char* text : {"default, 127.0.0.1", "127.0.0.1,DEFAULT"}) {
        const HostList list = hosts(text);
        EXPECT_TRUE(list.has_default());
        EXPECT_TRUE(list.allows_unreserved("h", address("127.0.0.1")));
        EXPECT_TRUE(list.allows_unreserved("h", address("192.0.2.1")));
        EXPECT_FALSE(list.allows_unreserved("h", address("127.0.0.2")));
        EXPECT_FALSE(list.allows("default")) << "it is no name";
    }
    EXPECT_FALSE(hosts("127.0.0.1").allows_unreserved("h", address("192.0.2.1")));
}

TEST(AllowedHosts, ARefusalNamesAddressHostAndTheEntryThatIsMissing) {
    EXPECT_EQ(
        AllowedHosts(hosts("")).refusal(address("127.0.0.1"), "localhost."),
        "address 127.0.0.1 of host \"localhost.\" is not allowed; set outbox.allowed_hosts to "
        "'default, localhost'");
    EXPECT_EQ(AllowedHosts(hosts("default")).refusal(address("127.0.0.1"), "127.1"),
              "address 127.0.0.1 of host \"127.1\" is not allowed; add '127.0.0.1' to "
              "outbox.allowed_hosts");
    EXPECT_THAT(AllowedHosts(hosts("a.example")).refusal(address("::1"), "[::1]"),
                HasSubstr("add '::1' to outbox.allowed_hosts"));
}

TEST(AllowedHosts, AListCanOnlyNarrowItsLimit) {
    const Address loopback = address("127.0.0.1"), outside = address("192.0.2.1");
    AllowedHosts open(hosts("default, localhost"));
    EXPECT_TRUE(open.allows_unreserved("localhost", loopback));
    EXPECT_TRUE(open.allows_sockets());
    open.limit_to(hosts(""), "relay.toml");
    EXPECT_FALSE(open.allows_unreserved("localhost", loopback));
    EXPECT_FALSE(open.allows_reserved("localhost", loopback));
    EXPECT_FALSE(open.allows_sockets());
    EXPECT_TRUE(open.allows_reserved("h", outside));

    AllowedHosts narrow(hosts("*.example.com, 127.0.0.1"));
    narrow.limit_to(hosts("a.example.com, default, localhost"), "relay.toml");
    EXPECT_TRUE(narrow.allows_unreserved("a.example.com", loopback));
    EXPECT_TRUE(narrow.allows_unreserved("b.example.com", outside));
    EXPECT_FALSE(narrow.allows_unreserved("b.example.com", address("127.0.0.2")));
    EXPECT_FALSE(narrow.allows_unreserved("a.example.org", outside));
    EXPECT_FALSE(narrow.allows_sockets()) << "the list itself does not allow them";
}

TEST(AllowedHosts, WithoutALimitTheDefaultMayHaveReservedAddresses) {
    const AllowedHosts open(hosts(""));
    EXPECT_TRUE(open.allows_reserved("h", address("127.0.0.1")));
    EXPECT_FALSE(open.allows_unreserved("h", address("127.0.0.1")));
    EXPECT_TRUE(open.allows_sockets());
    const AllowedHosts narrow(hosts("example.com"));
    EXPECT_FALSE(narrow.allows_reserved("h", address("127.0.0.1")));
    EXPECT_FALSE(narrow.allows_sockets());
    EXPECT_EQ(narrow.refusal_of_socket("/run/postgresql"),
              "Unix socket \"/run/postgresql\" is not allowed; add 'localhost' to "
              "outbox.allowed_hosts");
}

TEST(AllowedHosts, ARefusalSaysWhereTheLimitIs) {
    AllowedHosts limited(hosts("localhost"));
    limited.limit_to(hosts(""), "[databases.orders] of relay.toml");
    EXPECT_EQ(limited.refusal(address("127.0.0.1"), "localhost"),
              "address 127.0.0.1 of host \"localhost\" is not allowed; set allowed_hosts in "
              "[databases.orders] of relay.toml to 'default, localhost'");
    EXPECT_THAT(limited.refusal(address("192.0.2.1"), "example.com"),
                HasSubstr("add 'example.com' to outbox.allowed_hosts"));
    limited.limit_to(hosts("example.com"), "[databases.orders] of relay.toml");
    EXPECT_EQ(limited.refusal_of_socket("/run"),
              "Unix socket \"/run\" is not allowed; add 'localhost' to allowed_hosts in "
              "[databases.orders] of relay.toml");
}

}  // namespace
}  // namespace outbox
