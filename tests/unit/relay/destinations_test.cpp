// Destinations of rows and credentials.
#include "relay/configure/destinations.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace outbox::relay {
namespace {

using testing::HasSubstr;

class MadeDestination : public testing::Test {
  protected:
    MadeDestination() {
        defaults.allowed_hosts = "example.com";
        row.number = 1;
        row.name = "search";
        row.owner = "shop";
        row.options = {{"url", "https://example.com/events"}, {"topics", "a.*"}};
        database.name = "orders";
    }

    Result<Destination> make() { return make_destination(row, defaults, database, config); }
    std::string option(const char* name) {
        const Result<Destination> made = make();
        const std::string* value = made ? made.value().options.find(name) : nullptr;
        return value != nullptr ? *value : "-";
    }
    Error error() {
        const Result<Destination> made = make();
        return made ? Error{ErrorKind::internal, "none"} : made.error();
    }

    void give(const std::string& name, std::vector<Option> options,
              CredentialScope scope = {.urls = {"*"}}) {
        config.credentials[name] = std::move(options);
        config.credential_scopes[name] = std::move(scope);
    }
    std::string why_credentials() { return make().value().needs_credentials_because; }
    bool may_reach(const char* host, const char* address) {
        return make().value().allowed_hosts.allows_unreserved(host, *Address::parse(address));
    }

