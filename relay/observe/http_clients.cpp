#include "relay/observe/http_clients.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace outbox::relay {

namespace {

constexpr std::string_view too_large =
    "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: "
    "close\r\n\r\n";

void set_non_blocking(int socket) noexcept {
    fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
    fcntl(socket, F_SETFD, FD_CLOEXEC);
}

bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

HttpClients::HttpClients(Answer answer)
    : answer_(std::move(answer)),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

HttpClients::~HttpClients() {
    stopping_ = true;
    eventfd_write(wake_, 1);
    thread_.join();
    for (int socket : new_)
        close(socket);
    close(wake_);
}

void HttpClients::add(int socket) {
    set_non_blocking(socket);
    {
        const std::lock_guard lock(mutex_);
        // The thread has been busy for long. It would drop the socket anyway.
        if (new_.size() >= max_clients) {
            close(socket);
            return;
        }
        new_.push_back(socket);
    }
    eventfd_write(wake_, 1);
}

void HttpClients::take_new() {
    eventfd_t count = 0;
    eventfd_read(wake_, &count);
    std::vector<int> sockets;
    {
        const std::lock_guard lock(mutex_);
        sockets.swap(new_);
    }
    for (int socket : sockets) {
        if (clients_.size() >= max_clients) {
            close(clients_.front().socket);
            clients_.pop_front();
        }
        clients_.push_back({socket, clock_.now() + time_limit});
    }
}

int HttpClients::milliseconds_left() const {
    if (clients_.empty())
        return -1;
    // The oldest has the earliest deadline.
    const Micros left = clients_.front().deadline - clock_.now();
    return static_cast<int>(std::max<Micros>((left + 999) / 1000, 0));
}

void HttpClients::serve_once(std::vector<pollfd>& polled) {
    polled.assign(1, {wake_, POLLIN, 0});
    for (const Client& client : clients_)
        polled.push_back(
            {client.socket, static_cast<short>(client.response.empty() ? POLLIN : POLLOUT), 0});
    poll(polled.data(), polled.size(), milliseconds_left());
    std::size_t at = 0;
    for (auto client = clients_.begin(); client != clients_.end();) {
        const bool stays = step(*client, polled[++at].revents);
        if (!stays)
            close(client->socket);
        client = stays ? std::next(client) : clients_.erase(client);
    }
    take_new();
}

void HttpClients::drop_all() noexcept {
    for (const Client& client : clients_)
        close(client.socket);
    clients_.clear();
}

void HttpClients::run() noexcept {
    std::vector<pollfd> polled;
    while (!stopping_) {
        try {
            serve_once(polled);
        } catch (...) {  // out of memory
            drop_all();
        }
    }
    drop_all();
}

bool HttpClients::step(Client& client, short events) {
    if (clock_.now() >= client.deadline)
        return false;
    if (events == 0)
        return true;
    return client.response.empty() ? receive(client) : send(client);
}

// Once answered, it reads on until the client closes: closing a socket with unread input would
// discard the response on its way.
bool HttpClients::receive(Client& client) {
    char buffer[4096];
    const ssize_t size = recv(client.socket, buffer, sizeof buffer, 0);
    if (size <= 0)
        return size < 0 && would_block();
    if (client.is_answered)
        return true;
    client.request.append(buffer, static_cast<std::size_t>(size));
    answer_if_complete(client);
    return client.response.empty() || send(client);
}

void HttpClients::answer_if_complete(Client& client) {
    const std::string& request = client.request;
    const std::size_t line = request.find("\r\n");
    const bool is_complete = request.find("\r\n\r\n") != std::string::npos;
    if (line > max_request_line && request.size() > max_request_line)
        client.response = too_large;
    else if (is_complete)
        client.response = answer_(std::string_view(request).substr(0, line));
    else if (request.size() > max_head)
        client.response = too_large;
    client.is_answered = !client.response.empty();
}

bool HttpClients::send(Client& client) {
    const ssize_t size = ::send(client.socket, client.response.data() + client.sent,
                                client.response.size() - client.sent, MSG_NOSIGNAL);
    if (size < 0)
        return would_block();
    client.sent += static_cast<std::size_t>(size);
    if (client.sent < client.response.size())
        return true;
    client.response.clear();
    client.request.clear();
    return shutdown(client.socket, SHUT_WR) == 0;
}

}  // namespace outbox::relay
