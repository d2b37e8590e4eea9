// A connection over which requests go side by side (RFC 9113). libcurl connects, OpenSSL encrypts
// (net/late_tls), and nghttp2 reads and writes frames.
//
// The peer is not trusted. nghttp2 refuses what breaks the protocol and limits the answers to pings
// and settings that wait to be sent. Answers are limited as those of Http1Response are.
#pragma once

#include <nghttp2/nghttp2.h>

#include <memory>
#include <string>
#include <vector>

#include "net/http2_fields.hpp"
#include "net/late_tls.hpp"
#include "net/stream.hpp"
#include "net/transport.hpp"

namespace outbox {

// A request that was given to a transport.
struct Http2Request {
    Exchange* exchange = nullptr;
    Micros deadline = never;
    int refused = 0;  // how often it was not read
    int lost = 0;     // how often its connection was lost
};

class Http2Connection {
  public:
    enum class State {
        connecting,
        open,
        closed,
        unreachable,     // failure() and scope() say why
        without_tls,     // the handshake has failed
        other_protocol,  // the server wants HTTP/1.1
    };

    // `config` must outlive it.
    explicit Http2Connection(const TransportConfig& config);
    ~Http2Connection();
    Http2Connection(const Http2Connection&) = delete;
    Http2Connection& operator=(const Http2Connection&) = delete;

    int descriptor() const noexcept { return stream_.descriptor(); }
    Micros deadline() const noexcept;
    State state() const noexcept { return state_; }
    const std::string& failure() const noexcept { return failure_; }
    Scope scope() const noexcept { return stream_.scope(); }
    bool has_room() const noexcept;    // for another request
    bool is_opening() const noexcept;  // how much room it will have is not known

    // These may throw std::bad_alloc.

    // The next step() sends the request.
    void start(const Http2Request& request);
    // Appends exchanges that have ended to `done`, and to `again` requests that the server has not
    // read, or most likely not.
    void step(Micros now, std::vector<Exchange*>& done, std::vector<Http2Request>& again);

  private:
    struct Call;  // a request under way, and its answer
    struct Callbacks;
    struct Free {
        void operator()(nghttp2_session* session) const noexcept { nghttp2_session_del(session); }
    };

    std::size_t under_way() const noexcept { return calls_.size() - spare_.size(); }
    bool is_idle() const noexcept;
    void follow_handshake(Micros now);
    void open_session();
    void submit(Call& call);
    void exchange_frames(Micros now);
    void read_frames();
    void write_frames();
    void expire(Micros now);
    void give_up(Call& call);
    void finish(Call& call);
    void take_reset(Call& call, std::uint32_t code);
    void fail(Call& call, std::string why);
    void refused(Call& call, std::string why);
    void lost(Call& call, const std::string& why);
    void send_again(Call& call);
    void end(State state, std::string why);

    const TransportConfig& config_;
    const std::string authority_;
    const std::string target_;  // unless a request has its own
    State state_ = State::connecting;
    std::string failure_;
    Stream stream_;
    LateTls tls_;
    bool shakes_hands_ = false;
    const Micros open_by_;
    Micros heard_at_ = 0;
    bool has_settings_ = false;  // the server's
    bool is_leaving_ = false;    // takes no more requests
    bool wants_http1_ = false;   // the server does
    bool was_used_ = false;      // has received an answer
    bool has_to_write_ = false;
    bool has_unread_ = false;     // though the connection is closed
    bool out_of_memory_ = false;  // in a callback
    std::vector<std::unique_ptr<Call>> calls_;
    std::vector<Call*> spare_;
    Http2Fields fields_;
    std::vector<Exchange*> done_;
    std::vector<Http2Request> again_;
    std::unique_ptr<nghttp2_session, Free> session_;  // refers to all of these
};

}  // namespace outbox
