// Checks over HTTP against a scripted server on loopback: their requests and the order of these.
#include "sinks/request_check.hpp"

#include <gmock/gmock.h>
#include <poll.h>

#include "net/transport.hpp"
#include "unit/scripted_peer.hpp"

namespace outbox {

static void PrintTo(const Finding& finding, std::ostream* out) {
    *out << finding.subject << (finding.ok ? " ok " : " not ok ") << finding.detail;
}

namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// Credentials that get as far as the test says.
class ScriptedCredentials final : public Credentials {
  public:
    explicit ScriptedCredentials(std::vector<State> states) : states_(std::move(states)) {}

    Micros deadline() const noexcept override { return 0; }
    State need(Micros now) override { return step(now); }
    State step(Micros) override {
        return calls_ < states_.size() ? states_[calls_++] : states_.back();
    }
    void rejected() noexcept override {}
    const std::string& error() const noexcept override { return error_; }

  private:
    const std::vector<State> states_;
    std::size_t calls_ = 0;
    const std::string error_ = "there are none";
};

// Requests some paths, and repeats the answers.
class Questions final : public RequestCheck {
  public:
    Questions(TransportConfig config, std::vector<std::string> paths,
              std::unique_ptr<Credentials> credentials)
        : paths_(std::move(paths)) {
        use(std::move(config), std::move(credentials));
    }

  private:
    bool ask(Exchange& exchange, std::vector<Finding>&) override {
        if (asked_ == paths_.size())
            return false;
        exchange.method = "GET";
        exchange.content.headers = "Authorization: Bearer s3cret-token\r\n";
        exchange.target = paths_[asked_++];
        return true;
    }
    void judge(const Exchange& exchange, std::vector<Finding>& findings) override {
        findings.push_back({exchange.target, exchange.status == 200, explain(exchange)});
    }

    const std::vector<std::string> paths_;
    std::size_t asked_ = 0;
};

class ChecksOverHttp : public testing::Test {
  protected:
    void SetUp() override { ASSERT_TRUE(initialize_curl()); }

    TransportConfig config(const std::string& url, std::string allowed = "127.0.0.1") {
        return {.clock = clock_,
                .url_text = url,
                .url = Url::parse(url).value(),
                .allowed_hosts = AllowedHosts::parse(allowed).value(),
                .connect_timeout = seconds(5),
                .request_timeout = request_timeout_,
                .ca_file = "",
                .authorization = "",
                .max_connections = 1};
    }

    std::vector<Finding> ask(std::vector<std::string> paths,
                             std::unique_ptr<Credentials> credentials = nullptr) {
        Questions questions(config(peer_.url()), std::move(paths), std::move(credentials));
        return run(questions);
    }
    std::vector<Finding> reach(const std::string& url, std::string allowed = "127.0.0.1") {
        ConnectionCheck check(config(url, std::move(allowed)));
        return run(check);
    }

    // Drives the check as the worker does.
    std::vector<Finding> run(Check& check) {
        std::vector<Finding> findings;
        const Micros give_up = clock_.now() + seconds(20);
        while (!check.step(clock_.now(), findings)) {
            if (clock_.now() > give_up) {
                ADD_FAILURE() << "the check does not end";
                break;
            }
            const Micros due = std::min(check.deadline(), give_up);
            const Micros left = std::max<Micros>(0, due - clock_.now());
            pollfd watched{check.descriptor(), POLLIN, 0};
            poll(&watched, 1, static_cast<int>((left + 999) / 1000));
        }
        return findings;
    }

