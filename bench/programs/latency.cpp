// Measures the time from commit to arrival: a paced producer and an HTTP receiver in one process,
// on one clock.
//
//   latency CONNINFO RATE SECONDS SESSIONS [bare|refuses]
//
// Prints the port it listens on, waits for a line on the standard input (meanwhile the destination
// can be created), and then commits RATE transactions per second in SESSIONS sessions. Each changes
// a row and enqueues an event with its number. For each it records when COMMIT was sent, when
// COMMIT returned, and when the request with the event had been read to its end. Prints the
// differences as JSON, in microseconds, without those of the first second, in which caches fill.
// With `bare` the transactions change no row. With `refuses` the receiver answers 400 to one key in
// a hundred, and the figures are those of the other keys.
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "connection.hpp"

namespace outbox::bench {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;
using std::chrono::duration;

struct Event {
    Time sent;
    Time returned;
    std::atomic<Time> arrived;
};

struct Run {
    Run(std::size_t count, bool some_refused)
        : events(count), refuses(some_refused), wanted(refuses ? count - count / keys : count) {}

    // One key in this number of keys, in their order.
    static constexpr std::size_t keys = 100;
    bool is_refused(std::size_t number) const { return refuses && number % keys == keys - 1; }

    std::vector<Event> events;
    bool refuses;
    std::size_t wanted;                     // events that can arrive
    std::atomic<std::size_t> arrivals = 0;  // of events that had not arrived before
    std::atomic<std::size_t> repeated = 0;
};

// ---------------------------------------------------------------------------------------------
// The receiver
// ---------------------------------------------------------------------------------------------

// Returns the event's number, the member "number" of the payload.
static std::size_t number_in(std::string_view body) {
    static constexpr std::string_view name = "\"number\":";
    const std::size_t at = body.find(name);
    if (at == std::string_view::npos)
        die("receiver", "a request without a number");
    return std::strtoull(body.data() + at + name.size(), nullptr, 10);
}

static std::size_t content_length(std::string_view head) {
    static constexpr std::string_view name = "\r\ncontent-length:";
    const auto at = std::search(head.begin(), head.end(), name.begin(), name.end(),
                                [](char a, char b) { return std::tolower(a) == b; });
    if (at == head.end())
        die("receiver", "a request without Content-Length");
    return std::strtoull(&*at + name.size(), nullptr, 10);
}

static void note_arrival(Run& run, std::size_t number, Time now) {
    if (number >= run.events.size())
        die("receiver", "an event nobody sent");
    Time none{};
    if (run.events[number].arrived.compare_exchange_strong(none, now))
        run.arrivals++;
    else
        run.repeated++;
}

// Takes complete requests out of `buffer` and answers them.
static void serve(Run& run, int socket, std::string& buffer) {
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
        const std::string_view answer = run.is_refused(number) ? refused : taken;
        if (!run.is_refused(number))
            note_arrival(run, number, now);
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

static void receive(Run& run, int listener) {
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
            serve(run, descriptor, buffers[descriptor]);
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

// ---------------------------------------------------------------------------------------------
// The producer
// ---------------------------------------------------------------------------------------------

static std::string payload_of(std::size_t number) {
    std::string payload = "{\"number\": " + std::to_string(number) + ", \"title\": \"";
    payload.append(512 - payload.size() - 2, 'x');
    return payload + "\"}";
}

// Commits events first, first + step, and so on. Each has its time; a late one does not delay
// others.
static void produce(Run& run, const char* conninfo, Time start, double rate, bool bare,
                    std::size_t first, std::size_t step) {
    Connection connection(conninfo);
    connection.prepare("enqueue",
                       "SELECT outbox.enqueue('account', $1, 'AccountChanged', $2::jsonb, 1)");
    connection.prepare("change",
                       "WITH changed AS (UPDATE account SET version = version + 1 WHERE id = $1 "
                       "RETURNING version) "
                       "SELECT outbox.enqueue('account', $1::text, 'AccountChanged', $2::jsonb, "
                       "version) FROM changed");
    for (std::size_t number = first; number < run.events.size(); number += step) {
        const std::string id = std::to_string(number % 10'000 + 1);
        const std::string payload = payload_of(number);
        std::this_thread::sleep_until(start +
                                      std::chrono::duration_cast<Clock::duration>(
                                          duration<double>(static_cast<double>(number) / rate)));
        connection.execute("BEGIN");
        connection.execute_prepared(
            bare ? "enqueue" : "change",
            {Parameter::text(id.c_str()), Parameter::text(payload.c_str())});
        run.events[number].sent = Clock::now();
        connection.execute("COMMIT");
        run.events[number].returned = Clock::now();
    }
}

// ---------------------------------------------------------------------------------------------
// The figures
// ---------------------------------------------------------------------------------------------

static void print_percentiles(const char* name, std::vector<double>& values) {
    std::sort(values.begin(), values.end());
    const auto at = [&](double fraction) {
        return values[static_cast<std::size_t>(fraction * static_cast<double>(values.size() - 1))];
    };
    std::printf(
        "\"%s\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}, ",
        name, at(0.5), at(0.9), at(0.99), at(0.999), at(1.0));
}

static void print(const Run& run, Time start) {
    const auto micros = [](Clock::duration d) { return duration<double, std::micro>(d).count(); };
    std::vector<double> since_sent, since_returned, commits;
    Time last = start;
    for (const Event& event : run.events) {
        last = std::max(last, event.returned);
        const Time arrived = event.arrived;
        if (arrived == Time{} || event.sent < start + std::chrono::seconds(1))
            continue;
        since_sent.push_back(micros(arrived - event.sent));
        since_returned.push_back(micros(arrived - event.returned));
        commits.push_back(micros(event.returned - event.sent));
    }
    if (since_sent.empty())
        die("receiver", "nothing arrived");
    std::printf("{");
    print_percentiles("since_commit_sent", since_sent);
    print_percentiles("since_commit_returned", since_returned);
    print_percentiles("commit", commits);
    std::printf("\"rate\": %.1f, \"missing\": %zu, \"repeated\": %zu}\n",
                static_cast<double>(run.events.size()) / duration<double>(last - start).count(),
                run.wanted - run.arrivals, run.repeated.load());
}

static void measure(const char* conninfo, double rate, double seconds, std::size_t sessions,
                    bool bare, bool refuses) {
    Run run(static_cast<std::size_t>(rate * seconds), refuses);
    std::thread(receive, std::ref(run), open_listener()).detach();
    std::getchar();

    const Time start = Clock::now() + std::chrono::milliseconds(200);
    std::vector<std::thread> producers;
    for (std::size_t i = 0; i < sessions; i++)
        producers.emplace_back(produce, std::ref(run), conninfo, start, rate, bare, i, sessions);
    for (std::thread& producer : producers)
        producer.join();
    const Time deadline = Clock::now() + std::chrono::seconds(30);
    while (run.arrivals < run.wanted && Clock::now() < deadline)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    print(run, start);
    std::fflush(stdout);
    std::_Exit(0);  // the receiver thread still waits for requests
}

}  // namespace outbox::bench

int main(int argc, char** argv) {
    if (argc != 5 && argc != 6)
        outbox::bench::die("usage", "latency CONNINFO RATE SECONDS SESSIONS [bare|refuses]");
    const std::string_view variant = argc == 6 ? argv[5] : "";
    outbox::bench::measure(argv[1], std::atof(argv[2]), std::atof(argv[3]),
                           std::strtoull(argv[4], nullptr, 10), variant == "bare",
                           variant == "refuses");
}
