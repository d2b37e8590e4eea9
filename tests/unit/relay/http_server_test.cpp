// The HTTP server, and clients that mean harm: slow, huge, many.
#include "relay/observe/http_server.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>

#include "front/http_clients.hpp"
#include "unit/mutations.hpp"

namespace outbox::relay {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

class Client {
  public:
    explicit Client(int port) : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        const sockaddr_in address{
            AF_INET, htons(static_cast<std::uint16_t>(port)), {htonl(INADDR_LOOPBACK)}, {}};
        connected_ =
            connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0;
    }
    ~Client() { close(socket_); }
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    bool connected() const { return connected_; }
    // Returns false if the server has closed the connection.
    bool send(const std::string& text) {
        std::size_t sent = 0;
        while (sent < text.size()) {
            const ssize_t size =
                ::send(socket_, text.data() + sent, text.size() - sent, MSG_NOSIGNAL);
            if (size <= 0)
                return false;
            sent += static_cast<std::size_t>(size);
        }
        return true;
    }
    // Until the server closes.
    std::string receive() {
        std::string text;
        char buffer[4096];
        for (ssize_t size; (size = recv(socket_, buffer, sizeof buffer, 0)) > 0;)
            text.append(buffer, static_cast<std::size_t>(size));
        return text;
    }

  private:
    int socket_;
    bool connected_ = false;
};

class Http : public testing::Test {
  protected:
    Http() {
        figures.beat(SystemClock().now());
        ProcessFigures now;
        now.databases = {{.name = "orders", .ready = true}};
        figures.publish(now);
        auto started = HttpServer::start({"127.0.0.1", 0, "relay-1", "0.2.0"}, figures, log);
        EXPECT_TRUE(started) << started.error().message;
        if (started)
            server = std::move(started.value());
    }

    std::string exchange(const std::string& request) {
        Client client(server->port());
        client.send(request);
        return client.receive();
    }
    std::string get(const std::string& path) {
        return exchange("GET " + path + " HTTP/1.1\r\nHost: x\r\n\r\n");
    }

    Log log{LogFormat::text, LogLevel::error};
    Figures figures;
    std::unique_ptr<HttpServer> server;
};