    ScriptedPeer peer_;
    SystemClock clock_;
    Micros request_timeout_ = seconds(10);
};

MATCHER_P2(Ok, subject, detail, "") {
    return arg.ok && arg.subject == subject &&
           ExplainMatchResult(HasSubstr(detail), arg.detail, result_listener);
}
MATCHER_P2(NotOk, subject, detail, "") {
    return !arg.ok && arg.subject == subject &&
           ExplainMatchResult(HasSubstr(detail), arg.detail, result_listener);
}

TEST_F(ChecksOverHttp, ReachAServerWithoutARequest) {
    EXPECT_THAT(reach(peer_.url()),
                ElementsAre(Ok("address", "127.0.0.1 is 127.0.0.1"), Ok("connection", "port ")));
    EXPECT_THAT(peer_.requests(), IsEmpty());
}

TEST_F(ChecksOverHttp, SayAtWhichStepTheyFailed) {
    EXPECT_THAT(reach("http://nowhere.invalid/"), ElementsAre(NotOk("address", "nowhere.invalid")));
    EXPECT_THAT(reach(peer_.url(), "10.0.0.0/8"),
                ElementsAre(NotOk("address", "outbox.allowed_hosts")));
    EXPECT_THAT(reach("http://127.0.0.1:1/"),
                ElementsAre(Ok("address", ""), NotOk("connection", "127.0.0.1")));
    EXPECT_EQ(peer_.connections(), 0);
}

TEST_F(ChecksOverHttp, AskOneQuestionAfterTheOther) {
    peer_.then({.bytes = "HTTP/1.1 404 x\r\nContent-Length: 4\r\n\r\nnone"});
    peer_.then({.bytes = "HTTP/1.1 200 x\r\nContent-Length: 3\r\n\r\none"});
    EXPECT_THAT(ask({"/a", "/b"}),
                ElementsAre(Ok("address", ""), Ok("connection", ""), NotOk("/a", "HTTP 404: none"),
                            Ok("/b", "HTTP 200: one")));
    EXPECT_THAT(peer_.requests(),
                ElementsAre(StartsWith("GET /a HTTP/1.1\r\n"), StartsWith("GET /b HTTP/1.1\r\n")));
}

TEST_F(ChecksOverHttp, DoNotRepeatCredentials) {
    peer_.then({.bytes = "HTTP/1.1 401 x\r\nContent-Length: 20\r\n\r\nwho is s3cret-token?"});
    EXPECT_THAT(ask({"/a"}), ElementsAre(Ok("address", ""), Ok("connection", ""),
                                         NotOk("/a", "HTTP 401: who is ***?")));
}

TEST_F(ChecksOverHttp, WaitForCredentials) {
    using State = Credentials::State;
    const auto findings = ask({"/a"}, std::make_unique<ScriptedCredentials>(std::vector{
                                          State::pending, State::pending, State::ready}));
    EXPECT_THAT(findings, ElementsAre(Ok("address", ""), Ok("connection", ""),
                                      Ok("credentials", ""), NotOk("/a", "HTTP 204")));
}

TEST_F(ChecksOverHttp, AskNothingWithoutCredentials) {
    using State = Credentials::State;
    for (const auto& states : {std::vector{State::failed}, {State::pending, State::failed}})
        EXPECT_THAT(ask({"/a"}, std::make_unique<ScriptedCredentials>(states)),
                    ElementsAre(Ok("address", ""), Ok("connection", ""),
                                NotOk("credentials", "there are none")));
    EXPECT_THAT(peer_.requests(), IsEmpty());
}

TEST_F(ChecksOverHttp, DoNotWaitForever) {
    request_timeout_ = milliseconds(300);
    peer_.then({.bytes = ""});
    EXPECT_THAT(ask({"/a"}),
                testing::Contains(NotOk("/a", "no answer within 300ms (request_timeout)")));
}

TEST_F(ChecksOverHttp, CanBeGivenUpAtAnyStep) {
    for (int steps = 0; steps < 6; steps++) {
        Questions questions(config(peer_.url()), {"/a", "/b"}, nullptr);
        std::vector<Finding> findings;
        for (int i = 0; i < steps; i++)
            questions.step(clock_.now(), findings);
    }
}

}  // namespace
}  // namespace outbox
