// relay.toml, flags and variables: what they mean, and what is said about mistakes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "relay/configure/settings.hpp"
#include "unit/mutations.hpp"
#include "unit/relay/configuration.hpp"

namespace outbox::relay {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

constexpr const char* complete = R"(
name = "relay-1"
lease = "20s"
shutdown_timeout = 500
memory = "1GB"
listen = "127.0.0.1:8080"
log_format = "json"
log_level = "debug"

[databases.orders]
url = "postgresql://relay@db.example.com/orders"
password = { env = "ORDERS_PASSWORD" }
destinations = ["search-*", "mail"]
session = "pooled"
connections = 3
poll_min = "10ms"
poll_max = "2s"
allowed_hosts = "*.example.com, 10.0.0.0/8"
trusted = true

[databases.stock]
url = "host=/run/postgresql dbname=stock"

[credentials.search]
token = { file = "token" }
urls = ["https://search.example.com/*"]
databases = "orders"
[credentials.mail]
machine_identity = true
urls = ["*"]
user = "me"
password = "secret"
)";

class Configure : public testing::Test, protected Configuration {};

TEST_F(Configure, ACompleteFile) {
    variables["ORDERS_PASSWORD"] = "from environment";
    write("token", "from file\n");
    const RelayConfig config = load(complete);
    ASSERT_EQ(complaints(), "");
    EXPECT_EQ(config.name, "relay-1");
    EXPECT_EQ(config.lease, seconds(20));
    EXPECT_EQ(config.shutdown_timeout, milliseconds(500));
    EXPECT_EQ(config.memory, 1024U * 1024 * 1024);
    EXPECT_EQ(config.listen, "127.0.0.1:8080");
    EXPECT_EQ(config.log_format, LogFormat::json);
    EXPECT_EQ(config.log_level, LogLevel::debug);

    ASSERT_EQ(config.databases.size(), 2u);
    const DatabaseConfig& orders = config.databases[0];
    EXPECT_EQ(orders.name, "orders");
    EXPECT_EQ(orders.url, "postgresql://relay@db.example.com/orders");
    EXPECT_EQ(orders.password, "from environment");
    EXPECT_THAT(orders.destinations, ElementsAre("search-*", "mail"));
    EXPECT_TRUE(orders.serves("search-eu"));
    EXPECT_FALSE(orders.serves("catalog"));
    EXPECT_EQ(orders.session, SessionMode::pooled);
    EXPECT_EQ(orders.connections, 3u);
    EXPECT_EQ(orders.poll_min, milliseconds(10));
    EXPECT_EQ(orders.poll_max, seconds(2));
    EXPECT_EQ(orders.allowed_hosts, "*.example.com, 10.0.0.0/8");
    EXPECT_TRUE(orders.trusted);
    const DatabaseConfig& stock = config.databases[1];
    EXPECT_FALSE(stock.trusted);
    EXPECT_EQ(stock.session, SessionMode::automatic);
    EXPECT_EQ(stock.connections, 2u);
    EXPECT_EQ(stock.poll_min, std::nullopt);
    EXPECT_TRUE(stock.serves("anything"));

    EXPECT_THAT(config.credentials.at("search"), ElementsAre(Option{"token", "from file"}));
    EXPECT_THAT(config.credentials.at("mail"),
                ElementsAre(Option{"password", "secret"}, Option{"user", "me"}));
    const CredentialScope& scope = config.credential_scopes.at("search");
    EXPECT_TRUE(scope.allows_url("https://search.example.com/events"));
    EXPECT_FALSE(scope.allows_url("https://search.example.com.other.example/"));
    EXPECT_TRUE(scope.allows_database("orders"));
    EXPECT_FALSE(scope.allows_database("stock"));
    EXPECT_FALSE(scope.machine_identity);
    EXPECT_TRUE(config.credential_scopes.at("mail").allows_database("any"));
    EXPECT_TRUE(config.credential_scopes.at("mail").allows_url("any"));
    EXPECT_TRUE(config.credential_scopes.at("mail").machine_identity);
}

TEST_F(Configure, AFlagReplacesAVariableAndAVariableReplacesAKey) {
    constexpr const char* file = "lease = \"20s\"\n[databases.d]\nurl = \"dbname=d\"\n";
    EXPECT_EQ(load(file).lease, seconds(20));
    variables["OUTBOX_LEASE"] = "30s";
    EXPECT_EQ(load(file).lease, seconds(30));
    set_flag("lease", "40s");
    EXPECT_EQ(load(file).lease, seconds(40));
    EXPECT_EQ(complaints(), "");
    // A value that is replaced is not looked at.
    variables["OUTBOX_LEASE"] = "none";
    load(file);
    EXPECT_EQ(complaints(), "");
}

