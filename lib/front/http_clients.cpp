#include "front/http_clients.hpp"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <optional>
#include <utility>

#include "front/http_head.hpp"

namespace outbox {

namespace {

bool would_block() noexcept {
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// The body of a request, by its head.
struct Body {
    std::size_t size = 0;
    const char* refusal = nullptr;  // the status of a request that cannot be read
};

Body body_of(std::string_view head, std::size_t max_size) {
    Body body;
    std::optional<std::string_view> length;
    visit_fields(head, [&](std::string_view name, std::string_view value) {
        if (is_called(name, "Transfer-Encoding"))
            body.refusal = "411 Length Required";
        else if (is_called(name, "Content-Length") && length && *length != value)
            body.refusal = "400 Bad Request";
        else if (is_called(name, "Content-Length"))
            length = value;
    });
    if (!length || body.refusal != nullptr)
        return body;
    const char* end = length->data() + length->size();
    const auto [at, error] = std::from_chars(length->data(), end, body.size);
    if (at != end || (error != std::errc() && error != std::errc::result_out_of_range))
        body.refusal = "400 Bad Request";
    else if (error != std::errc() || body.size > max_size)
        body.refusal = "413 Content Too Large";
    return body;
}

}  // namespace

HttpClients::HttpClients(int listener, const Limits& limits, Answer answer, IsQuick is_quick)
    : limits_(limits),
      answer_(std::move(answer)),
      is_quick_(std::move(is_quick)),
      listener_(listener),
      wake_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      thread_([this] { run(); }) {
    for (std::size_t i = 0; i < limits_.workers; i++)
        workers_.emplace_back([this] { work(); });
}

HttpClients::~HttpClients() {
    stopping_ = true;
    eventfd_write(wake_, 1);
    thread_.join();
    {
        const std::lock_guard lock(mutex_);
        jobs_.clear();
    }
    has_jobs_.notify_all();
    for (std::thread& worker : workers_)
        worker.join();
    close(listener_);
    close(wake_);
}

// -------------------------------------------------------------------------------------------------
// Workers
// -------------------------------------------------------------------------------------------------

void HttpClients::work() noexcept {
    while (true) {
        Job job{};
        {
            std::unique_lock lock(mutex_);
            has_jobs_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
            if (jobs_.empty())
                return;
            job = std::move(jobs_.front());
            jobs_.pop_front();
        }
        try {
            job.text = answer_(job.text);
        } catch (...) {  // out of memory
            job.text.clear();
        }
        const std::lock_guard lock(mutex_);
        answers_.push_back(std::move(job));
        eventfd_write(wake_, 1);
    }
}

void HttpClients::take_answers() {
    eventfd_t count = 0;
    eventfd_read(wake_, &count);
    std::vector<Job> answers;
    {
        const std::lock_guard lock(mutex_);
        answers.swap(answers_);
    }
    for (Job& job : answers) {
        const auto client = std::find_if(clients_.begin(), clients_.end(), [&](const Client& one) {
            return one.number == job.client;
        });
        if (client == clients_.end())
            continue;
        respond(*client, std::move(job.text));
        if (!send(*client))
            drop(client);
    }
}

// -------------------------------------------------------------------------------------------------
// The thread
// -------------------------------------------------------------------------------------------------

HttpClients::Clients::iterator HttpClients::drop(Clients::iterator client) {
    close(client->socket);
    return clients_.erase(client);
}

void HttpClients::drop_one() {
    const auto oldest = std::find_if(clients_.begin(), clients_.end(), [](const Client& client) {
        return client.state != State::waits;
    });
    if (oldest != clients_.end())
        drop(oldest);
}

void HttpClients::take(int socket) {
    if (clients_.size() >= max_clients)
        drop_one();
    clients_.push_back({socket, ++last_number_, clock_.now() + time_limit});
    if (!receive(clients_.back()))
        drop(std::prev(clients_.end()));
}

// Those that have come while it works on one turn are enough for the next.
void HttpClients::accept_all() {
    for (std::size_t i = 0; i < 2 * max_clients; i++) {
        const int socket = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (socket >= 0)
            take(socket);
        else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
            drop_one();
        else if (errno == EAGAIN || errno == EWOULDBLOCK)
            return;
    }
}

int HttpClients::milliseconds_left() const {
    Micros next = never;
    for (const Client& client : clients_)
        if (client.state != State::waits)
            next = std::min(next, client.deadline);
    if (next == never)
        return -1;
    return static_cast<int>(std::max<Micros>((next - clock_.now() + 999) / 1000, 0));
}

void HttpClients::serve_once(std::vector<pollfd>& polled) {
    polled.assign({{wake_, POLLIN, 0}, {listener_, POLLIN, 0}});
    for (const Client& client : clients_)
        polled.push_back({client.state == State::waits ? -1 : client.socket,
                          static_cast<short>(client.state == State::sends ? POLLOUT : POLLIN), 0});
    poll(polled.data(), polled.size(), milliseconds_left());
    std::size_t at = 1;
    for (auto client = clients_.begin(); client != clients_.end();) {
        const bool stays = step(*client, polled[++at].revents);
        client = stays ? std::next(client) : drop(client);
    }
    take_answers();
    accept_all();
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
    if (client.state == State::waits)
        return true;
    if (clock_.now() >= client.deadline)
        return false;
    if (events == 0)
        return true;
    return client.state == State::sends ? send(client) : receive(client);
}

// Once answered, it reads on until the client closes: closing a socket with unread input would
// discard the response on its way.
bool HttpClients::receive(Client& client) {
    char buffer[4096];
    const ssize_t size = recv(client.socket, buffer, sizeof buffer, 0);
    if (size <= 0)
        return size < 0 && would_block();
    if (client.state == State::ends)
        return true;
    client.request.append(buffer, static_cast<std::size_t>(size));
    answer_if_complete(client);
    return client.state != State::sends || send(client);
}

// A request has at most `max_head` bytes and its body, and a piece that was received with its end.
void HttpClients::answer_if_complete(Client& client) {
    std::string& request = client.request;
    const std::size_t line = request.find("\r\n");
    const std::size_t head = request.find("\r\n\r\n");
    if (std::min(line, request.size()) > limits_.request_line)
        return respond(client, refusal("414 URI Too Long"));
    if (std::min(head, request.size()) > max_head)
        return respond(client, refusal("431 Request Header Fields Too Large"));
    if (head == std::string::npos)
        return;
    const Body body = body_of(std::string_view(request).substr(0, head), limits_.body);
    if (body.refusal != nullptr)
        return respond(client, refusal(body.refusal));
    if (request.size() < head + 4 + body.size)
        return;
    request.resize(head + 4 + body.size);
    answer(client);
}

void HttpClients::answer(Client& client) {
    if (workers_.empty() || (is_quick_ && is_quick_(client.request)))
        return respond(client, answer_(client.request));
    {
        const std::lock_guard lock(mutex_);
        if (jobs_.size() < max_jobs) {
            jobs_.push_back({client.number, std::move(client.request)});
            client.state = State::waits;
        }
    }
    if (client.state != State::waits)
        return respond(client, refusal("503 Service Unavailable"));
    has_jobs_.notify_one();
}

void HttpClients::respond(Client& client, std::string response) {
    client.request.clear();
    client.response = response.empty() ? refusal("500 Internal Server Error") : std::move(response);
    client.state = State::sends;
    const auto size = static_cast<Micros>(client.response.size());
    client.deadline = clock_.now() + time_limit + size * micros_per_byte;
    keep_within_limit(client);
}

// Clients that do not read would fill the memory with their responses: the oldest of them goes.
void HttpClients::keep_within_limit(const Client& but) {
    std::size_t size = 0;
    for (const Client& client : clients_)
        size += client.response.size();
    for (auto client = clients_.begin(); client != clients_.end() && size > max_unsent; ++client)
        if (&*client != &but && client->state == State::sends) {
            size -= client->response.size();
            client->response.clear();
            client->deadline = 0;  // its turn ends it
        }
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
    client.state = State::ends;
    return shutdown(client.socket, SHUT_WR) == 0;
}

}  // namespace outbox
