// Events from streams of Redis, or a server that speaks its protocol and has streams, as a consumer of a
// group. Entries are read ahead within a budget, kept while they are worked on, and acknowledged after the
// commit. Entries of consumers that have died are taken over.
//
//     auto source = std::make_unique<inbox::RedisSource>(inbox::RedisOptions{
//         .servers = "redis1:6379", .streams = {"orders"}, .group = "catalog", .consumer = "catalog-1"});
//
// CMake target pg_inbox::redis; needs libcurl, OpenSSL and jsoncpp. See docs/client/redis.md.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "inbox/source.hpp"

namespace inbox {

// RedisSource's constructor throws std::invalid_argument for a value out of range.
struct RedisOptions {
    // "host:port,host:port": one server, or nodes of a cluster; the default port is 6379. With `sentinel`
    // they are Sentinels, whose default port is 26379.
    std::string servers{};
    std::string sentinel{};  // name of the primary that the Sentinels know
    int database = 0;

    std::vector<std::string> streams{};  // their keys, 1 to 64
    std::string group{};
    std::string consumer{};  // a name that no other process uses in this group
    // Id of the entry behind which a group begins that the source creates: "0" for all entries, "$" for
    // those to come. If empty, the group must exist.
    // A group that was there before is always created from "0".
    std::string create_group_from{};
    // What is done if the group has gone, perhaps with the stream, or has gone back.
    OnRecreated on_recreated = OnRecreated::begin_again;

    std::string user{}, password{};  // a password without user is possible
    std::string sentinel_user{}, sentinel_password{};

    bool tls = false;
    std::string ca_file{};      // certificates to trust, in PEM; empty for those of the system
    std::string certificate{};  // of the client, as PEM
    std::string private_key{};

    // Entries of each stream that are read ahead of those handed out, 1 to 10,000.
    int prefetch = 256;
    // An entry that its consumer has not touched for this time goes to another one, 100 ms to 24 h. The
    // source touches what it holds at a third of it. It must be the same for all consumers of the group.
    std::chrono::milliseconds min_idle{60'000};

    std::chrono::milliseconds connect_timeout{10'000};
    std::chrono::milliseconds request_timeout{30'000};
    // Pause after a failure. It is random, up to retry_base after the first failure, up to twice that
    // after the next, and never longer than retry_max.
    std::chrono::milliseconds retry_base{200};
    std::chrono::milliseconds retry_max{30'000};
};

// Thread-safety: as Source says. Lifetime: one thread of its own does all work on the network, from
// open() to close().
class RedisSource : public Source {
  public:
    // Connects to nothing yet. Throws std::invalid_argument for options out of range.
    explicit RedisSource(RedisOptions options);
    ~RedisSource() override;

    // Returns 'redis://<stream>/<group>', the streams separated by commas.
    std::string subscription() const override;
    // Throws SourceError if the login is refused, a right is missing, a group does not exist, or a key is
    // not that of a stream. It is transient only if the source was open before.
    void open() override;
    void interrupt() noexcept override;
    std::vector<Delivery> receive(std::size_t max_messages,
                                  std::chrono::milliseconds wait) override;
    void ack(std::span<const Delivery> deliveries) override;
    void nack(std::span<const Delivery> deliveries) override;
    // Always throws SourceError, not transient: a group does not go back for one of its consumers.
    void seek(Time to) override;
    void close(std::chrono::milliseconds limit) noexcept override;

    // Returns a position for each stream, whose subscription is 'redis://<stream>/<group>'.
    std::vector<Position> positions(std::span<const Delivery* const> deliveries) override;
    void set_positions(LoadPositions load) override;
    std::vector<Gap> gaps() override;

  private:
    class Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace inbox