TEST_F(Configure, DefaultsAreThoseOfTheStruct) {
    const RelayConfig config = load("[databases.d]\nurl = \"dbname=d\"\n");
    EXPECT_EQ(complaints(), "");
    EXPECT_EQ(config.lease, RelayConfig().lease);
    EXPECT_EQ(config.shutdown_timeout, RelayConfig().shutdown_timeout);
    EXPECT_EQ(config.memory, RelayConfig().memory);
    EXPECT_EQ(config.listen, "");
    EXPECT_EQ(config.log_level, LogLevel::info);
    EXPECT_THAT(config.name, testing::EndsWith('-' + std::to_string(getpid())));
    EXPECT_FALSE(config.once || config.check);
}

TEST_F(Configure, ADatabaseWithoutAFile) {
    variables["OUTBOX_DATABASE_URL"] = "postgresql://relay:secret@db.example.com/orders";
    variables["OUTBOX_DESTINATIONS"] = "a, b";
    variables["OUTBOX_ONCE"] = "on";
    const RelayConfig config = load();
    EXPECT_EQ(complaints(), "");
    ASSERT_EQ(config.databases.size(), 1u);
    EXPECT_THAT(config.databases[0].destinations, ElementsAre("a", "b"));
    EXPECT_TRUE(config.once);
}

TEST_F(Configure, TheFileMayBeNamedByAVariable) {
    variables["OUTBOX_CONFIG"] = write("other.toml", "[databases.d]\nurl = \"dbname=d\"\n");
    EXPECT_EQ(load().databases.size(), 1u);
    EXPECT_EQ(complaints(), "");
}

// -------------------------------------------------------------------------------------------------
// Mistakes
// -------------------------------------------------------------------------------------------------

struct Mistake {
    const char* toml;
    const char* complaint;  // "message|detail|hint"
};

TEST_F(Configure, EachMistakeIsReportedWithItsLine) {
    const std::string database = "[databases.d]\nurl = \"dbname=d\"\n";
    const Mistake mistakes[] = {
        {"leese = \"3s\"\n", "1: unknown key \"leese\"||Did you mean \"lease\"? Valid keys are: "},
        {"\n\ncompletely_different = 1\n", "3: unknown key \"completely_different\"||Valid keys"},
        {"lease = \"1s\"\n", "1: invalid value for option \"lease\"||Write a duration from 2s"},
        {"lease = \"1 day\"\n", "1: invalid value for option \"lease\"||"},
        {"lease = 1.5\n", "1: invalid value for \"lease\"||Write \"text\""},
        {"lease = [\"1s\"]\n", "1: invalid value for \"lease\"||"},
        {"lease = 1979-05-27\n", "1: invalid value for \"lease\"||"},
        {"name = \"\"\n", "1: invalid value for option \"name\""},
        {"name = \"a\\nb\"\n", "1: invalid value for option \"name\""},
        {"listen = \"8080\"\n", "1: invalid value for option \"listen\"||Write an address"},
        {"log_format = \"xml\"\n", "invalid value for option \"log_format\"||Write \"text\" or"},
        {"shutdown_timeout = \"0\"\n", "invalid value for option \"shutdown_timeout\"|Invalid dur"},
        {"memory = 67108864\n", "1: invalid value for option \"memory\"||Write a number of bytes"},
        {"memory = \"15MB\"\n", "1: invalid value for option \"memory\""},
        {"memory = \"65GB\"\n", "1: invalid value for option \"memory\""},
        {"memory = \"-1GB\"\n", "1: invalid value for option \"memory\""},
        {"databases = 1\n", "1: \"databases\" is not a section||Write it as [databases]."},
        {"credentials = 1\n", "1: \"credentials\" is not a section"},
        {"[credentials]\na = 1\n", "2: \"credentials.a\" is not a section"},
        {"name = { env = \"NOT_SET\" }\n",
         "1: environment variable \"NOT_SET\" for \"name\" is not"},
        {"name = { env = \"A\", file = \"b\" }\n", "1: invalid value for \"name\""},
        {"name = { path = \"A\" }\n", "1: invalid value for \"name\""},
        {"name = { file = \"missing\\u0000\" }\n", "1: invalid value for \"name\""},
        {"[databases.e]\nurl = \"dbname=e\"\npassword = \"s3cret\\u0000of e\"\n",
         "3: value for \"password\" has a zero byte||"},
        {"[databases.e]\nurl = \"dbname=e\"\ndestinations = [\"d\\u0000e\"]\n",
         "3: value for \"destinations\" has a zero byte||"},
        {"name = { env = 1 }\n", "1: invalid value for \"name\""},
        {"name = { file = \"missing\" }\n", "1: could not read the file for \"name\"|"},
        {"[databases.e]\n", "[databases.e]: \"url\" is required||Write for example"},
        {"[databases.e]\nurl = \"\"\n", "2: option \"url\" must not be empty"},
        {"[databases.e]\nurl = \"nonsense\"\n",
         "2: invalid connection string||Write postgresql://"},
        {"[databases.e]\nurl = \"dbname=e\"\npol_min = 1\n",
         "unknown key \"pol_min\"||Did you mean"},
        {"[databases.e]\nurl = \"dbname=e\"\nconnections = 0\n", "\"connections\"||Write a number"},
        {"[databases.e]\nurl = \"dbname=e\"\ndestinations = [1]\n", "element of \"destinations\""},
        {"[databases.e]\nurl = \"dbname=e\"\ndestinations = []\n",
         "option \"destinations\"||Write"},
        {"[databases.e]\nurl = \"dbname=e\"\nallowed_hosts = \"10.0.0.0/99\"\n",
         "\"allowed_hosts\"|"},
        {"[databases.e]\nurl = \"dbname=e\"\ntrusted = \"yes\"\n",
         "invalid value for option \"trusted\"||"},
        {"[databases.e]\nurl = \"dbname=e\"\npoll_min = 9\npoll_max = 8\n", "is longer than"},
        {"[databases.\"\\n\"]\nurl = \"dbname=e\"\n", "invalid name of a database"},
        {"[credentials.c]\npasswort = \"x\"\nurls = \"*\"\n",
         "2: invalid option \"passwort\"||Valid options are:"},
        {"[credentials.c]\nurl = \"null:\"\nurls = \"*\"\n", "2: invalid option \"url\""},
        {"[credentials.c]\nmachine_identity = \"yes\"\nurls = \"*\"\n",
         "2: invalid value for \"machine_identity"},
        {"[credentials.c]\ntoken = \"x\"\n", "\"urls\" is required|"},
        {"[databases.e]\nurl = \"service=no-such-service\"\n", "service"},
        {"a = 1\na = 2\n", "2: invalid TOML|"},
    };
    for (const Mistake& mistake : mistakes) {
        // A database, unless the mistake leaves no place for one.
        const bool has_place = !std::string(mistake.toml).starts_with("databases");
        load(mistake.toml + (has_place ? database : ""));
        EXPECT_EQ(errors.size(), 1u) << complaints();
        EXPECT_THAT(complaints(), HasSubstr(mistake.complaint)) << mistake.toml;
    }
}

