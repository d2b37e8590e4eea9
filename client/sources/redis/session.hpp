// The conversation with Redis about one stream, over one connection: reads, acknowledges, extends,
// and takes over the entries of consumers that have died. It has no thread: worker.hpp shows when
// it is called.
//
// Order of commands. A new connection first sends acknowledgements that have no answer. Then it
// reads from the beginning what is pending for this consumer ("history"), because an answer may
// have been lost with the last connection. Then it reads new entries (">"). Only one XREADGROUP is
// under way at a time. It blocks for a limited time, in which commands behind it have to wait. So
// this time is short while the source holds entries, and nothing blocks while it takes over entries,
// page by page, each page with one look at new ones.
//
// Ownership of entries. XCLAIM takes an entry from any consumer. So a claim is extended with a
// minimum idle time that is hardly shorter than the interval of extensions: an entry that another
// consumer has taken over, and extends, is rarely idle for that time. An entry that the answer to
// XCLAIM leaves out has been lost. (If an entry is taken back, both consumers apply it, and the
// inbox makes sure that it has one effect.) No claim is extended while an answer is on its way that
// may have reset idle times.
//
// A group that has gone is created again, if the options allow it. It is then unknown what was
// pending for other consumers, so it begins with the first entry of the stream.
#pragma once

#include <deque>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/backoff.hpp"
#include "inbox/source.hpp"
#include "net/redis_connection.hpp"
#include "net/redis_redirect.hpp"
#include "redis/claims.hpp"
#include "redis/entries.hpp"

namespace inbox::redis {

struct Setup {
    std::vector<std::pair<std::string, std::string>> hosts;  // with their ports
    std::string sentinel;
    bool tls = false;
    outbox::RedisLogin login, sentinel_login;
    outbox::TransportOptions transport;
    std::vector<std::string> streams;
    std::string group, consumer;
    std::string create_group_from;
    OnRecreated on_recreated = OnRecreated::begin_again;
    std::string subscription;
    std::size_t prefetch = 0;
    outbox::Micros min_idle = 0;
    outbox::Micros retry_base = 0, retry_max = 0;
};

// The subscription of one stream.
std::string subscription_of(const std::string& stream, const std::string& group);

// The handle of a delivery, as text '<session> <generation> <id>'.
struct Handle {
    std::size_t session = 0;  // number of the stream
    std::uint64_t generation = 0;
    outbox::StreamId id{};

    std::string text() const;
    static std::optional<Handle> parse(std::string_view text);
};

class Session {
  public:
    struct Failure {
        std::string message;
        bool transient;
    };

    // `number` is the index of the stream. Registers its connections with `epoll`.
    Session(const Setup& setup, std::size_t number, const outbox::Clock& clock, int epoll);

    // Works on the network, and notes what has arrived.
    void step(outbox::Micros now);
    // Returns when step() has something to do even if epoll reports nothing.
    outbox::Micros deadline() const noexcept;

    // The functions below need the mutex of the owner, because other threads change claims() under
    // it.

    // Enters what step() has noted, and sends. Returns when there will be more to do.
    outbox::Micros work(outbox::Micros now);
    Claims& claims() noexcept { return claims_; }
    bool is_known() const noexcept { return is_known_; }  // the group, since the last retry()
    const std::string& subscription() const noexcept { return source_; }
    // To be called before the first step().
    void load(const Position& saved);
    Position position_of(const Delivery& delivery);
    std::vector<Gap> take_gaps() { return std::exchange(gaps_, {}); }
    const std::optional<Failure>& failure() const noexcept { return failure_; }
    // Tries again after a failure.
    void retry() noexcept { failure_.reset(); }
    // From now on the session receives nothing, and gives back what it holds.
    void begin_to_close() noexcept { is_closing_ = true; }
    bool is_settled() const noexcept { return !has_entries() && questions_.empty(); }
    bool has_entries() const noexcept { return claims_.held() > 0 || claims_.has_acks(); }
    std::vector<std::pair<Level, std::string>> take_notes() { return std::exchange(notes_, {}); }

  private:
    enum class Stage { disconnected, connecting, asking, working };
    struct Question {
        enum class Kind {
            primary,
            create,
            asking,
            history,
            news,
            ack,
            extend,
            give_back,
            claim,
            owner,
        };
        Kind kind;
        Claims::Ids ids{};      // of entries that it is about
        std::size_t count = 0;  // of entries that were asked for
        outbox::Micros due = 0;
    };
    struct Server {
        std::string host, port;
        bool is_sentinel = false;
        bool asks = false;  // it serves the stream only after the command ASKING

