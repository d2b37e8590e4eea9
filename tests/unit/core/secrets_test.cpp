// Credentials in the text of a peer, in all forms that they may have there.
#include "core/secrets.hpp"

#include <gtest/gtest.h>

#include <string>

#include "sinks/registry.hpp"

namespace outbox {
namespace {

std::string concealed(const Secrets& secrets, std::string text) {
    secrets.conceal(text);
    return text;
}

TEST(Secrets, AreRemovedInEveryForm) {
    Secrets secrets;
    secrets.add("p\"ss/w rd+1?>");
    for (const char* form :
         {"p\"ss/w rd+1?>", "cCJzcy93IHJkKzE/Pg", "cCJzcy93IHJkKzE_Pg", "p%22ss%2Fw%20rd%2B1%3F%3E",
          "p%22ss%2fw%20rd%2b1%3f%3e", "p\\\"ss/w rd+1?>"}) {
        EXPECT_EQ(concealed(secrets, std::string("not <") + form + ">!"), "not <***>!") << form;
        EXPECT_EQ(concealed(secrets, form), "***") << form;
    }
}

TEST(Secrets, IncludeAllCredentialsOfADestination) {
    const Secrets secrets(
        parse_destination("d", {{"url", "http://h/"}},
                          {{"user", "bob"}, {"password", "password-1"}, {"token", "token-12"}}, {})
            .value());
    EXPECT_EQ(concealed(secrets, "password-1 token-12"), "*** ***");
    EXPECT_EQ(concealed(secrets, "Basic Ym9iOnBhc3N3b3JkLTE="), "Basic ***=");
    EXPECT_EQ(concealed(secrets, "no bob"), "no bob");
    const Secrets keys(parse_destination("d", {{"url", "sqs://r"}},
                                         {{"access_key_id", "access-key-id"},
                                          {"secret_access_key", "secret-access-key"},
                                          {"session_token", "session-token"}},
                                         {})
                           .value());
    EXPECT_EQ(concealed(keys, "access-key-id secret-access-key session-token"),
              "access-key-id *** ***");
}

TEST(Secrets, IncludeTheValuesOfFixedHeaders) {
    const Secrets secrets(
        parse_destination("d", {{"url", "https://h/"}},
                          {{"headers", "X-Api-Key: s3cret!\nAuthorization: ApiKey another1"}}, {})
            .value());
    EXPECT_EQ(concealed(secrets, "X-Api-Key: s3cret! or another1"), "X-Api-Key: *** or ***");
}

TEST(Secrets, AreConcealedWithAndWithoutTheirMark) {
    const std::string base64 = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    const Secrets secrets(
        parse_destination("d", {{"url", "https://h/"}}, {{"signing_secret", "whsec_" + base64}}, {})
            .value());
    EXPECT_EQ(concealed(secrets, "not whsec_" + base64 + "!"), "not ***!");
    EXPECT_EQ(concealed(secrets, "not " + base64 + "!"), "not ***!");
    EXPECT_EQ(concealed(secrets, "begin with whsec_"), "begin with whsec_");
}

TEST(Secrets, ThatAreShortAreNotConcealed) {
    Secrets secrets;
    secrets.add("");
    secrets.add("the");
    EXPECT_EQ(concealed(secrets, "the request"), "the request");
    secrets.add("pass");
    EXPECT_EQ(concealed(secrets, "it was pass"), "it was ***");
    EXPECT_EQ(concealed(secrets, "it was pas"), "it was pas");
}

TEST(Secrets, LeaveTheTextIfThereAreNone) {
    EXPECT_EQ(concealed(Secrets(Destination{}), "anything"), "anything");
}

}  // namespace
}  // namespace outbox