TEST_F(Configure, AllMistakesAreReported) {
    load("leese = 1\nlog_level = \"x\"\n[databases.d]\nconnections = 100\n");
    EXPECT_EQ(errors.size(), 4u) << complaints();
}

TEST_F(Configure, NoMistakeShowsASecret) {
    const char* secret = "hunter2secret";
    for (const char* toml : {
             "[databases.d]\nurl = \"postgresql://u:hunter2secret@[h/d\"\n",
             "[databases.d]\nurl = \"host=h password=hunter2secret dbname\"\n",
             "[databases.d]\nurl = \"dbname=d\"\npassword = hunter2secret\n",
             "[databases.d]\nurl = \"dbname=d\"\npassword = \"hunter2secret\n\"\n",
             "[databases.d]\nurl = \"dbname=d\"\npassword = \"hunter2secret\\q\"\n",
             "[databases.d]\nurl = \"dbname=d\"\npassword = \"hunter2secret\\u0001\"\n",
             "[databases.d]\nurl = \"dbname=d\"\npassword = [\"hunter2secret\"]\n",
             "[credentials.c]\npassword = \"hunter2secret\\u0001\"\n",
             "[credentials.c]\npasswort = \"hunter2secret\"\n",
         }) {
        load(toml);
        EXPECT_FALSE(errors.empty()) << toml;
        EXPECT_THAT(complaints(), Not(HasSubstr(secret))) << toml;
    }
}

TEST_F(Configure, AFileThatCannotBeRead) {
    arguments.config = path("missing.toml");
    load();
    EXPECT_THAT(complaints(), HasSubstr("missing.toml\": No such file or directory"));

    mkfifo(path("pipe").c_str(), 0600);  // nobody writes
    arguments.config = path("pipe");
    load();
    EXPECT_THAT(complaints(), HasSubstr("could not read"));

    load(std::string(2 * 1024 * 1024, '\n'));
    EXPECT_THAT(complaints(), HasSubstr("File too large"));
}

