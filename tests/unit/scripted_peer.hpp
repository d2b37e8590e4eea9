// An HTTP server on loopback under the control of a test, in a thread of its own.
//
// Replies are used in the order of requests, over all connections. A reply has bytes, and perhaps
// an action on the connection after or instead of them.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace outbox {

struct Reply {
    std::string bytes = "HTTP/1.1 204 No Content\r\n\r\n";
    bool close = false;         // after the bytes
    bool byte_by_byte = false;  // each in a segment of its own
};

class ScriptedPeer {
  public:
    ScriptedPeer() {
        listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        bind(listener_, reinterpret_cast<sockaddr*>(&address), length);
        listen(listener_, 64);
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &length);
        port_ = ntohs(address.sin_port);
        wake_ = eventfd(0, EFD_CLOEXEC);
        thread_ = std::thread([this] { serve(); });
    }

    ~ScriptedPeer() {
        stop_ = true;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
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
    std::vector<std::string> requests() const {
        const std::lock_guard lock(mutex_);
        return requests_;
    }
    int connections() const { return connections_; }

  private:
    void serve() {
        std::map<int, std::string> open;
        while (!stop_) {
            std::vector<pollfd> watched{{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
            for (const auto& [fd, bytes] : open)
                watched.push_back({fd, POLLIN, 0});
            poll(watched.data(), watched.size(), -1);
            if (watched[0].revents) {
                open[accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)];
                connections_++;
            }
            for (std::size_t i = 2; i < watched.size(); i++)
                if (watched[i].revents && !answer(watched[i].fd, open[watched[i].fd])) {
                    close(watched[i].fd);
                    open.erase(watched[i].fd);
                }
        }
        for (const auto& [fd, bytes] : open)
            close(fd);
    }

    // Reads, and answers complete requests. Returns false once the connection is closed.
    bool answer(int fd, std::string& bytes) {
        char buffer[65536];
        const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
        if (size <= 0)
            return false;
        bytes.append(buffer, static_cast<std::size_t>(size));
        while (true) {
            const std::size_t head = bytes.find("\r\n\r\n");
            if (head == std::string::npos)
                return true;
            const std::size_t field = bytes.find("Content-Length: ");
            const std::size_t body = std::stoul(bytes.substr(field + 16));
            if (bytes.size() < head + 4 + body)
                return true;
            Reply reply;
            {
                const std::lock_guard lock(mutex_);
                requests_.push_back(bytes.substr(0, head + 4 + body));
                if (!replies_.empty()) {
                    reply = std::move(replies_.front());
                    replies_.pop_front();
                }
            }
            bytes.erase(0, head + 4 + body);
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

    int listener_ = -1;
    int wake_ = -1;
    int port_ = 0;
    mutable std::mutex mutex_;
    std::deque<Reply> replies_;
    std::vector<std::string> requests_;
    std::atomic<int> connections_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace outbox
