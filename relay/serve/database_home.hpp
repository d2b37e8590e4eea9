// One database: its connections, its lease, and its destinations. Everything runs in the thread of
// the loop (serve.cpp).
//
// Two kinds of connections write to the database:
//
//   control connection  for this process: relay_beat() renews the lease, one for all destinations;
//                       relay_take() takes a destination; also locks, LISTEN and relay_leave(). Its
//                       statements run one after another (`control_queue_`).
//   SessionPool         for single destinations: relay_begin(), relay_record(), relay_save(), ...
//                       They name the token of the destination, and change nothing if the database
//                       has another token by now. Also reading, relay_report(), relay_maintain().
//
// The control connection becomes ready in this order:
//
//   connect -> is a pooler in between? -> LISTEN -> settings -> destinations -> first beat -> ready
//
// Lease. It counts from before the beat was sent (lease.hpp), and destinations submit events only
// while may_send(). If beats fail, they stop before the database gives them to another process.
//
// Behind a pooler there are no locks and no notifications. Otherwise locks end with the session: if
// it is lost, other processes may take over at once. So nothing is sent until there is a new
// session. It has a new id in outbox.relay, and takes the destinations again.
//
// Looking. While events come, destinations look for them all the time. One that finds none for
// itself leaves that to another one that looks (`scout_`). While the scout finds events, one
// statement now and then asks for all destinations that do not look (relay_probe()). When it has
// found nothing for a while, the database goes to rest: relay_beat() takes the wake lock and looks
// once more for all destinations. At rest the process only sends a beat now and then, and the next
// enqueue sends a notification. Behind a pooler the scout goes on looking, at intervals.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "relay/serve/destination_home.hpp"
#include "relay/serve/lease.hpp"

namespace outbox::relay {

class DatabaseHome final : private DestinationHost, private Connection::Owner {
  public:
    DatabaseHome(Process process, const DatabaseConfig& config, const LibpqParameters& environment);
    ~DatabaseHome();
    DatabaseHome(const DatabaseHome&) = delete;
    DatabaseHome& operator=(const DatabaseHome&) = delete;

    Micros deadline() const noexcept;
    void step(Micros now);

    // Lets what is in flight end, saves, and gives up the leases.
    void end();
    bool has_ended() const noexcept { return ended_; }
    // For --once.
    bool is_drained() const noexcept;
    bool has_failed() const noexcept;

    DatabaseFigures figures();

  private:
    // DestinationHost
    const DatabaseConfig& database() const noexcept override { return config_; }
    const DatabaseSettings& settings() const noexcept override { return settings_; }
    const Relay::Intervals& intervals() const noexcept override { return intervals_; }
    std::string local_host() const override { return host_; }
    std::string local_port() const override { return port_; }
    void run_take(std::int32_t number, std::function<void(Answer)> done) override;
    bool may_send() const noexcept override;
    void has_taken(DestinationHome& home) override;
    void has_lost(DestinationHome& home) override;
    void has_found(DestinationHome& home) override;
    void has_selected(DestinationHome& home) override;
    bool goes_on_looking(DestinationHome& home) override;

    // Connection::Owner
    void connection_ready(Connection& connection) override;
    void connection_lost(Connection& connection) override;
    void notified(const std::string& payload) override;

    // The control connection.
    void run(Call call, void (DatabaseHome::*done)(Answer));
    void run(Statement statement);
    Micros control_time_limit() const noexcept;
    void greet();
    void take_who_am_i(Answer answer);
    void listen();
    void take_listening(Answer answer);
    void load();
    void take_settings(Answer answer);
    void leave_alone();
    void take_destinations(Answer answer);
    void lose_all();
    void control_failed(const Answer& answer);
    void control_failed_if(Answer answer);
    Micros greeting_due() const noexcept;
    void set_intervals();

    // Beats.
    void beat(bool rest);
    void take_beat(Answer answer);
    bool operator_acted(const DestinationHome& home, const calls::BeatAnswer& answer) const;
    void follow_beat(const calls::BeatAnswer& answer);
    void take_free(std::vector<std::int32_t> free);
    DestinationHome* find(std::int32_t number) noexcept;
    Micros beat_due() const noexcept;

    // Rest.
    void look_after_rest(Micros now);
    Micros rest_due() const noexcept;
    void wake();
    void let_all_look();
    void wake_all();
    void wake_home(DestinationHome& home);

    // Probes.
    Micros probe_due() const noexcept;
    void probe();
    void take_probe(const Answer& answer);

    // Upkeep.
    void report();
    void maintain_soon(Micros pause);
    void maintain();
    void remove_gone();
    void leave(Micros now);
    void take_leave(Answer answer);

    Process process_;
    DatabaseConfig config_;
    ConnectionParameters parameters_;
    ConnectionCounts counts_;
    Uuid id_;
    DatabaseSettings settings_;
    Relay::Intervals intervals_;
    std::string host_, port_;

    Connection control_;
    std::deque<Statement> control_queue_;
    SessionPool sessions_;
    bool direct_ = false;
    bool ready_ = false;  // the first beat has been answered
    std::string trouble_;
    bool lacks_rights_ = false;
    LineBudget trouble_lines_;

    Lease lease_;
    Micros beat_asked_at_ = 0;  // boot time
    bool beat_under_way_ = false;
    bool beat_now_ = false;
    calls::Beat asked_{};         // by the last beat
    Micros beat_not_before_ = 0;  // after a failure
    std::string configuration_;
    std::string copy_;       // what the database was a copy of at the last beat
    bool outdated_ = false;  // settings and destinations must be read again
    bool loading_ = false;   // statements of load(), or before it, are under way
    bool greeted_ = false;   // the destinations are known
    bool fits_ = true;       // the version of pg_outbox

    // Homes that are gone from the database but have statements under way are at the end of gone_.
    std::vector<std::unique_ptr<DestinationHome>> homes_;
    std::vector<std::unique_ptr<DestinationHome>> gone_;
    DestinationHome* scout_ = nullptr;

    bool resting_ = false;
    bool holds_wake_lock_ = false;
    Micros found_at_ = 0;
    Micros rest_not_before_ = 0;
    Micros rest_pause_ = 0;

    bool probe_wanted_ = false;
    bool probe_under_way_ = false;
    Micros probed_at_ = 0;

    Micros report_at_ = 0;
    std::string reported_;
    Micros maintain_at_ = never;
    Micros maintained_at_ = 0;
    bool maintaining_ = false;
    bool maintains_ = false;  // no keeper does
    bool ends_ = false;
    bool leaving_ = false;
    bool ended_ = false;
    Micros leave_by_ = never;
    Micros unready_since_;

    std::uint64_t renewals_ = 0, takeovers_ = 0, losses_ = 0;
    Micros renewed_at_ = 0;
};

}  // namespace outbox::relay