        bool operator==(const Server&) const = default;
    };

    // Connections.
    void connect(outbox::Micros now);
    void disconnect();
    void pause(outbox::Micros now);
    void lost(std::string why, bool is_refusal, outbox::Micros now);
    void follow(const outbox::Redirect& redirect, outbox::Micros now);
    Server first_server() const;
    bool is_refused() const;
    void ready(outbox::Micros now);
    void create_group();
    void begin(outbox::Micros now);

    // Sending.
    void put(Question question);
    template <class... Arguments>
    void ask(Question question, const Arguments&... arguments);
    void ask_about(Question::Kind kind, const Claims::Ids& ids);
    outbox::Micros converse(outbox::Micros now);
    void read(std::size_t room);
    void claim(std::size_t room);
    std::size_t room() const;
    bool is_asked(Question::Kind kind) const noexcept;
    bool is_taking_over() const noexcept;

    // Answers.
    void take(const outbox::RespValue& answer);
    void take_error(const Question& question, const std::string& error);
    void take_primary(const outbox::RespValue& answer);
    void take_created();
    void take_entries(const Question& question, const outbox::RespValue& answer);
    void take_history(const Question& question, const Entries& found);
    void take_claimed(const outbox::RespValue& answer);
    void take_extended(const Claims::Ids& ids, const outbox::RespValue& answer);
    void take_owner(outbox::StreamId id, const outbox::RespValue& answer);
    void look_for_order(const Entries& found);
    void ask_for_owners();
    void group_has_gone(outbox::Micros now);
    void recreated(const std::string& why);
    void enter_deleted();
    outbox::StreamId add(const Entries& found, std::size_t asked, outbox::StreamId from);
    void read_again_behind(outbox::StreamId id);
    void learn_page(const Entries& found);
    void enter(outbox::Micros now);

    void malformed(const char* command);
    void note(Level level, std::string message) { notes_.emplace_back(level, std::move(message)); }
    std::string about(const std::string& what) const { return source_ + ": " + what; }

    const Setup& setup_;
    const std::size_t number_;
    const std::string stream_, source_;
    const outbox::Clock& clock_;
    const int epoll_;

    // Guarded by the mutex of the owner.
    Claims claims_;
    bool is_known_ = false;
    bool is_closing_ = false;
    std::optional<Failure> failure_;
    std::vector<Gap> gaps_;
    Time saved_at_{};  // of the last position

    // These belong to the thread.
    std::optional<outbox::RedisConnection> connection_;
    Server server_;               // of the connection
    std::size_t begin_with_ = 0;  // index of the host to connect to first
    unsigned redirects_ = 0;      // in a row
    Stage stage_ = Stage::disconnected;
    std::deque<Question> questions_;  // without an answer
    bool has_read_ = false;           // over this connection
    bool has_worked_ = false;
    int refusals_ = 0;  // in a row
    int created_ = 0;   // how often the group was, without an answer to XREADGROUP after it
    outbox::Backoff pauses_;
    outbox::Micros connect_at_ = 0;

    bool must_create_ = false;  // the group
    bool in_history_ = true;
    outbox::StreamId history_from_{};  // ids above it
    bool reads_one_ = false;           // because a longer answer was cut
    std::size_t page_ = 0;             // entries to ask for
    outbox::StreamId claim_from_{};
    outbox::Micros claim_at_ = 0;
    std::uint64_t gone_ = 0, noted_gone_ = 0;  // entries that were deleted while they were pending
    bool was_there_ = false;                   // the group, when an event was applied
    bool is_gone_ = false;                     // the group, and this is told
    outbox::StreamId highest_{};               // of the new entries of the group so far
    std::set<outbox::StreamId> missed_;        // claims that XCLAIM has not extended

    // Notes of step().
    std::vector<std::pair<outbox::StreamId, Delivery>> arrived_;
    Claims::Ids confirmed_, unsent_, extended_, lost_, kept_;
    Claims::Ids deleted_;    // entries that have left the stream, pending or not
    std::string went_back_;  // why the group is another one
    std::string trouble_;
    bool is_refusal_ = false;
    bool group_is_missing_ = false;
    std::optional<outbox::Redirect> redirect_;
    std::vector<std::pair<Level, std::string>> notes_;
};

}  // namespace inbox::redis
