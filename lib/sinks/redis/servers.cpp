#include "sinks/redis/servers.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

namespace outbox {

// Redis recommends at most 1,000 nodes for a cluster.
static constexpr std::size_t most_servers = 1000;

RedisServers::RedisServers(const RedisOptions& options, const Clock& clock)
    : options_(options), clock_(clock), epoll_(epoll_create1(EPOLL_CLOEXEC)) {
    for (const auto& [host, port] : options.hosts)
        add(host, port, !options.sentinel.empty());
}

RedisServers::~RedisServers() {
    all_.clear();
    if (epoll_ >= 0)
        close(epoll_);
}

RedisServer* RedisServers::add(const std::string& host, const std::string& port, bool sentinel) {
    const RedisUser& account = sentinel ? options_.sentinel_account : options_.account;
    RedisLogin login{account.user, account.password, sentinel ? 0 : options_.database};
    auto server = std::make_unique<RedisServer>(
        stream_config(options_.transport, clock_, host, port, options_.tls, "redis"),
        std::move(login), host + ':' + port);
    server->is_sentinel = sentinel;
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, server->connection.descriptor(), &event);
    all_.push_back(std::move(server));
    return all_.back().get();
}

Micros RedisServers::deadline() const noexcept {
    Micros first = never;
    for (const std::unique_ptr<RedisServer>& server : all_)
        first = std::min(first, server->connection.deadline());
    return first;
}

RedisServer& RedisServers::entry() {
    return primary_ != nullptr ? *primary_ : *all_[begin_with_];
}

bool RedisServers::is_entry(const RedisServer& server) const noexcept {
    return &server == primary_ || &server == all_[begin_with_].get();
}

RedisServer* RedisServers::named(const RedisServer& by, const std::string& host,
                                 const std::string& port) {
    const std::string& of_host = host.empty() ? by.name.substr(0, by.name.rfind(':')) : host;
    const std::string name = of_host + ':' + port;
    for (const std::unique_ptr<RedisServer>& server : all_)
        if (server->name == name && !server->is_sentinel)
            return server.get();
    if (!is_host_name(of_host) || all_.size() >= max_servers)
        return nullptr;
    return add(of_host, port, false);
}

// All hosts of the URL may be gone, so a server that the cluster named may become the entry.
void RedisServers::leave(const RedisServer& server) noexcept {
    if (&server == primary_) {
        primary_ = nullptr;
        return;
    }
    if (&server != all_[begin_with_].get())
        return;
    do
        begin_with_ = (begin_with_ + 1) % all_.size();
    while (all_[begin_with_]->is_sentinel != server.is_sentinel);
}

}  // namespace outbox