TEST_F(Http, Pages) {
    EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(get("/metrics"), HasSubstr("Content-Type: application/openmetrics-text"));
    EXPECT_THAT(get("/metrics"), HasSubstr("# EOF\n"));
    EXPECT_THAT(get("/status"), HasSubstr("\"name\":\"relay-1\""));
    EXPECT_THAT(get("/status?x=1"), StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(get("/other"), StartsWith("HTTP/1.1 404"));
    EXPECT_THAT(exchange("HEAD /healthz HTTP/1.1\r\n\r\n"), testing::EndsWith("\r\n\r\n"));
    EXPECT_THAT(exchange("POST /healthz HTTP/1.1\r\nContent-Length: 2\r\n\r\nab"),
                Not(StartsWith("HTTP/1.1 200")));
}

TEST_F(Http, ReadyAndHealthyFollowTheFigures) {
    figures.publish({});
    EXPECT_THAT(get("/readyz"), StartsWith("HTTP/1.1 503"));
    EXPECT_THAT(get("/readyz"), testing::EndsWith("starting\n"));
    EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Http, ASecondProcessDoesNotShareThePort) {
    const auto second =
        HttpServer::start({"127.0.0.1", server->port(), "relay-2", "0.2.0"}, figures, log);
    ASSERT_FALSE(second);
    EXPECT_THAT(second.error().message, HasSubstr("could not listen on \"127.0.0.1\", port"));
}

TEST_F(Http, ARequestInPieces) {
    Client client(server->port());
    for (const char c : std::string("GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"))
        client.send(std::string(1, c));
    EXPECT_THAT(client.receive(), StartsWith("HTTP/1.1 200"));
}

TEST_F(Http, AHugeRequestIsRefused) {
    EXPECT_THAT(exchange("GET /" + std::string(100'000, 'x') + " HTTP/1.1\r\n\r\n"),
                StartsWith("HTTP/1.1 414"));
    EXPECT_THAT(exchange("GET /healthz HTTP/1.1\r\nX: " + std::string(100'000, 'x') + "\r\n\r\n"),
                StartsWith("HTTP/1.1 431"));
    // Headers that cost much elsewhere are not looked at.
    std::string ranges = "GET /metrics HTTP/1.1\r\nRange: bytes=0-";
    for (int i = 0; i < 1000; i++)
        ranges += ",0-";
    EXPECT_THAT(exchange(ranges + "\r\nAccept-Encoding: gzip\r\n\r\n"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Http, RandomRequestsAreAnsweredOrClosed) {
    Mutations requests(
        {"GET /healthz HTTP/1.1\r\nHost: x\r\n", "HEAD /metrics?a=%41&b HTTP/1.0\r\n",
         "PRI * HTTP/2.0\r\n", "GET http://[::1]/status#x HTTP/1.1\r\n"},
        std::string_view("/?#%&=*: \r\n\t\0a1", 16));
    for (int i = 0; i < 1000; i++)
        exchange(requests.next() + "\r\n\r\n");
    EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(Http, AClientThatNeverStopsSendingIsCutOff) {
    Client client(server->port());
    client.send("GET /healthz HTTP/1.1\r\n\r\n");
    const std::string more(64 * 1024, 'x');
    const auto began = std::chrono::steady_clock::now();
    while (client.send(more)) {
    }
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

TEST_F(Http, ManySlowClientsDoNotKeepOutAProbe) {
    std::vector<std::unique_ptr<Client>> slow;
    for (std::size_t i = 0; i < 3 * HttpClients::max_clients; i++) {
        slow.push_back(std::make_unique<Client>(server->port()));
        slow.back()->send("GET /hea");
        if (i % 50 == 0) {
            EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200")) << i;
        }
    }
    EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
    EXPECT_EQ(slow.front()->receive(), "") << "the oldest has been dropped";
}

TEST_F(Http, ASlowClientHasLimitedTime) {
    Client client(server->port());
    client.send("GET /hea");
    EXPECT_EQ(client.receive(), "");
}

TEST_F(Http, AClientThatDoesNotReadDelaysNoOther) {
    ProcessFigures many;
    many.databases = {{.name = "orders"}};
    for (int i = 0; i < 5000; i++)
        many.databases[0].destinations.push_back(
            {.name = "destination " + std::to_string(i), .state = "idle", .held = true});
    figures.publish(many);
    std::vector<std::unique_ptr<Client>> clients;
    for (int i = 0; i < 4; i++) {
        clients.push_back(std::make_unique<Client>(server->port()));
        clients.back()->send("GET /status HTTP/1.1\r\n\r\n");
    }
    EXPECT_THAT(get("/healthz"), StartsWith("HTTP/1.1 200"));
    EXPECT_THAT(get("/status"), testing::EndsWith("]}\n")) << "a large response arrives whole";
}

TEST_F(Http, ThreadsBlockAllSignals) {
    std::size_t others = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
        if (entry.path().filename() == std::to_string(getpid()))
            continue;
        std::ifstream status(entry.path() / "status");
        for (std::string line; std::getline(status, line);)
            if (line.starts_with("SigBlk:")) {
                others++;
                // All but SIGKILL, SIGSTOP and two that the C library keeps to itself; it blocks
                // these, too, while a thread starts.
                constexpr auto all = 0xfffffffe7ffbfeffULL;
                EXPECT_EQ(std::stoull(line.substr(8), nullptr, 16) & all, all) << entry.path();
            }
    }
    EXPECT_GE(others, 1u);  // a sanitizer may have its own
}

TEST_F(Http, EndsAtOnce) {
    Client client(server->port());
    client.send("GET /hea");
    server.reset();
    EXPECT_EQ(client.receive(), "");
}

}  // namespace
}  // namespace outbox::relay
