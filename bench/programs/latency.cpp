// Measures the time from commit to arrival: a paced producer and an HTTP receiver in one process,
// on one clock.
//
//   latency CONNINFO RATE SECONDS SESSIONS [bare|refuses|slow|STATEMENT]
//
// Prints the port it listens on, waits for a line on the standard input (meanwhile the destination
// can be created), and then commits RATE transactions per second in SESSIONS sessions. Each changes
// a row and enqueues an event with its number. For each it records when COMMIT was sent, when
// COMMIT returned, and when the request with the event had been read to its end. Prints the
// differences as JSON, in microseconds, without those of the first second, in which caches fill.
// With `bare` the transactions change no row; with STATEMENT they execute that, in which $1 is the number of
// an account and $2 the payload. With `refuses` the receiver answers 400 to one key in a hundred, with
// `slow` it takes 0.3 to 3 s for each event of such a key, and the figures are those of the other keys.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <map>

#include "paced.hpp"

namespace outbox::bench {

// ---------------------------------------------------------------------------------------------
// The receiver
// ---------------------------------------------------------------------------------------------

// One key in this number of keys, in their order, may be impaired.
static constexpr std::size_t keys = 100;

enum class Impairment { none, refuses, slow };

struct Receiver {
    Run& run;
    Impairment of_some;
    std::multimap<Time, int> late{};  // sockets that wait for an answer

    bool is_impaired(std::size_t number) const {
        return of_some != Impairment::none && number % keys == keys - 1;
    }
    void answer_later(std::size_t number, int socket, Time now) {
        late.emplace(now + std::chrono::milliseconds(300 + number / keys * 7919 % 2701), socket);
    }
    int milliseconds_left() const {
        if (late.empty())
            return -1;
        const auto left = late.begin()->first - Clock::now();
        return std::max(0, static_cast<int>(left / std::chrono::milliseconds(1)) + 1);
    }
};

static std::size_t content_length(std::string_view head) {
    static constexpr std::string_view name = "\r\ncontent-length:";
    const auto at = std::search(head.begin(), head.end(), name.begin(), name.end(),
                                [](char a, char b) { return std::tolower(a) == b; });
    if (at == head.end())
        die("receiver", "a request without Content-Length");
    return std::strtoull(&*at + name.size(), nullptr, 10);
}

static bool answer(int socket, std::string_view text) {
    return send(socket, text.data(), text.size(), MSG_NOSIGNAL) >= 0;
}

static constexpr std::string_view taken = "HTTP/1.1 204 No Content\r\n\r\n";
static constexpr std::string_view refused = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";

static void answer_late(Receiver& receiver) {
    for (auto& late = receiver.late; !late.empty() && late.begin()->first <= Clock::now();
         late.erase(late.begin()))
        answer(late.begin()->second, taken);
}

// Takes complete requests out of `buffer` and answers them.
static void serve(Receiver& receiver, int socket, std::string& buffer) {
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
        const bool impaired = receiver.is_impaired(number);
        if (!impaired)
            note_arrival(receiver.run, number, now);
        if (impaired && receiver.of_some == Impairment::slow)
            receiver.answer_later(number, socket, now);
        else if (!answer(socket, impaired ? refused : taken))
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

static void receive(Receiver& receiver, int listener) {
    const int epoll = epoll_create1(0);
    watch(epoll, listener);
    std::vector<std::string> buffers;  // indexed by descriptor
    while (true) {
        epoll_event events[64];
        const int count = epoll_wait(epoll, events, 64, receiver.milliseconds_left());
        answer_late(receiver);
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
                std::erase_if(receiver.late,
                              [&](const auto& late) { return late.second == descriptor; });
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
                    const char* statement, Impairment of_some) {
    const auto count = static_cast<std::size_t>(rate * seconds);
    Run run(count, of_some != Impairment::none ? count - count / keys : count);
    Receiver receiver{run, of_some};
    std::thread(receive, std::ref(receiver), open_listener()).detach();
    std::getchar();
    produce_all(run, conninfo, rate, sessions, statement);
    std::_Exit(0);  // the receiver thread still waits for requests
}

static Impairment impairment_of(std::string_view variant) {
    return variant == "refuses" ? Impairment::refuses
           : variant == "slow"  ? Impairment::slow
                                : Impairment::none;
}

static const char* statement_of(std::string_view variant) {
    if (variant == "bare")
        return enqueue;
    return variant.empty() || impairment_of(variant) != Impairment::none ? change_and_enqueue
                                                                         : variant.data();
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    using namespace outbox::bench;
    if (argc != 5 && argc != 6)
        die("usage", "latency CONNINFO RATE SECONDS SESSIONS [bare|refuses|slow|STATEMENT]");
    const std::string_view variant = argc == 6 ? argv[5] : "";
    measure(argv[1], std::atof(argv[2]), std::atof(argv[3]), std::strtoull(argv[4], nullptr, 10),
            statement_of(variant), impairment_of(variant));
}
