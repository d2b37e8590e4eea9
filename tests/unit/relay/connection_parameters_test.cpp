// How a URL, the environment and relay.toml become the parameters of a connection; and what is said
// about one that fails.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>

#include "core/libpq_error.hpp"
#include "relay/configure/connection.hpp"

namespace outbox::relay {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Named = std::map<std::string, std::string>;

// As libpq reads them: the last one of a name counts.
Named parameters_of(const DatabaseConfig& database, const LibpqParameters& environment) {
    Named last;
    for (const auto& [name, value] : connection_parameters(database, environment, "test").libpq)
        last[name] = value;
    return last;
}

TEST(ConnectionParameters, TheUrlReplacesTheEnvironment) {
    const LibpqParameters environment{{"dbname", "postgres"}, {"host", "elsewhere"},
                                      {"user", "me"},         {"password", "not this"},
                                      {"port", "5433"},       {"connect_timeout", "3"}};
    const Named found =
        parameters_of({.url = "postgresql://relay:s3cr3t@db.example.com/orders"}, environment);
    EXPECT_EQ(found.at("dbname"), "orders");
    EXPECT_EQ(found.at("host"), "db.example.com");
    EXPECT_EQ(found.at("user"), "relay");
    EXPECT_EQ(found.at("password"), "s3cr3t");
    EXPECT_EQ(found.at("port"), "5433");
    EXPECT_EQ(found.at("connect_timeout"), "3");
}

TEST(ConnectionParameters, NoneHasAUrlInIt) {
    for (const char* url : {"postgresql://relay:s3cr3t@db.example.com/orders",
                            "postgres://relay:s3cr3t@/", "host=h user=relay password=s3cr3t"})
        for (const auto& [name, value] :
             connection_parameters({.url = url}, {{"dbname", "postgres"}}, "test").libpq)
            EXPECT_TRUE(name == "password" || value.find("s3cr3t") == value.npos) << name << value;
}

TEST(ConnectionParameters, ThePasswordOfItsOwnReplacesThatOfTheUrl) {
    EXPECT_EQ(parameters_of({.url = "postgresql://r:a@h/d", .password = "b"}, {}).at("password"),
              "b");
}

TEST(ConnectionParameters, APasswordIsNotCut) {
    using namespace std::string_literals;
    for (const LibpqParameters& parameters :
         {LibpqParameters{{"password", "s3cret\0of all"s}}, {{"host\0x"s, "h"}}}) {
        const LibpqConnection connected = connect({parameters, SessionMode::automatic});
        EXPECT_EQ(connected.connection, nullptr);
        EXPECT_THAT(connected.failure, AllOf(HasSubstr("zero byte"), Not(HasSubstr("s3cret"))));
    }
}

// libpq takes them in this order: the URL, the service, the environment.
TEST(ConnectionParameters, AServiceReplacesTheEnvironment) {
    const std::string path = testing::TempDir() + "pg_service.conf";
    std::ofstream(path) << "[orders]\nhost=db.example.com\nport=5434\nuser=of-the-service\n";
    setenv("PGSERVICEFILE", path.c_str(), 1);
    setenv("PGHOST", "elsewhere", 1);
    setenv("PGAPPNAME", "of-the-environment", 1);
    const auto service = parameters_of_service("orders");
    const auto missing = parameters_of_service("stock");
    for (const char* name : {"PGSERVICEFILE", "PGHOST", "PGAPPNAME"})
        unsetenv(name);
    EXPECT_EQ(std::getenv("PGSERVICE"), nullptr);
    ASSERT_TRUE(service);
    const Named found = parameters_of(
        {.url = "postgresql://relay@/orders?service=orders", .service = service.value()},
        {{"host", "not this"}, {"port", "1"}});
    EXPECT_EQ(found.at("host"), "db.example.com");
    EXPECT_EQ(found.at("port"), "5434");
    EXPECT_EQ(found.at("user"), "relay");
    EXPECT_EQ(found.at("dbname"), "orders");
    EXPECT_EQ(found.at("application_name"), "of-the-environment");
    EXPECT_FALSE(found.contains("service"));
    ASSERT_FALSE(missing);
    EXPECT_THAT(missing.error().message, HasSubstr("definition of service \"stock\" not found"));
}

// -------------------------------------------------------------------------------------------------
// Errors
// -------------------------------------------------------------------------------------------------

std::string error_with(const char* connection_string) {
    PGconn* connection = PQconnectdb(connection_string);
    std::string error = error_of(connection);
    PQfinish(connection);
    return error;
}

TEST(LibpqError, HasNoPartOfAConnectionStringThatCannotBeRead) {
    for (const char* text : {"postgresql://r:s3cr3t%zz@h/d", "postgresql://r:s3cr3t@[h/d",
                             "password='s3cr3t", "passwort=s3cr3t", "postgresql://h/d?s3cr3t"})
        EXPECT_EQ(error_with(text), "invalid connection string") << text;
}

TEST(LibpqError, HasNoPassword) {
    EXPECT_THAT(error_with("host=/nowhere port=1 user=r password=s3cr3t dbname=d"),
                AllOf(HasSubstr("/nowhere"), Not(HasSubstr("s3cr3t"))));
    PGconn* connection = PQconnectdb("host=/nowhere user=r password=s3cr3t sslpassword=other-1");
    EXPECT_EQ(without_passwords(connection, "no s3cr3t and no other-1"), "no *** and no ***");
    PQfinish(connection);
    EXPECT_EQ(error_of(nullptr), PQerrorMessage(nullptr));
}

TEST(LibpqError, KnowsWhatLibpqTakesForTheNameOfADatabase) {
    for (const char* text : {"postgresql://h", "postgres://", "dbname=d", "a=b"})
        EXPECT_TRUE(is_connection_string(text)) << text;
    for (const char* text : {"", "shop", "postgresql:/h", "http://h"})
        EXPECT_FALSE(is_connection_string(text)) << text;
}

}  // namespace
}  // namespace outbox::relay
