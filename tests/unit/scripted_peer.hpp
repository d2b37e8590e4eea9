// An HTTP server on loopback under the control of a test, in a thread of its own.
//
// Replies are used in the order of requests, over all connections. A reply has bytes, and perhaps
// an action on the connection after or instead of them.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "unit/loopback.hpp"

namespace outbox {

struct Reply {
    std::string bytes = "HTTP/1.1 204 No Content\r\n\r\n";
    bool close = false;         // after the bytes
    bool byte_by_byte = false;  // each in a segment of its own
};

class ScriptedPeer {
  public:
    ScriptedPeer() {
        listener_ = listen_on_loopback(port_);
        wake_ = eventfd(0, EFD_CLOEXEC);
        thread_ = std::thread([this] { serve(); });
    }

    ~ScriptedPeer() {
        stop_ = true;
        wake();
        thread_.join();
        close(listener_);
        close(wake_);
    }

    std::string url() const { return "http://127.0.0.1:" + std::to_string(port_) + "/events"; }

    // Adds a reply for the next request. When none is left, requests get a 204.
    void then(Reply reply) {
        const std::lock_guard lock(mutex_);
        replies_.push_back(std::move(reply));
    }
    // What each request gets instead, which the peer's thread asks for; nothing: it has to wait, and is
    // asked for again after ask_again(). It must not call the peer.
    using Answer = std::function<std::optional<Reply>(const std::string& request)>;
    void answer_with(Answer answer) {
        const std::lock_guard lock(mutex_);
        answer_ = std::move(answer);
    }
    void ask_again() { wake(); }
    std::vector<std::string> requests() const {
        const std::lock_guard lock(mutex_);
        return requests_;
    }
    // Waits until there are more than this many; false: that took too long.
    bool wait_for_more(std::size_t than, std::chrono::milliseconds limit) const {
        std::unique_lock lock(mutex_);
        return arrived_.wait_for(lock, limit, [&] { return requests_.size() > than; });
    }
    int connections() const { return connections_; }

  private:
    struct Connection {
        std::string bytes{};    // received and not answered
        bool is_noted = false;  // the first request in them
    };

    void wake() {
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
    }

    void serve() {
        std::map<int, Connection> open;
        while (!stop_) {
            std::vector<pollfd> watched{{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
            for (const auto& [fd, connection] : open)
                watched.push_back({fd, POLLIN, 0});
            poll(watched.data(), watched.size(), -1);
            const bool again = watched[1].revents != 0;
            std::uint64_t count = 0;
            if (again && read(wake_, &count, sizeof count) < 0)
                continue;
            if (watched[0].revents) {
                open[accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)];
                connections_++;
            }
            for (std::size_t i = 2; i < watched.size(); i++)
                if (const int fd = watched[i].fd;
                    (watched[i].revents && !receive(fd, open[fd])) ||
                    ((watched[i].revents || again) && !answer(fd, open[fd]))) {
                    close(fd);
                    open.erase(fd);
                }
        }
        for (const auto& [fd, connection] : open)
            close(fd);
    }

    // Returns false once the connection is closed.
    static bool receive(int fd, Connection& connection) {
        char buffer[65536];
        const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
        if (size > 0)
            connection.bytes.append(buffer, static_cast<std::size_t>(size));
        return size > 0;
    }

    // Answers complete requests. Returns false once the connection is closed.
    bool answer(int fd, Connection& connection) {
        std::string& bytes = connection.bytes;
        while (true) {
            const std::size_t head = bytes.find("\r\n\r\n");
            if (head == std::string::npos)
                return true;
            const std::size_t field = bytes.find("Content-Length: ");
            const std::size_t body = std::stoul(bytes.substr(field + 16));
            if (bytes.size() < head + 4 + body)
                return true;
            const std::optional<Reply> next = reply_to(bytes.substr(0, head + 4 + body),
                                                       std::exchange(connection.is_noted, true));
            if (!next)
                return true;
            const Reply& reply = *next;
            bytes.erase(0, head + 4 + body);
            connection.is_noted = false;
            const std::size_t step = reply.byte_by_byte ? 1 : reply.bytes.size();
            const int one = 1;
            setsockopt(fd, IPPROTO_TCP, 1 /* TCP_NODELAY */, &one, sizeof one);
            for (std::size_t at = 0; at < reply.bytes.size(); at += step)
                send(fd, reply.bytes.data() + at, std::min(step, reply.bytes.size() - at),
                     MSG_NOSIGNAL);
            if (reply.close)
                return false;
        }
    }

    std::optional<Reply> reply_to(const std::string& request, bool is_noted) {
        const std::lock_guard lock(mutex_);
        if (!is_noted)
            requests_.push_back(request);
        arrived_.notify_all();
        if (answer_)
            return answer_(request);
        if (replies_.empty())
            return Reply();
        Reply reply = std::move(replies_.front());
        replies_.pop_front();
        return reply;
    }

    int listener_ = -1;
    int wake_ = -1;
    int port_ = 0;
    mutable std::mutex mutex_;
    mutable std::condition_variable arrived_;
    std::deque<Reply> replies_;
    Answer answer_;
    std::vector<std::string> requests_;
    std::atomic<int> connections_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace outbox
