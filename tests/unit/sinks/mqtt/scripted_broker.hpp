// A broker of MQTT 5 on loopback under the control of a test, in a thread of its own.
//
// It takes packets apart, and asks a function of the test for the answer to each. Without one, it is an
// honest broker that takes everything.
#pragma once

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "unit/loopback.hpp"

namespace outbox {

// A packet of the client.
struct Sent {
    int connection = 0;  // they count from 1
    int type = 0;
    int flags = 0;
    std::string body{};

    int id() const {  // of PUBLISH with QoS, and of PUBREL
        const std::size_t at = type == 3 ? 2 + u16(0) : 0;
        return static_cast<int>(u16(at));
    }
    std::string topic() const { return body.substr(2, u16(0)); }
    std::size_t u16(std::size_t at) const {
        return static_cast<std::size_t>(static_cast<unsigned char>(body[at])) << 8 |
               static_cast<unsigned char>(body[at + 1]);
    }
};

// The answer to a packet. It may be empty.
struct Said {
    std::string bytes{};
    bool close = false;  // after the bytes
};

// -- packets of a broker --------------------------------------------------------------------------

inline std::string packet(int type, std::string_view body, int flags = 0) {
    std::string bytes(1, static_cast<char>(type << 4 | flags));
    std::size_t size = body.size();
    do {
        bytes += static_cast<char>((size & 0x7f) | (size > 0x7f ? 0x80 : 0));
        size >>= 7;
    } while (size > 0);
    return bytes.append(body);
}

inline std::string two(int value) {
    return {static_cast<char>(value >> 8 & 0xff), static_cast<char>(value & 0xff)};
}

inline std::string mqtt_text(std::string_view text) {
    return two(static_cast<int>(text.size())).append(text);
}

// `properties` are at most 127 bytes.
inline std::string with_properties(std::string_view properties) {
    return std::string(1, static_cast<char>(properties.size())).append(properties);
}

inline std::string connack(int code = 0, std::string_view properties = "", int flags = 0) {
    return packet(2, std::string{static_cast<char>(flags), static_cast<char>(code)} +
                         with_properties(properties));
}

// PUBACK 4, PUBREC 5, PUBCOMP 7.
inline std::string ack(int type, int id, int code = 0, std::string_view reason = "") {
    std::string body = two(id);
    if (code != 0 || !reason.empty())
        body += static_cast<char>(code);
    if (!reason.empty())
        body += with_properties('\x1f' + mqtt_text(reason));
    return packet(type, body);
}

inline std::string goodbye(int code) {
    return packet(14, std::string{static_cast<char>(code), '\0'});
}

// What an honest broker says.
inline Said usual_answer(const Sent& sent) {
    switch (sent.type) {
        case 1:
            return {connack()};
        case 3:
            return {ack((sent.flags & 6) == 2 ? 4 : 5, sent.id())};
        case 6:
            return {ack(7, sent.id())};
        case 12:
            return {packet(13, "")};
        default:
            return {};
    }
}

// -------------------------------------------------------------------------------------------------

class ScriptedBroker {
  public:
    using Answer = std::function<Said(const Sent&)>;

    ScriptedBroker() {
        listener_ = listen_on_loopback(port_);
        wake_ = eventfd(0, EFD_CLOEXEC);
        thread_ = std::thread([this] { serve(); });
    }

    ~ScriptedBroker() {
        stop_ = true;
        wake();
        thread_.join();
        close(listener_);
        close(wake_);
    }

    std::string url() const { return "mqtt://127.0.0.1:" + std::to_string(port_); }

    // The broker's thread asks it. It must not call the broker.
    void answer_with(Answer answer) {
        const std::lock_guard lock(mutex_);
        answer_ = std::move(answer);
    }
    // Sends bytes over all connections, unasked.
    void say(std::string bytes) {
        {
            const std::lock_guard lock(mutex_);
            unasked_ += bytes;
        }
        wake();
    }
    std::vector<Sent> sent(int type = 0) const {
        const std::lock_guard lock(mutex_);
        std::vector<Sent> found;
        for (const Sent& one : sent_)
            if (type == 0 || one.type == type)
                found.push_back(one);
        return found;
    }
    int connections() const { return connections_; }

  private:
    struct Connection {
        int number = 0;
        std::string bytes{};
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
            if (watched[1].revents != 0) {
                std::uint64_t count = 0;
                if (read(wake_, &count, sizeof count) < 0)
                    continue;
                const std::lock_guard lock(mutex_);
                for (const auto& [fd, connection] : open)
                    send_all(fd, unasked_);
                unasked_.clear();
            }
            if (watched[0].revents != 0) {
                const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
                const int one = 1;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
                open[fd].number = ++connections_;
            }
            for (std::size_t i = 2; i < watched.size(); i++)
                if (const int fd = watched[i].fd; watched[i].revents != 0 && !take(fd, open[fd])) {
                    close(fd);
                    open.erase(fd);
                }
        }
        for (const auto& [fd, connection] : open)
            close(fd);
    }

    // Returns false once the connection is closed.
    bool take(int fd, Connection& connection) {
        char buffer[65536];
        const ssize_t size = recv(fd, buffer, sizeof buffer, 0);
        if (size <= 0)
            return false;
        connection.bytes.append(buffer, static_cast<std::size_t>(size));
        while (true) {
            std::string& bytes = connection.bytes;
            std::size_t length = 0, at = 1;
            for (bool more = true; more; at++) {
                if (at >= bytes.size())
                    return true;
                length |= static_cast<std::size_t>(bytes[at] & 0x7f) << (7 * (at - 1));
                more = (bytes[at] & 0x80) != 0;
            }
            if (bytes.size() < at + length)
                return true;
            const Sent sent{connection.number, static_cast<unsigned char>(bytes[0]) >> 4,
                            bytes[0] & 0xf, bytes.substr(at, length)};
            bytes.erase(0, at + length);
            const Said said = answer(sent);
            if (!send_all(fd, said.bytes) || said.close)
                return false;
        }
    }

    Said answer(const Sent& sent) {
        const std::lock_guard lock(mutex_);
        sent_.push_back(sent);
        return answer_ ? answer_(sent) : usual_answer(sent);
    }

    static bool send_all(int fd, std::string_view bytes) {
        while (!bytes.empty()) {
            const ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
            if (size <= 0)
                return false;
            bytes.remove_prefix(static_cast<std::size_t>(size));
        }
        return true;
    }

    int listener_ = -1;
    int wake_ = -1;
    int port_ = 0;
    mutable std::mutex mutex_;
    Answer answer_;
    std::string unasked_;
    std::vector<Sent> sent_;
    std::atomic<int> connections_{0};
    std::atomic<bool> stop_{false};
    std::thread thread_;
};

}  // namespace outbox
