// Measures the time from commit to arrival: a paced producer and an HTTP receiver in one process,
// on one clock.
//
//   latency CONNINFO RATE SECONDS SESSIONS [bare|refuses|STATEMENT]
//
// Prints the port it listens on, waits for a line on the standard input (meanwhile the destination
// can be created), and then commits RATE transactions per second in SESSIONS sessions. Each changes
// a row and enqueues an event with its number. For each it records when COMMIT was sent, when
// COMMIT returned, and when the request with the event had been read to its end. Prints the
// differences as JSON, in microseconds, without those of the first second, in which caches fill.
// With `bare` the transactions change no row; with STATEMENT they execute that, in which $1 is the number of
// an account and $2 the payload. With `refuses` the receiver answers 400 to one key in
// a hundred, and the figures are those of the other keys.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>

#include "paced.hpp"

namespace outbox::bench {

// ---------------------------------------------------------------------------------------------
// The receiver
// ---------------------------------------------------------------------------------------------

// It may refuse one key in this number of keys, in their order.
static constexpr std::size_t keys = 100;

struct Receiver {
    Run& run;
    bool refuses;

    bool is_refused(std::size_t number) const { return refuses && number % keys == keys - 1; }
};

static std::size_t content_length(std::string_view head) {
    static constexpr std::string_view name = "\r\ncontent-length:";
    const auto at = std::search(head.begin(), head.end(), name.begin(), name.end(),
                                [](char a, char b) { return std::tolower(a) == b; });
    if (at == head.end())
        die("receiver", "a request without Content-Length");
    return std::strtoull(&*at + name.size(), nullptr, 10);
}

// Takes complete requests out of `buffer` and answers them.
static void serve(const Receiver& receiver, int socket, std::string& buffer) {
    static constexpr std::string_view taken = "HTTP/1.1 204 No Content\r\n\r\n";
    static constexpr std::string_view refused =
        "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    const Time now = Clock::now();
    while (true) {
        const std::size_t head = buffer.find("\r\n\r\n");
        if (head == std::string::npos)
            return;
        const std::size_t body = head + 4;
        const std::size_t length = content_length(std::string_view(buffer).substr(0, body));
        if (buffer.size() < body + length)
            return;
        const std::size_t number = number_in(std::string_view(buffer).substr(body, length));
        const std::string_view answer = receiver.is_refused(number) ? refused : taken;
        if (!receiver.is_refused(number))
            note_arrival(receiver.run, number, now);
        if (send(socket, answer.data(), answer.size(), MSG_NOSIGNAL) < 0)
            return;  // the sender closed the connection, and will open another
        buffer.erase(0, body + length);
    }
}

static void watch(int epoll, int descriptor) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.fd = descriptor;
    epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event);
}

static void receive(const Receiver& receiver, int listener) {
    const int epoll = epoll_create1(0);
    watch(epoll, listener);
    std::vector<std::string> buffers;  // indexed by descriptor
    while (true) {
        epoll_event events[64];
        const int count = epoll_wait(epoll, events, 64, -1);
        for (int i = 0; i < count; i++) {
            const int descriptor = events[i].data.fd;
            if (descriptor == listener) {
                const int client = accept(listener, nullptr, nullptr);
                const int on = 1;
                setsockopt(client, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                buffers.resize(std::max<std::size_t>(buffers.size(), client + 1));
                buffers[client].clear();
                watch(epoll, client);
                continue;
            }
            char part[65536];
            const ssize_t size = recv(descriptor, part, sizeof part, 0);
            if (size <= 0) {
                close(descriptor);
                continue;
            }
            buffers[descriptor].append(part, size);
            serve(receiver, descriptor, buffers[descriptor]);
        }
    }
}

static int open_listener() {
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener, 128) != 0 ||
        getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size) != 0)
        die("could not listen", std::strerror(errno));
    std::printf("%d\n", ntohs(address.sin_port));
    std::fflush(stdout);
    return listener;
}

static void measure(const char* conninfo, double rate, double seconds, std::size_t sessions,
                    const char* statement, bool refuses) {
    const auto count = static_cast<std::size_t>(rate * seconds);
    Run run(count, refuses ? count - count / keys : count);
    const Receiver receiver{run, refuses};
    std::thread(receive, std::cref(receiver), open_listener()).detach();
    std::getchar();
    produce_all(run, conninfo, rate, sessions, statement);
    std::_Exit(0);  // the receiver thread still waits for requests
}

static const char* statement_of(std::string_view variant) {
    if (variant == "bare")
        return enqueue;
    return variant.empty() || variant == "refuses" ? change_and_enqueue : variant.data();
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    using namespace outbox::bench;
    if (argc != 5 && argc != 6)
        die("usage", "latency CONNINFO RATE SECONDS SESSIONS [bare|refuses|STATEMENT]");
    const std::string_view variant = argc == 6 ? argv[5] : "";
    measure(argv[1], std::atof(argv[2]), std::atof(argv[3]), std::strtoull(argv[4], nullptr, 10),
            statement_of(variant), variant == "refuses");
}
