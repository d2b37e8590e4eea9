// Connections of HTTP clients: reads a request, writes the response, closes.
//
// One thread serves all of them and never waits for one. A client has 5 seconds for everything.
// When there are too many, the oldest is dropped: so clients that send nothing cannot keep out a
// probe, which takes milliseconds.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/clock.hpp"

namespace outbox::relay {

class HttpClients {
  public:
    static constexpr std::size_t max_clients = 128;
    static constexpr std::size_t max_head = 8 * 1024;  // of a request
    static constexpr std::size_t max_request_line = 1024;
    static constexpr Micros time_limit = seconds(5);

    // Returns the whole response to a request line, such as "GET /healthz HTTP/1.1".
    using Answer = std::function<std::string(std::string_view request_line)>;

    explicit HttpClients(Answer answer);
    ~HttpClients();

    // From any thread. Takes the socket.
    void add(int socket);

  private:
    struct Client {
        int socket = -1;
        Micros deadline = 0;
        std::string request{};
        std::string response{};
        std::size_t sent = 0;
        bool is_answered = false;
    };

    void run() noexcept;
    void serve_once(std::vector<pollfd>& polled);
    void drop_all() noexcept;
    void take_new();
    int milliseconds_left() const;
    // These return whether the client stays.
    bool step(Client& client, short events);
    bool receive(Client& client);
    bool send(Client& client);
    void answer_if_complete(Client& client);

    const Answer answer_;
    const SystemClock clock_;
    const int wake_;  // eventfd
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::vector<int> new_;       // sockets
    std::list<Client> clients_;  // of the thread; the oldest first
    std::thread thread_;
};

}  // namespace outbox::relay
