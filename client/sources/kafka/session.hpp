// One membership in the consumer group, from open() to close(), and its thread.
//
// Threads:
//
//   thread of the session  only it talks to the group: it reads both queues, assigns and unassigns,
//                          commits and seeks. It never waits for a handler: while one is slow, the
//                          thread goes on polling.
//   other threads          receive(), ack(), nack() and positions() change `partitions_` under the
//                          mutex and wake the thread. seek() and stats() also ask the library,
//                          which allows that in any thread. seek() then leaves `seek_`, and waits
//                          until the thread has done it.
//   threads of librdkafka  do not run our code; their events and records wait in the queues
//
// A turn of the thread: events (rebalances, results of commits, errors), partitions to assign,
// partitions to give up, a seek, partitions that are astray, records, the commit that is due. It takes the mutex for each
// change of the shared members, and keeps it during a seek, so that no record from before is handed
// out.
//
// A partition that must be given up goes through these steps. Its records that wait are dropped,
// and recall() takes back those that no handler has begun with. The thread waits until the others
// are settled, up to revoke_limit. Then it commits the position and unassigns. A handler that takes
// longer commits to the database beside the next owner of the partition, which waits for that
// transaction in inbox.begin_events().
//
// A partition is astray if the broker does not have its position, or has another record there: the
// records were deleted, or the topic was made again or cut back. The library is told to begin it
// where the broker's records say, and what is skipped is told.
//
// End. close() sets `close_by_` and waits for the thread. The thread commits, leaves the group, and
// serves its last rebalance, until the library has closed the consumer or `close_by_` has passed.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/secrets.hpp"
#include "kafka/client.hpp"
#include "kafka/partitions.hpp"

namespace inbox::kafka {

// Shared by the sessions of a source.
struct Membership {
    KafkaOptions options;
    std::string subscription;
    Log log;
    LoadPositions load_positions{};
    std::atomic<bool> has_worked{false};  // it has had a partition
};

class Session {
  public:
    // Starts a thread. Throws SourceError.
    explicit Session(Membership& membership);
    ~Session();
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;

    std::vector<Delivery> receive(std::size_t most, std::chrono::milliseconds wait);
    void ack(std::span<const Delivery> deliveries);
    void nack(std::span<const Delivery> deliveries);
    std::vector<Position> positions(std::span<const Delivery* const> deliveries);
    std::vector<Position> moved_positions();
    std::vector<Gap> gaps();
    bool wants_recall();
    bool is_recalled(const Delivery& delivery);
    void seek(Time to);
    // Leaves the group. Waits for at most `limit`.
    void close(std::chrono::milliseconds limit);
    KafkaStats stats() const;

  private:
    using Clock = std::chrono::steady_clock;
    struct Failure {
        std::string message;
        bool transient;
    };
    struct Seek {
        std::vector<PlacedOffset> to;
        Time time;
        std::string error{};
        bool done = false;
    };
    using Why = Partitions::Why;
    struct Astray {
        Why why;
        Clock::time_point look_at{};
        unsigned failures = 0;
        bool is_found = false;
    };

    void run() noexcept;
    bool turn();
    void serve_events();
    void serve(rd_kafka_event_t* event);
    void rebalance(rd_kafka_event_t* event);
    bool has_room_for(const rd_kafka_topic_partition_list_t& list);
    void assign();
    bool load_begins(std::map<Place, Begin>& begins);
    void load_saved(std::map<Place, Begin>& begins) const;
    void load_committed(std::map<Place, Begin>& begins) const;
    void find_ends(std::map<Place, Begin>& begins) const;
    std::string begin_at(const std::vector<PlacedOffset>& offsets);
    std::string assign_to_library(const rd_kafka_topic_partition_list_t& list);
    std::string unassign_from_library(const rd_kafka_topic_partition_list_t& list);
    std::vector<PlacedOffset> begins_with(const Place& place, std::int64_t from) const;
    void goes_astray(const Place& place, Why why);
    void doubt_topics();
    void look_for_other_topics();
    void find_again();
    std::optional<std::int64_t> find_again(const Place& place, Why why, std::int64_t low,
                                           std::int64_t high);
    void note_gap(const Place& place, const std::string& why, std::int64_t skipped);
    void revoke();
    void give_up(const rd_kafka_topic_partition_list_t& list);
    bool read_records();
    void read(const rd_kafka_message_t& message);
    void pause(const std::vector<Place>& places, bool paused);
    void commit_if_due();
    void wait_for_the_group();
    void commit(const std::vector<PlacedOffset>& offsets);
    void commit_and_wait(const std::vector<PlacedOffset>& offsets) const;
    void committed(rd_kafka_event_t* event);
    void seek_if_asked();
    bool leave();
    void wait();

    void check_has_all(const std::vector<Place>& places) const;
    std::vector<PlacedOffset> offsets_at(const std::vector<Place>& places, Time to) const;

    void fail(std::string message, bool transient);
    void note(Level level, const std::string& message) const;
    std::string clean(std::string message) const;
    void explain(rd_kafka_resp_err_t code, const char* text, bool is_fatal);
    void warn(const std::string& kind, const std::string& message);
    void wake() const;

    Membership& membership_;
    const KafkaOptions& options_;
    outbox::Secrets secrets_;
    int wake_;
    std::optional<Client> client_;
    std::thread thread_;

    mutable std::mutex mutex_;
    std::condition_variable changed_;
    // These are guarded by the mutex.
    Partitions partitions_;
    KafkaStats stats_;
    std::optional<Failure> failure_;
    Seek* seek_ = nullptr;
    bool wants_recall_ = true;  // of deliveries that an earlier session has handed out
    std::vector<Gap> gaps_;
    bool starved_ = false;  // the thread has left records because too many wait
    std::optional<Clock::time_point> close_by_;
    bool ended_ = false;

    // These belong to the thread.
    List to_assign_, to_revoke_;
    Clock::time_point load_at_{}, revoke_by_{}, commit_at_{};
    unsigned failed_loads_ = 0;
    bool lost_ = false;
    int commits_in_flight_ = 0;
    bool joins_again_ = false;  // the next assignment is not yet the end of the rebalance
    bool leaving_ = false;
    bool has_more_ = false;
    std::map<std::string, Clock::time_point> logged_;  // by error
    std::map<Place, Astray> astray_;
    Clock::time_point look_at_{}, look_at_all_at_{};  // for other topics
    std::map<Place, Clock::time_point> not_before_;   // because its times are not in order
};

}  // namespace inbox::kafka
