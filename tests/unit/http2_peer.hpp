// An HTTP/2 server on loopback under the control of a test: OpenSSL for TLS, nghttp2 for frames. It
// has no thread. The test calls step() beside the client's, so it decides what happens between two
// steps, and may change everything here then.
//
// A peer that misbehaves sends bytes of the test's choice with send_raw().
#pragma once

#include <nghttp2/nghttp2.h>
#include <openssl/ssl.h>
#include <poll.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

using Http2Lines = std::vector<std::pair<std::string, std::string>>;

class Http2Peer {
  public:
    class Connection;

    struct Request {
        Connection* connection = nullptr;
        std::int32_t stream = 0;
        std::map<std::string, std::string> headers{};  // with those like ":path"
        std::string body{};
        bool is_complete = false;
        bool is_closed = false;        // its stream
        std::uint32_t close_code = 0;  // why
        std::string answer{};
        std::size_t answered = 0;  // bytes of `answer`

        void reply(int status, std::string body = "", Http2Lines lines = {});
        void interim(int status, const Http2Lines& lines = {});
        void reset(std::uint32_t code);
    };

    class Connection {
      public:
        Connection(Http2Peer& peer, int fd);
        ~Connection();
        Connection(const Connection&) = delete;
        Connection& operator=(const Connection&) = delete;

        bool is_closed() const noexcept { return fd_ < 0; }
        bool is_ready() const noexcept { return is_ready_; }  // the handshake is complete
        const std::string& received() const noexcept { return received_; }
        // nullptr unless the peer speaks HTTP/2 over it.
        nghttp2_session* session() const noexcept { return session_; }
        void stop_reading() noexcept { reads_ = false; }
        void read_again() noexcept { reads_ = true; }
        void send_raw(std::string_view bytes) { output_ += bytes; }
        std::size_t unsent() const noexcept { return output_.size(); }
        void close_after_output() noexcept { closes_ = true; }
        void close() noexcept;
        // Refuses the streams after `last`.
        void go_away(std::int32_t last, std::uint32_t code = NGHTTP2_NO_ERROR);

      private:
        friend class Http2Peer;
        struct Callbacks;

        void step();
        void watch(std::vector<pollfd>& watched) const;
        void open_session();
        void read_some();
        void take(std::string_view bytes);
        void answer_http1();
        void write_some();

        Http2Peer& peer_;
        int fd_;
        SSL* ssl_;
        nghttp2_session* session_ = nullptr;
        bool is_ready_ = false;
        bool is_http2_ = false;
        bool reads_ = true;
        bool closes_ = false;
        std::string received_;
        std::string output_;
    };

    Http2Peer();
    ~Http2Peer();
    Http2Peer(const Http2Peer&) = delete;
    Http2Peer& operator=(const Http2Peer&) = delete;

    std::string url(std::string_view path = "/events") const;
    const std::string& ca_file() const;

    void step();
    // Connections that are open stay so.
    void stop_listening() noexcept;
    // Appends what must be waited for before the next step().
    void watch(std::vector<pollfd>& watched) const;

    // How the peer behaves. A change affects connections that are opened later.
    std::string protocol = "h2";  // that it chooses; empty: it knows nothing of ALPN
    bool shakes_hands = true;
    bool speaks = true;         // after the handshake; if not, there is only send_raw()
    bool opens_windows = true;  // takes more of a body than the first 64 kB
    std::vector<nghttp2_settings_entry> settings;
    // Called for each complete request; if empty, the test answers later.
    std::function<void(Request&)> answer = [](Request& request) { request.reply(204); };

    const std::deque<std::unique_ptr<Connection>>& connections() const { return connections_; }
    // All requests, in the order in which their heads arrived. HTTP/1.1 is not in it.
    std::deque<Request>& requests() { return requests_; }
    std::size_t complete_requests() const;
    int http1_requests() const noexcept { return http1_requests_; }

  private:
    static int choose_protocol(SSL*, const unsigned char** out, unsigned char* size,
                               const unsigned char* offered, unsigned offered_size, void* self);

    SSL_CTX* context_;
    int listener_;
    int port_ = 0;
    std::deque<Request> requests_;
    int http1_requests_ = 0;
    std::deque<std::unique_ptr<Connection>> connections_;
};

}  // namespace outbox
