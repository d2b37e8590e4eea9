// A NATS server on loopback under the control of a test, in a thread of its own.
//
// It sends INFO, answers PING, and asks the test what to send for each message that is published.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "unit/loopback.hpp"

namespace outbox {

struct Published {
    std::string subject, reply, headers, payload;
};

class ScriptedNats {
  public:
    // What the server sends. It closes the connection after `cut` bytes of it, if that is not negative.
    struct Script {
        std::string info = usual_info;
        std::string login = "PONG\r\n";  // answers the first PING
        std::function<std::string(const Published&)> answer = acknowledge;
        long cut = -1;
        bool reads = true;
    };

    static constexpr const char* usual_info =
        "INFO {\"server_id\":\"S\",\"version\":\"2.9.10\",\"headers\":true,\"max_payload\":1048576}"
        "\r\n";

    static std::string message(const std::string& subject, const std::string& payload) {
        return "MSG " + subject + " 1 " + std::to_string(payload.size()) + "\r\n" + payload +
               "\r\n";
    }
    static std::string acknowledge(const Published& published) {
        return message(published.reply, "{\"stream\":\"S\",\"seq\":1}");
    }

    explicit ScriptedNats(Script script) : script_(std::move(script)) {
        listener_ = listen_on_loopback(port_);
        wake_ = eventfd(0, EFD_CLOEXEC);
        thread_ = std::thread([this] { serve(); });
    }
    ~ScriptedNats() {
        stop_ = true;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
        thread_.join();
        close(listener_);
        close(wake_);
    }

    std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
    int connections() const { return connections_; }
    // All that was received, over all connections.
    std::string received() const {
        const std::lock_guard lock(mutex_);
        return received_;
    }
    std::vector<Published> published() const {
        const std::lock_guard lock(mutex_);
        return published_;
    }

  private:
    struct Connection {
        std::string bytes{};
        long sent = 0;
        bool is_known = false;
    };

    void serve() {
        std::map<int, Connection> open;
        while (!stop_) {
            std::vector<pollfd> watched{{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
            for (const auto& [fd, connection] : open)
                watched.push_back({fd, POLLIN, 0});
            poll(watched.data(), watched.size(), -1);
            if (watched[0].revents) {
                const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
                connections_++;
                if (!say(fd, open[fd], script_.info)) {
                    close(fd);
                    open.erase(fd);
                }
            }
            for (std::size_t i = 2; i < watched.size(); i++)
                if (const int fd = watched[i].fd;
                    watched[i].revents && script_.reads && !receive(fd, open[fd])) {
                    close(fd);
                    open.erase(fd);
                }
        }
        for (const auto& [fd, connection] : open)
            close(fd);
    }

    // These return false when the connection is to be closed.

    bool say(int fd, Connection& connection, const std::string& text) {
        std::size_t size = text.size();
        const bool ends =
            script_.cut >= 0 && connection.sent + static_cast<long>(size) >= script_.cut;
        if (ends)
            size = static_cast<std::size_t>(script_.cut - connection.sent);
        connection.sent += static_cast<long>(size);
        for (std::size_t at = 0; at < size;) {
            const ssize_t sent = send(fd, text.data() + at, size - at, MSG_NOSIGNAL);
            if (sent <= 0)
                return false;
            at += static_cast<std::size_t>(sent);
        }
        return !ends;
    }

    bool receive(int fd, Connection& connection) {
        char buffer[65536];
        const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
        if (size <= 0)
            return false;
        connection.bytes.append(buffer, static_cast<std::size_t>(size));
        {
            const std::lock_guard lock(mutex_);
            received_.append(buffer, static_cast<std::size_t>(size));
        }
        while (true) {
            const std::size_t end = connection.bytes.find("\r\n");
            if (end == std::string::npos)
                return true;
            const std::string line = connection.bytes.substr(0, end);
            std::size_t all = end + 2;
            std::string answer;
            if (line.starts_with("HPUB ")) {
                const std::size_t last = line.rfind(' ');
                all += std::stoul(line.substr(last + 1)) + 2;
                if (connection.bytes.size() < all)
                    return true;
                answer = take(line, connection.bytes.substr(end + 2, all - end - 4));
            } else if (line == "PING") {
                answer = std::exchange(connection.is_known, true) ? "PONG\r\n" : script_.login;
            }
            connection.bytes.erase(0, all);
            if (!answer.empty() && !say(fd, connection, answer))
                return false;
        }
    }

    std::string take(const std::string& line, const std::string& body) {
        std::vector<std::string> words;
        for (std::size_t at = 0; at <= line.size();) {
            const std::size_t end = std::min(line.find(' ', at), line.size());
            words.push_back(line.substr(at, end - at));
            at = end + 1;
        }
        const std::size_t headers = std::stoul(words.at(3));
        Published published{words.at(1), words.at(2), body.substr(0, headers),
                            body.substr(headers)};
        {
            const std::lock_guard lock(mutex_);
            published_.push_back(published);
        }
        return script_.answer(published);
    }

    const Script script_;
    int listener_ = -1;
    int wake_ = -1;
    int port_ = 0;
    mutable std::mutex mutex_;
    std::string received_;
    std::vector<Published> published_;
    std::atomic<int> connections_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace outbox