TEST_F(Configure, FilesOfSecretsAreRegularAndSmall) {
    constexpr const char* toml =
        "[databases.d]\nurl = \"dbname=d\"\npassword = { file = \"secret\" }\n";
    mkfifo(path("secret").c_str(), 0600);
    load(toml);
    EXPECT_THAT(complaints(), HasSubstr("could not read the file for \"password\""));
    std::filesystem::remove(path("secret"));

    write("secret", std::string(100'000, 'x'));
    load(toml);
    EXPECT_THAT(complaints(), HasSubstr("File too large"));

    for (const char* text : {"two words", "two words\n", "two words\r\n"}) {
        write("secret", text);
        EXPECT_EQ(load(toml).databases[0].password, "two words");
        EXPECT_EQ(complaints(), "");
    }
    write("secret", "one\ntwo\n");
    load(toml);
    EXPECT_THAT(complaints(), HasSubstr("control characters"));
}

TEST_F(Configure, ThereMustBeADatabase) {
    load();
    EXPECT_THAT(complaints(), StartsWith("there is no database to serve||Write [databases.NAME]"));

    variables["OUTBOX_SESSION"] = "pooled";
    load("[databases.d]\nurl = \"dbname=d\"\n");
    EXPECT_THAT(complaints(), StartsWith("OUTBOX_SESSION is about a database without a section|"));
}

TEST_F(Configure, NoPasswordOnTheCommandLine) {
    arguments.database["url"] = {"postgresql://relay:hunter2secret@h/d", "--database-url", false};
    load();
    EXPECT_THAT(complaints(), HasSubstr("--database-url: password on the command line|"));
    EXPECT_THAT(complaints(), Not(HasSubstr("hunter2secret")));
}

// -------------------------------------------------------------------------------------------------
// Addresses and names
// -------------------------------------------------------------------------------------------------

TEST(ListenAddress, IsHostAndPort) {
    const auto parts = [](const char* text) -> std::string {
        const Result<ListenAddress> address = parse_listen_address(text);
        return address ? address.value().host + ' ' + std::to_string(address.value().port) : "-";
    };
    EXPECT_EQ(parts("127.0.0.1:8080"), "127.0.0.1 8080");
    EXPECT_EQ(parts("[::1]:8080"), "::1 8080");
    EXPECT_EQ(parts(":0"), " 0");
    for (const char* wrong :
         {"", "8080", "::1:8080", "h:", "h:x", "h:65536", "h:-1", "[h]:1", "h\n:1", "[::1]"})
        EXPECT_EQ(parts(wrong), "-") << wrong;
}

TEST(Settings, NamesOfFlagsAndVariables) {
    EXPECT_EQ(flag_of("shutdown_timeout", false), "--shutdown-timeout");
    EXPECT_EQ(variable_of("shutdown_timeout", false), "OUTBOX_SHUTDOWN_TIMEOUT");
    EXPECT_EQ(flag_of("url", true), "--database-url");
    EXPECT_EQ(variable_of("password", true), "OUTBOX_DATABASE_PASSWORD");
}

TEST(Settings, DescriptionsAreWithoutMarkdownOnATerminal) {
    EXPECT_EQ(plain_text("Where [spans](tracing.md#spans) go, or `none`."),
              "Where spans go, or none.");
    for (const auto& settings : {process_settings(), database_settings()})
        for (const Setting& setting : settings)
            EXPECT_THAT(plain_text(setting.spec.description),
                        AllOf(Not(HasSubstr("`")), Not(HasSubstr("]("))));
}

TEST_F(Configure, RandomInputIsReadOrRefused) {
    Mutations files({complete, "a = { b = [1, 2.5, \"\"\"x\"\"\"] }\n[[c]]\nd.e = 1979-05-27\n"},
                    "[]{}=\"'#.,\n\\0 a");
    for (int i = 0; i < 2000; i++)
        load(files.next());
}

TEST_F(Configure, DeepNestingIsRefused) {
    load("a = " + std::string(100'000, '['));
    EXPECT_THAT(complaints(), HasSubstr("invalid TOML"));
    std::string tables = "a = ";
    for (int i = 0; i < 50'000; i++)
        tables += "{a=";
    load(tables);
    EXPECT_THAT(complaints(), HasSubstr("invalid TOML"));
    std::string keys = "a";
    for (int i = 0; i < 50'000; i++)
        keys += ".a";
    load(keys + "=1");
    EXPECT_FALSE(errors.empty());
    load("[" + keys + "]\n");
    EXPECT_FALSE(errors.empty());
}

}  // namespace
}  // namespace outbox::relay
