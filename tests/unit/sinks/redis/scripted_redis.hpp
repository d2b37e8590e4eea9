// A small Redis on loopback with streams and transactions, in a thread of its own. A test can answer any
// command instead of it, or send bytes that are no answer.
#pragma once

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "sinks/redis/stream_id.hpp"
#include "unit/loopback.hpp"

namespace outbox {

using Command = std::vector<std::string>;

struct Answer {
    std::string bytes{};
    bool close = false;   // after the bytes
    bool silent = false;  // no answer at all
    bool reset = false;   // closes it with what has come and was not read
};

class ScriptedRedis {
  public:
    ScriptedRedis() {
        int number = 0;
        listener_ = listen_on_loopback(number);
        port_ = std::to_string(number);
        wake_ = eventfd(0, EFD_CLOEXEC);
        thread_ = std::thread([this] { serve(); });
    }

    ~ScriptedRedis() {
        stop_ = true;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
        thread_.join();
        close(listener_);
        close(wake_);
    }

    const std::string& port() const { return port_; }
    std::string url() const { return "redis://127.0.0.1:" + port_; }
    std::string address() const { return "127.0.0.1:" + port_; }

    // Returns the answer to a command, also to one of a transaction; nothing: that of Redis. The thread of
    // the peer calls it.
    using Rule = std::function<std::optional<Answer>(const Command& command)>;
    void on(Rule rule) {
        const std::lock_guard lock(mutex_);
        rule_ = std::move(rule);
    }

    std::vector<Command> commands() const {
        const std::lock_guard lock(mutex_);
        return commands_;
    }
    std::size_t count(const std::string& name) const {
        std::size_t count = 0;
        for (const Command& command : commands())
            count += command.front() == name;
        return count;
    }

    // Adds an entry, as another producer does.
    void add(const std::string& stream, StreamId id, const std::string& event_id) {
        const std::lock_guard lock(mutex_);
        streams_[stream].entries[id] = {"event_id", event_id};
        streams_[stream].top = id;
    }
    void delete_entries(const std::string& stream) {
        const std::lock_guard lock(mutex_);
        streams_[stream].entries.clear();
    }
    std::vector<std::string> ids(const std::string& stream) const {
        const std::lock_guard lock(mutex_);
        std::vector<std::string> ids;
        if (const auto found = streams_.find(stream); found != streams_.end())
            for (const auto& [id, fields] : found->second.entries)
                ids.push_back(id.text());
        return ids;
    }
    std::vector<std::vector<std::string>> entries(const std::string& stream) const {
        const std::lock_guard lock(mutex_);
        std::vector<std::vector<std::string>> entries;
        if (const auto found = streams_.find(stream); found != streams_.end())
            for (const auto& [id, fields] : found->second.entries)
                entries.push_back(fields);
        return entries;
    }

  private:
    struct Stream {
        std::map<StreamId, std::vector<std::string>> entries{};
        StreamId top{};
    };

    struct Connection {
        std::string bytes{};
        bool in_transaction = false;
        bool aborted = false;
        bool ended = false;  // by us: what comes is dropped, so that nothing that was sent is lost
        std::vector<Command> queued{};
    };

    static std::string text(const std::string& value) {
        return '$' + std::to_string(value.size()) + "\r\n" + value + "\r\n";
    }
    static std::string array(const std::vector<std::string>& elements) {
        std::string all = '*' + std::to_string(elements.size()) + "\r\n";
        for (const std::string& element : elements)
            all += element;
        return all;
    }

    static std::optional<Command> take_command(std::string& bytes) {
        std::size_t at = 0;
        const auto number = [&](char kind) -> std::optional<std::size_t> {
            const std::size_t end = bytes.find("\r\n", at);
            if (end == std::string::npos || bytes[at] != kind)
                return std::nullopt;
            const std::size_t value = std::stoul(bytes.substr(at + 1, end - at - 1));
            at = end + 2;
            return value;
        };
        const std::optional<std::size_t> count = number('*');
        if (!count)
            return std::nullopt;
        Command command;
        for (std::size_t i = 0; i < *count; i++) {
            const std::optional<std::size_t> size = number('$');
            if (!size || bytes.size() < at + *size + 2)
                return std::nullopt;
            command.push_back(bytes.substr(at, *size));
            at += *size + 2;
        }
        bytes.erase(0, at);
        return command;
    }

