// TLS over a `Stream` without TLS, where libcurl's does not do: it can only begin with the handshake, and
// some protocols announce TLS in plain text first; and it does not say which protocol the peer has chosen
// (ALPN), which HTTP/2 has to know.
//
//   start()     begins the handshake
//   step()      moves bytes between the stream and OpenSSL
//   output()    plain bytes to send; the next step() or flush() encrypts them
//   input()     plain bytes that were received
//
// OpenSSL reads and writes memory, so nothing here blocks. Bytes of the peer stay in the stream while
// input() has `max_input` bytes that the owner has not consumed.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "net/stream.hpp"

namespace outbox {

class LateTls {
  public:
    // `config` has the host, ca_file and client certificate, and must outlive this.
    explicit LateTls(const TransportConfig& config,
                     std::size_t max_input = Stream::usual_max_input);
    ~LateTls();
    LateTls(const LateTls&) = delete;
    LateTls& operator=(const LateTls&) = delete;

    // These may throw std::bad_alloc.

    // Returns std::nullopt, or the reason why there can be no TLS, which concerns the destination.
    // `protocols` are offered to the peer, as in RFC 7301: each with its length before it.
    std::optional<std::string> start(std::string_view protocols = {});
    // Returns false if the connection is unusable: error() says why.
    bool step(Stream& stream);
    // Encrypts output() and does not read. Until is_ready() it does nothing.
    bool flush(Stream& stream);

    bool is_ready() const noexcept { return is_ready_; }  // the handshake is complete
    std::string_view protocol() const noexcept;           // that the peer has chosen, or empty
    // True if step() has something to do though nothing arrives.
    bool has_more() const noexcept { return has_more_; }
    const std::string& error() const noexcept { return error_; }

    std::string& output() noexcept { return output_; }
    std::string_view input() const noexcept { return std::string_view(input_).substr(consumed_); }
    void consume(std::size_t bytes) noexcept { consumed_ += bytes; }

  private:
    struct Free {
        void operator()(SSL_CTX* context) const noexcept { SSL_CTX_free(context); }
        void operator()(SSL* ssl) const noexcept { SSL_free(ssl); }
    };

    std::optional<std::string> set_trust();
    std::optional<std::string> set_client_certificate();
    bool set_host();
    bool handshake();
    bool decrypt(Stream& stream);
    void feed(Stream& stream);
    bool read_plain();
    bool encrypt();
    void hand_over(Stream& stream);
    bool failed(int result);

    const TransportConfig& config_;
    const std::size_t max_input_;
    std::unique_ptr<SSL_CTX, Free> context_;
    std::unique_ptr<SSL, Free> ssl_;
    BIO* from_peer_ = nullptr;  // owned by ssl_
    BIO* to_peer_ = nullptr;
    bool is_ready_ = false;
    bool has_more_ = false;
    std::string input_;
    std::size_t consumed_ = 0;
    std::string output_;
    std::string error_;
};

}  // namespace outbox
