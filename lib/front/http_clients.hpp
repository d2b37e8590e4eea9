// Connections of HTTP clients: accepts them, reads a request, writes the response, closes.
//
// One thread serves all of them and never waits for one. It accepts all that wait at once, and reads what
// they have sent before others may push them out. A client has 5 seconds to send its request, and
// as many to take the response, more if that is long. Every byte of a request counts: the line, the head, and the body, whose
// length must be in the head. When there are too many clients, the oldest that is not being answered is
// dropped: so clients that send nothing cannot keep out a probe, which takes milliseconds.
//
// Requests whose answer may take long go to workers. Who writes what:
//   clients_   the thread only
//   jobs_      the thread adds, workers take; under mutex_. A job is named by the number of its client,
//              which may be gone when the answer comes.
//   answers_   workers add, the thread takes; under mutex_
// The destructor ends the thread first, then the workers, when they have finished what they do.
#pragma once

#include <poll.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/clock.hpp"

namespace outbox {

class HttpClients {
  public:
    static constexpr std::size_t max_clients = 128;
    static constexpr std::size_t max_head = 8 * 1024;  // of a request
    static constexpr std::size_t max_jobs = 64;        // that wait for a worker
    static constexpr Micros time_limit = seconds(5);
    static constexpr Micros micros_per_byte = 16;  // more for a response
    static constexpr std::size_t max_unsent = 64 * 1024 * 1024;

    struct Limits {
        std::size_t request_line = 1024;
        std::size_t body = 0;
        std::size_t workers = 0;  // 0: the thread answers by itself
    };
    // Returns the whole response to a request: line, head and body.
    using Answer = std::function<std::string(std::string_view request)>;
    // True if the answer takes no time, so that no worker is needed.
    using IsQuick = std::function<bool(std::string_view request)>;

    // Takes the listening socket, which does not block. The threads inherit the mask of signals.
    HttpClients(int listener, const Limits& limits, Answer answer, IsQuick is_quick = nullptr);
    ~HttpClients();

  private:
    enum class State { receives, waits, sends, ends };
    struct Client {
        int socket = -1;
        std::uint64_t number = 0;
        Micros deadline = 0;
        State state = State::receives;
        std::string request{};
        std::string response{};
        std::size_t sent = 0;
    };
    struct Job {
        std::uint64_t client;
        std::string text;  // the request, or its response
    };

    using Clients = std::list<Client>;

    void run() noexcept;
    void work() noexcept;
    void serve_once(std::vector<pollfd>& polled);
    void drop_all() noexcept;
    Clients::iterator drop(Clients::iterator client);
    void drop_one();
    void accept_all();
    void take(int socket);
    void take_answers();
    int milliseconds_left() const;
    // These return whether the client stays.
    bool step(Client& client, short events);
    bool receive(Client& client);
    bool send(Client& client);
    void answer_if_complete(Client& client);
    void answer(Client& client);
    void respond(Client& client, std::string response);
    void keep_within_limit(const Client& but);

    const Limits limits_;
    const Answer answer_;
    const IsQuick is_quick_;
    const SystemClock clock_;
    const int listener_;
    const int wake_;  // eventfd
    std::atomic<bool> stopping_{false};
    std::uint64_t last_number_ = 0;
    Clients clients_;  // the oldest first
    std::mutex mutex_;
    std::condition_variable has_jobs_;
    std::deque<Job> jobs_;
    std::vector<Job> answers_;
    std::thread thread_;
    std::vector<std::thread> workers_;
};

}  // namespace outbox