    std::string execute(const Command& command) {
        const std::string& name = command.front();
        if (name == "XINFO") {
            const auto found = streams_.find(command[2]);
            if (found == streams_.end())
                return "-ERR no such key\r\n";
            const Stream& stream = found->second;
            std::string first = "*-1\r\n";
            if (!stream.entries.empty())
                first = array({text(stream.entries.begin()->first.text()), "*0\r\n"});
            return array({text("length"), ':' + std::to_string(stream.entries.size()) + "\r\n",
                          text("last-generated-id"), text(stream.top.text()), text("first-entry"),
                          first});
        }
        if (name == "XREVRANGE") {
            const Stream& stream = streams_[command[1]];
            const std::size_t count = std::stoul(command[5]);
            std::vector<std::string> entries;
            for (auto end = stream.entries.upper_bound(*StreamId::parse(command[2]));
                 end != stream.entries.begin() && entries.size() < count;) {
                --end;
                std::vector<std::string> fields;
                for (const std::string& field : end->second)
                    fields.push_back(text(field));
                entries.push_back(array({text(end->first.text()), array(fields)}));
            }
            return array(entries);
        }
        if (name == "XADD")
            return add_entry(command);
        if (name == "WAIT")
            return ":0\r\n";
        return "+OK\r\n";
    }

    std::string add_entry(const Command& command) {
        Stream& stream = streams_[command[1]];
        const std::size_t at = command[2] == "MAXLEN" ? 5 : 2;
        StreamId id;
        if (command[at] == "*") {
            constexpr std::uint64_t now = 1'700'000'000'000;
            id = stream.top.ms >= now ? *stream.top.next() : StreamId{now, 0};
        } else {
            id = *StreamId::parse(command[at]);
        }
        if (id <= stream.top)
            return "-ERR The ID specified in XADD is equal or smaller than the target stream top "
                   "item\r\n";
        stream.top = id;
        stream.entries[id].assign(command.begin() + static_cast<std::ptrdiff_t>(at) + 1,
                                  command.end());
        return text(id.text());
    }

    Answer answer(Connection& connection, const Command& command) {
        const std::lock_guard lock(mutex_);
        commands_.push_back(command);
        const std::string& name = command.front();
        if (rule_)
            if (std::optional<Answer> own = rule_(command)) {
                connection.aborted |= connection.in_transaction && own->bytes.starts_with('-');
                if (name == "EXEC")
                    connection.in_transaction = false;
                return *own;
            }
        if (name == "MULTI") {
            connection.in_transaction = true;
            connection.aborted = false;
            connection.queued.clear();
            return {"+OK\r\n"};
        }
        if (name == "EXEC") {
            connection.in_transaction = false;
            if (connection.aborted)
                return {"-EXECABORT Transaction discarded because of previous errors.\r\n"};
            std::vector<std::string> answers;
            for (const Command& queued : connection.queued)
                answers.push_back(execute(queued));
            return {array(answers)};
        }
        if (connection.in_transaction) {
            connection.queued.push_back(command);
            return {"+QUEUED\r\n"};
        }
        return {execute(command)};
    }

    // Returns false if the connection is over.
    bool take(int fd, Connection& connection) {
        char buffer[65536];
        const ssize_t size = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
        if (size <= 0)
            return false;
        if (connection.ended)
            return true;
        connection.bytes.append(buffer, static_cast<std::size_t>(size));
        while (const std::optional<Command> command = take_command(connection.bytes)) {
            const Answer answer = this->answer(connection, *command);
            for (std::size_t sent = 0; !answer.silent && sent < answer.bytes.size() && !stop_;) {
                const ssize_t n = send(fd, answer.bytes.data() + sent, answer.bytes.size() - sent,
                                       MSG_NOSIGNAL | MSG_DONTWAIT);
                if (n > 0) {
                    sent += static_cast<std::size_t>(n);
                    continue;
                }
                if (errno != EAGAIN)
                    return false;
                pollfd watched{fd, POLLOUT, 0};
                poll(&watched, 1, 10);
            }
            if (answer.reset) {
                const linger at_once{1, 0};
                setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
                return false;
            }
            if (answer.close) {
                shutdown(fd, SHUT_WR);
                connection.ended = true;
                return true;
            }
        }
        return true;
    }

    void serve() {
        std::map<int, Connection> open;
        while (!stop_) {
            std::vector<pollfd> watched{{listener_, POLLIN, 0}, {wake_, POLLIN, 0}};
            for (const auto& [fd, connection] : open)
                watched.push_back({fd, POLLIN, 0});
            poll(watched.data(), watched.size(), -1);
            if (watched[0].revents) {
                const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), on = 1;
                setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // as Redis does
                open[fd];
            }
            for (std::size_t i = 2; i < watched.size(); i++)
                if (watched[i].revents && !take(watched[i].fd, open[watched[i].fd])) {
                    close(watched[i].fd);
                    open.erase(watched[i].fd);
                }
        }
        for (const auto& [fd, connection] : open)
            close(fd);
    }

    int listener_ = -1, wake_ = -1;
    std::string port_;
    std::thread thread_;
    std::atomic<bool> stop_ = false;

    mutable std::mutex mutex_;
    Rule rule_;
    std::vector<Command> commands_;
    std::map<std::string, Stream> streams_;
};

}  // namespace outbox
