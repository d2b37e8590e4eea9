// A connection for protocols other than HTTP, over TCP or TLS. It passes bytes and never blocks.
//
// libcurl resolves the name, connects and makes TLS (CURLOPT_CONNECT_ONLY), with everything that
// connections over HTTP have: outbox.allowed_hosts, ca_file, client certificates, time limits. The URL
// of the configuration has the scheme https for TLS and http otherwise, and always a port.
//
//   open()      starts to connect
//   step()      continues; reads into input()
//   output()    bytes to send: the owner appends, and flush() sends as much as the peer takes
// failure()   why the connection has ended; bytes that came before are still in input().
//               open() starts again
//
// The peer decides how much arrives, so reading stops while input() has `max_input` bytes that the
// owner has not consumed. Bytes that were flushed and not taken by the peer count as unsent(); the
// owner decides when they are too many.
#pragma once

#include <curl/curl.h>

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "core/sink.hpp"
#include "net/address_check.hpp"
#include "net/curl_loop.hpp"
#include "net/curl_options.hpp"
#include "net/transport.hpp"

namespace outbox {

class Stream {
  public:
    enum class State { closed, connecting, open };

    static constexpr std::size_t usual_max_input = 1024 * 1024;

    explicit Stream(TransportConfig config, std::size_t max_input = usual_max_input);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    int descriptor() const noexcept { return loop_.epoll(); }
    // Returns when step() has something to do even if the descriptor is not readable.
    Micros deadline() const noexcept;
    State state() const noexcept { return state_; }
    const TransportConfig& config() const noexcept { return config_; }
    // The address that was last connected to or tried, if outbox.allowed_hosts allows it.
    const std::optional<Address>& address() const noexcept { return address_check_.tried(); }

    // These may throw std::bad_alloc.

    // Starts to connect, and forgets the last failure. A failure is seen at the next step().
    void open();
    void step(Micros now);
    void flush();
    // Closes the connection because of what the peer has sent, or has not sent.
    void fail(std::string why, Scope scope = Scope::connection);

    void close() noexcept;

    std::string& output() noexcept { return output_; }
    std::size_t unsent() const noexcept { return sending_.size() - sent_ + output_.size(); }

    std::string_view input() const noexcept { return std::string_view(input_).substr(consumed_); }
    void consume(std::size_t bytes) noexcept { consumed_ += bytes; }

    // Empty if there was none since open().
    const std::string& failure() const noexcept { return failure_; }
    Scope scope() const noexcept { return scope_; }  // of the failure

  private:
    void start();
    void connected(CURLcode result);
    void read_some();
    void want_write(bool wanted);
    void lost(CURLcode result);

    const TransportConfig config_;
    const std::size_t max_input_;
    AddressCheck address_check_;
    CurlLoop loop_;
    Certificates certificates_;
    CURL* easy_ = nullptr;  // owns the socket
    int socket_ = -1;
    State state_ = State::closed;
    bool wants_write_ = false;
    bool may_have_more_ = false;  // bytes that TLS has decrypted, of which epoll knows nothing

    std::string input_;
    std::size_t consumed_ = 0;  // bytes of input_
    std::string output_;        // not yet handed to libcurl
    // Handed to libcurl. TLS wants the same bytes at the same place until they are sent, so nothing is
    // appended here.
    std::string sending_;
    std::size_t sent_ = 0;  // bytes of sending_

    std::string failure_;
    Scope scope_ = Scope::connection;
    char error_[CURL_ERROR_SIZE] = "";
};

// Makes the configuration of a stream to this host. `plain_scheme` is the scheme of the
// destination's URLs without TLS. It must be a literal.
TransportConfig stream_config(const TransportOptions& options, const Clock& clock,
                              const std::string& host, const std::string& port, bool tls,
                              std::string_view plain_scheme);

}  // namespace outbox