    DestinationRow row;
    DestinationDefaults defaults;
    DatabaseConfig database;
    RelayConfig config;
};

TEST_F(MadeDestination, HasTheOptionsOfItsRow) {
    row.mapping_options = {{"token", "of the mapping"}};
    const Result<Destination> made = make();
    ASSERT_TRUE(made) << made.error().message;
    EXPECT_EQ(made.value().name, "search");
    EXPECT_EQ(made.value().defaults.user, "shop");
    EXPECT_EQ(why_credentials(), owner_is_no_superuser);
    EXPECT_TRUE(made.value().topics.matches("a.b"));
    EXPECT_FALSE(made.value().topics.matches("b"));
    EXPECT_EQ(option("token"), "of the mapping");
}

TEST_F(MadeDestination, CredentialsReplaceTheMapping) {
    row.mapping_options = {{"user", "of the mapping"}, {"password", "of the mapping"}};
    give("search", {{"password", "of the relay"}});
    EXPECT_EQ(option("user"), "of the mapping");
    EXPECT_EQ(option("password"), "of the relay");
}

TEST_F(MadeDestination, MayNameItsCredentials) {
    give("search", {{"token", "search"}});
    give("other", {{"token", "other"}});
    row.options.push_back({"credentials", "other"});
    EXPECT_EQ(option("token"), "other");
    EXPECT_EQ(option("credentials"), "-");  // not the sink's
    row.options.back().value = "none";
    EXPECT_EQ(error().message, "there are no credentials \"none\"");
    EXPECT_EQ(error().hint, "Write [credentials.none] in relay.toml.");
}

TEST_F(MadeDestination, CredentialsMayBeForSomeDatabasesAndUrls) {
    give("search", {{"token", "secret"}}, {{"orders"}, {"https://example.com/*"}});
    EXPECT_EQ(option("token"), "secret");
    row.options[0].value = "https://example.com.evil.example/events";
    defaults.allowed_hosts = "";
    EXPECT_EQ(error().message, "permission denied for credentials \"search\"");
    row.options[0].value = "https://example.com/events";
    EXPECT_EQ(option("token"), "secret");
    database.name = "stock";
    EXPECT_EQ(error().kind, ErrorKind::not_allowed);
}

TEST_F(MadeDestination, HasNoCredentialsThatNameNoUrls) {
    give("search", {{"token", "secret"}}, {});
    EXPECT_EQ(error().kind, ErrorKind::not_allowed);
}

TEST_F(MadeDestination, OtherHostsThatGetTheCredentialsMustBeAmongTheirUrls) {
    defaults.allowed_hosts = "";
    row.options = {{"url", "kafka://broker.example.com/"},
                   {"sasl_mechanism", "OAUTHBEARER"},
                   {"client_id", "relay"},
                   {"token_endpoint", "https://issuer.example.com/token"},
                   {"schema_registry", "https://registry.example.com"}};
    const std::vector<std::string> urls{"kafka://broker.example.com/",
                                        "https://issuer.example.com/*",
                                        "https://registry.example.com"};
    give("search", {{"client_secret", "secret"}}, {.urls = urls});
    EXPECT_EQ(option("client_secret"), "secret");
    for (const std::size_t changed : {3u, 4u}) {
        const Option before = row.options[changed];
        row.options[changed].value = "https://evil.example.com/token";
        EXPECT_EQ(error().kind, ErrorKind::not_allowed);
        EXPECT_EQ(error().detail,
                  "The option \"" + before.name + "\" is not among those that may have them.");
        row.options[changed] = before;
    }
}

TEST_F(MadeDestination, AParameterThatReplacesTheHostMustBeWritten) {
    defaults.allowed_hosts = "";
    for (const auto& [url, pattern] : std::vector<std::pair<std::string, std::string>>{
             {"postgresql://db.example.com/shop?host=evil.example.com",
              "postgresql://db.example.com/*"},
             {"postgresql://db.example.com/shop?port=1", "postgresql://db.example.com/*"},
             {"pubsub://shop?endpoint=https://evil.example.com", "pubsub://shop*"},
             {"sqs://eu-west-1?endpoint=https://evil.example.com", "sqs://*"}}) {
        row.options[0].value = url;
        give("search", {}, {.urls = {pattern}});
        EXPECT_EQ(error().kind, ErrorKind::not_allowed) << url;
        give("search", {}, {.urls = {pattern + "?*"}});
        EXPECT_TRUE(make()) << url << error().message;
        give("search", {}, {.urls = {url}});
        EXPECT_TRUE(make()) << url << error().message;
    }
    row.options[0].value = "https://example.com/events?page=1";
    give("search", {}, {.urls = {"https://example.com/*"}});
    EXPECT_TRUE(make());
}

TEST_F(MadeDestination, HostsOfATrustedDatabaseAreItsOwn) {
    defaults.allowed_hosts = "169.254.169.254, 127.0.0.1";
    database.trusted = true;
    EXPECT_TRUE(may_reach("h", "169.254.169.254"));
    EXPECT_FALSE(may_reach("h", "192.0.2.1"));
    database.allowed_hosts = "127.0.0.1, 192.0.2.1";
    EXPECT_FALSE(may_reach("h", "169.254.169.254")) << "it can only narrow those of relay.toml";
    EXPECT_FALSE(may_reach("h", "192.0.2.1"));
    EXPECT_TRUE(may_reach("h", "127.0.0.1"));
}

TEST_F(MadeDestination, HostsOfADatabaseThatIsNotTrustedAreNeverThoseOfThisMachine) {
    defaults.allowed_hosts = "default, 169.254.169.254, localhost";
    EXPECT_FALSE(may_reach("h", "169.254.169.254"));
    EXPECT_FALSE(may_reach("localhost", "127.0.0.1"));
    EXPECT_FALSE(make().value().allowed_hosts.allows_reserved("localhost", *Address::parse("::1")));
    EXPECT_FALSE(make().value().allowed_hosts.allows_sockets());
    EXPECT_TRUE(may_reach("h", "192.0.2.1"));
    EXPECT_THAT(make().value().allowed_hosts.refusal(*Address::parse("::1"), "localhost"),
                HasSubstr("set allowed_hosts in [databases.orders] of relay.toml to"));
    database.allowed_hosts = "localhost";
    EXPECT_TRUE(may_reach("localhost", "127.0.0.1"));
    EXPECT_FALSE(may_reach("h", "192.0.2.1"));
    defaults.allowed_hosts = "example.com";
    EXPECT_FALSE(may_reach("localhost", "127.0.0.1"));
}

TEST_F(MadeDestination, HasTheIdentityOfTheMachineOnlyIfTheDatabaseIsTrusted) {
    row.password_required = false;  // says the database
    EXPECT_EQ(why_credentials(),
              "outbox-relay does not trust the database (write trusted = true in "
              "[databases.orders] of relay.toml)");
    database.trusted = true;
    EXPECT_EQ(why_credentials(), "");
    row.password_required = true;
    EXPECT_EQ(why_credentials(), owner_is_no_superuser);
}

TEST_F(MadeDestination, MayBeGivenTheIdentityOfTheMachineByCredentials) {
    for (const bool trusted : {false, true}) {
        database.trusted = trusted;
        row.name = "search";
        give("search", {});
        EXPECT_NE(why_credentials(), "");
        config.credential_scopes["search"].machine_identity = true;
        EXPECT_EQ(why_credentials(), "");
        config.credential_scopes["search"].urls = {"https://other.example.com/*"};
        EXPECT_EQ(error().kind, ErrorKind::not_allowed);
        row.name = "mail";
        EXPECT_NE(why_credentials(), "");
    }
}

TEST_F(MadeDestination, OnlyATrustedDatabaseMayNameFilesOfTheMachine) {
    row.options[0].value = "postgresql://example.com/catalog?sslrootcert=/etc/root.crt";
    row.may_read_files = true;  // says the database
    EXPECT_EQ(error().message,
              "permission denied to name a file of this machine in \"sslrootcert\"");
    EXPECT_EQ(error().hint,
              "Name the file in [credentials.NAME], or write trusted = true in [databases.orders] "
              "of relay.toml.");
    database.trusted = true;
    EXPECT_EQ(error().message, "none");
    row.may_read_files = false;
    EXPECT_THAT(error().message, HasSubstr("permission denied to name a file of the server"));
}

TEST_F(MadeDestination, CredentialsOfTheRelayMayNameFilesOfItsMachine) {
    row.options[0].value = "postgresql://example.com/catalog";
    row.mapping_options = {{"sslcert", "/etc/client.crt"}, {"sslkey", "/etc/client.key"}};
    EXPECT_THAT(error().message, HasSubstr("permission denied to name a file"));
    give("search", row.mapping_options);
    row.mapping_options.clear();
    EXPECT_EQ(option("sslkey"), "/etc/client.key");
}

TEST_F(MadeDestination, IsCheckedAsInCreateServer) {
    row.options.push_back({"colour", "red"});
    EXPECT_EQ(error().message, "invalid option \"colour\"");
    row.options = {{"url", "ftp://example.com/"}};
    EXPECT_EQ(error().message, "URL scheme \"ftp\" is not supported");
    row.options = {{"url", "https://example.com/"}, {"password", "x"}};
    EXPECT_THAT(error().detail, HasSubstr("CREATE USER MAPPING"));
}

TEST(OptionOf, ATextOfTheCatalog) {
    EXPECT_EQ(option_of("url=https://h/?a=b"), (Option{"url", "https://h/?a=b"}));
    EXPECT_EQ(option_of("a="), (Option{"a", ""}));
    EXPECT_EQ(option_of("a"), (Option{"a", ""}));
}

}  // namespace
}  // namespace outbox::relay
