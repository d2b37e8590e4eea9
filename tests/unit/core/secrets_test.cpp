// Credentials in what a peer says, in all the forms it may say them in.
#include "core/secrets.hpp"

#include <gtest/gtest.h>

#include <string>

#include "core/destination.hpp"

namespace outbox {
namespace {

std::string concealed(const Secrets& secrets, std::string text) {
    secrets.conceal(text);
    return text;
}

TEST(Secrets, AreTakenOutInEveryForm) {
    Secrets secrets;
    secrets.add("p\"ss/w rd+1?>");
    for (const char* form : {"p\"ss/w rd+1?>", "cCJzcy93IHJkKzE/Pg", "cCJzcy93IHJkKzE_Pg",
                             "p%22ss%2Fw%20rd%2B1%3F%3E", "p%22ss%2fw%20rd%2b1%3f%3e",
                             "p\\\"ss/w rd+1?>"}) {
        EXPECT_EQ(concealed(secrets, std::string("not <") + form + ">!"), "not <***>!") << form;
        EXPECT_EQ(concealed(secrets, form), "***") << form;
    }
}

TEST(Secrets, OfADestinationAreAllItHas) {
    Destination destination;
    destination.user = "bob";
    destination.password = "password-1";
    destination.token = "token-12";
    destination.secret_access_key = "secret-access-key";
    destination.session_token = "session-token";
    const Secrets secrets(destination);
    EXPECT_EQ(concealed(secrets, "password-1 token-12 secret-access-key session-token"),
              "*** *** *** ***");
    EXPECT_EQ(concealed(secrets, "Basic Ym9iOnBhc3N3b3JkLTE="), "Basic ***=");
    EXPECT_EQ(concealed(secrets, "no bob"), "no bob");
}

TEST(Secrets, ThatAreShortConcealNoWords) {
    Secrets secrets;
    secrets.add("");
    secrets.add("the");
    EXPECT_EQ(concealed(secrets, "the request"), "the request");
    secrets.add("pass");
    EXPECT_EQ(concealed(secrets, "it was pass"), "it was ***");
    EXPECT_EQ(concealed(secrets, "it was pas"), "it was pas");
}

TEST(Secrets, WithoutAnyLeaveEverything) {
    EXPECT_EQ(concealed(Secrets(Destination{}), "anything"), "anything");
}

}  // namespace
}  // namespace outbox
