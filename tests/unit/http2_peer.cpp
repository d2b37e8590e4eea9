#include "unit/http2_peer.hpp"
#include "unit/loopback.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <utility>

namespace outbox {

// -- the certificate ------------------------------------------------------------------------------

namespace {

// A key for 127.0.0.1 and its certificate, signed with itself.
class ServerCertificate {
  public:
    ServerCertificate();
    ~ServerCertificate();
    ServerCertificate(const ServerCertificate&) = delete;
    ServerCertificate& operator=(const ServerCertificate&) = delete;

    const std::string& file() const noexcept { return file_; }  // the certificate, as PEM
    X509* certificate() const noexcept { return certificate_.get(); }
    EVP_PKEY* key() const noexcept { return key_.get(); }

  private:
    struct Free {
        void operator()(X509* certificate) const noexcept { X509_free(certificate); }
        void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
    };

    std::unique_ptr<EVP_PKEY, Free> key_;
    std::unique_ptr<X509, Free> certificate_;
    std::string file_;
};

ServerCertificate::ServerCertificate() : key_(EVP_EC_gen("P-256")), certificate_(X509_new()) {
    X509* const certificate = certificate_.get();
    X509_set_version(certificate, X509_VERSION_3);
    ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
    X509_gmtime_adj(X509_getm_notBefore(certificate), -24L * 60 * 60);
    X509_gmtime_adj(X509_getm_notAfter(certificate), 24L * 60 * 60);
    X509_set_pubkey(certificate, key_.get());
    X509_NAME* const name = X509_get_subject_name(certificate);
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                               reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
    X509_set_issuer_name(certificate, name);
    for (const auto& [id, value] : {std::pair{NID_subject_alt_name, "IP:127.0.0.1"},
                                    std::pair{NID_basic_constraints, "CA:TRUE"}}) {
        X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, nullptr, id, value);
        X509_add_ext(certificate, extension, -1);
        X509_EXTENSION_free(extension);
    }
    X509_sign(certificate, key_.get(), EVP_sha256());

    file_ = testing::TempDir() + "outbox-certificate-XXXXXX";
    FILE* const file = fdopen(mkstemp(file_.data()), "w");
    PEM_write_X509(file, certificate);
    fclose(file);
}

ServerCertificate::~ServerCertificate() {
    unlink(file_.c_str());
}

}  // namespace

// Making a key takes a while, so there is one in a process.
static const ServerCertificate& server_certificate() {
    static const ServerCertificate certificate;
    return certificate;
}

// -- requests and answers -------------------------------------------------------------------------

static std::vector<nghttp2_nv> fields_of(const std::string& status, const Http2Lines& lines) {
    const auto field = [](const std::string& name, const std::string& value) {
        return nghttp2_nv{reinterpret_cast<std::uint8_t*>(const_cast<char*>(name.data())),
                          reinterpret_cast<std::uint8_t*>(const_cast<char*>(value.data())),
                          name.size(), value.size(), NGHTTP2_NV_FLAG_NONE};
    };
    static const std::string status_name = ":status";
    std::vector<nghttp2_nv> fields{field(status_name, status)};
    for (const auto& [name, value] : lines)
        fields.push_back(field(name, value));
    return fields;
}

static std::string digits(int status) {
    const std::string text = std::to_string(status);
    return std::string(3 - text.size(), '0') + text;
}

void Http2Peer::Request::reply(int status, std::string text, Http2Lines lines) {
    answer = std::move(text);
    const std::string code = digits(status);
    const std::vector<nghttp2_nv> fields = fields_of(code, lines);
    nghttp2_data_provider provider{};
    provider.source.ptr = this;
    provider.read_callback = [](nghttp2_session*, std::int32_t, std::uint8_t* to, std::size_t room,
                                std::uint32_t* flags, nghttp2_data_source* source, void*) {
        auto& request = *static_cast<Request*>(source->ptr);
        const std::size_t size = std::min(room, request.answer.size() - request.answered);
        std::memcpy(to, request.answer.data() + request.answered, size);
        request.answered += size;
        if (request.answered == request.answer.size())
            *flags |= NGHTTP2_DATA_FLAG_EOF;
        return static_cast<ssize_t>(size);
    };
    EXPECT_EQ(nghttp2_submit_response(connection->session(), stream, fields.data(), fields.size(),
                                      answer.empty() ? nullptr : &provider),
              0);
}

void Http2Peer::Request::interim(int status, const Http2Lines& lines) {
    const std::string code = digits(status);
    const std::vector<nghttp2_nv> fields = fields_of(code, lines);
    EXPECT_EQ(nghttp2_submit_headers(connection->session(), NGHTTP2_FLAG_NONE, stream, nullptr,
                                     fields.data(), fields.size(), nullptr),
              0);
}

void Http2Peer::Request::reset(std::uint32_t code) {
    EXPECT_EQ(nghttp2_submit_rst_stream(connection->session(), NGHTTP2_FLAG_NONE, stream, code), 0);
}

// -- a connection ---------------------------------------------------------------------------------

struct Http2Peer::Connection::Callbacks {
    static Request* request_of(nghttp2_session* session, std::int32_t stream) {
        return static_cast<Request*>(nghttp2_session_get_stream_user_data(session, stream));
    }

    static int begin(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
        auto& connection = *static_cast<Connection*>(self);
        Request& request = connection.peer_.requests_.emplace_back();
        request.connection = &connection;
        request.stream = frame->hd.stream_id;
        return nghttp2_session_set_stream_user_data(session, request.stream, &request);
    }

    static int take_header(nghttp2_session* session, const nghttp2_frame* frame,
                           const std::uint8_t* name, std::size_t name_size,
                           const std::uint8_t* value, std::size_t value_size, std::uint8_t, void*) {
        if (Request* request = request_of(session, frame->hd.stream_id))
            request->headers[std::string(reinterpret_cast<const char*>(name), name_size)] =
                std::string(reinterpret_cast<const char*>(value), value_size);
        return 0;
    }

    static int take_body(nghttp2_session* session, std::uint8_t, std::int32_t stream,
                         const std::uint8_t* bytes, std::size_t size, void*) {
        if (Request* request = request_of(session, stream))
            request->body.append(reinterpret_cast<const char*>(bytes), size);
        return 0;
    }

    static int take_frame(nghttp2_session* session, const nghttp2_frame* frame, void* self) {
        const bool ends = (frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA) &&
                          (frame->hd.flags & NGHTTP2_FLAG_END_STREAM);
        Request* request = ends ? request_of(session, frame->hd.stream_id) : nullptr;
        if (request == nullptr)
            return 0;
        request->is_complete = true;
        if (const auto& answer = static_cast<Connection*>(self)->peer_.answer)
            answer(*request);
        return 0;
    }

    static int close_stream(nghttp2_session* session, std::int32_t stream, std::uint32_t code,
                            void*) {
        if (Request* request = request_of(session, stream)) {
            request->is_closed = true;
            request->close_code = code;
        }
        return 0;
    }
};

Http2Peer::Connection::Connection(Http2Peer& peer, int fd)
    : peer_(peer), fd_(fd), ssl_(SSL_new(peer.context_)) {
    const int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    SSL_set_fd(ssl_, fd);
    SSL_set_accept_state(ssl_);
}

Http2Peer::Connection::~Connection() {
    close();
    SSL_free(ssl_);
    nghttp2_session_del(session_);
}

void Http2Peer::Connection::close() noexcept {
    if (fd_ >= 0)
        ::close(fd_);
    fd_ = -1;
}

void Http2Peer::Connection::go_away(std::int32_t last, std::uint32_t code) {
    EXPECT_EQ(nghttp2_submit_goaway(session_, NGHTTP2_FLAG_NONE, last, code, nullptr, 0), 0);
}

void Http2Peer::Connection::open_session() {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_option* options = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_option_new(&options);
    nghttp2_session_callbacks_set_on_begin_headers_callback(callbacks, Callbacks::begin);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, Callbacks::take_header);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Callbacks::take_body);
    nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Callbacks::take_frame);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Callbacks::close_stream);
    nghttp2_option_set_no_auto_window_update(options, peer_.opens_windows ? 0 : 1);
    nghttp2_option_set_max_send_header_block_length(options, 1024 * 1024);
    nghttp2_session_server_new2(&session_, callbacks, this, options);
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(options);
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, peer_.settings.data(),
                            peer_.settings.size());
}

void Http2Peer::Connection::step() {
    if (fd_ < 0)
        return;
    ERR_clear_error();
    if (!is_ready_ && peer_.shakes_hands && SSL_do_handshake(ssl_) == 1) {
        is_ready_ = true;
        const unsigned char* name = nullptr;
        unsigned size = 0;
        SSL_get0_alpn_selected(ssl_, &name, &size);
        is_http2_ = std::string_view(reinterpret_cast<const char*>(name), size) == "h2";
        if (is_http2_ && peer_.speaks)
            open_session();
    }
    if (reads_)
        read_some();
    if (fd_ >= 0 && is_ready_)
        write_some();
}

void Http2Peer::Connection::watch(std::vector<pollfd>& watched) const {
    if (fd_ < 0)
        return;
    const bool writes =
        is_ready_ && (!output_.empty() || closes_ ||
                      (session_ != nullptr && nghttp2_session_want_write(session_)));
    const int events = (reads_ ? POLLIN : 0) | (writes ? POLLOUT : 0);
    if (events != 0)
        watched.push_back({fd_, static_cast<short>(events), 0});
}

void Http2Peer::Connection::read_some() {
    char buffer[16 * 1024];
    while (fd_ >= 0) {
        ERR_clear_error();
        if (!peer_.shakes_hands) {
            const ssize_t size = recv(fd_, buffer, sizeof buffer, 0);
            if (size > 0) {
                received_.append(buffer, static_cast<std::size_t>(size));
                continue;
            }
            if (size == 0 || errno != EAGAIN)
                close();
            return;
        }
        const int size = SSL_read(ssl_, buffer, sizeof buffer);
        if (size > 0) {
            take({buffer, static_cast<std::size_t>(size)});
            continue;
        }
        const int error = SSL_get_error(ssl_, size);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            close();
        return;
    }
}

void Http2Peer::Connection::take(std::string_view bytes) {
    received_ += bytes;
    if (session_ != nullptr)
        EXPECT_GE(nghttp2_session_mem_recv(
                      session_, reinterpret_cast<const std::uint8_t*>(bytes.data()), bytes.size()),
                  0);
    else if (!is_http2_ && peer_.speaks)
        answer_http1();
}

void Http2Peer::Connection::answer_http1() {
    const std::size_t head = received_.find("\r\n\r\n");
    const std::size_t field = received_.find("Content-Length: ");
    if (head == std::string::npos || field == std::string::npos)
        return;
    const std::size_t whole = head + 4 + std::stoul(received_.substr(field + 16));
    if (received_.size() < whole)
        return;
    received_.erase(0, whole);
    peer_.http1_requests_++;
    output_ += "HTTP/1.1 200 OK\r\nContent-Length: 6\r\n\r\nby 1.1";
}

void Http2Peer::Connection::write_some() {
    while (true) {
        const std::uint8_t* bytes = nullptr;
        const ssize_t made = session_ != nullptr ? nghttp2_session_mem_send(session_, &bytes) : 0;
        EXPECT_GE(made, 0);
        if (made > 0)
            output_.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(made));
        if (output_.empty())
            break;
        ERR_clear_error();
        const int size = SSL_write(ssl_, output_.data(), static_cast<int>(output_.size()));
        if (size > 0) {
            output_.erase(0, static_cast<std::size_t>(size));
            continue;
        }
        const int error = SSL_get_error(ssl_, size);
        if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE)
            close();
        return;
    }
    if (closes_)
        close();
}

// -- the peer -------------------------------------------------------------------------------------

int Http2Peer::choose_protocol(SSL*, const unsigned char** out, unsigned char* size,
                               const unsigned char* offered, unsigned offered_size, void* self) {
    const std::string& chosen = static_cast<Http2Peer*>(self)->protocol;
    for (unsigned at = 0; at < offered_size; at += 1 + offered[at])
        if (std::string_view(reinterpret_cast<const char*>(offered + at + 1), offered[at]) ==
            chosen) {
            *out = offered + at + 1;
            *size = offered[at];
            return SSL_TLSEXT_ERR_OK;
        }
    return SSL_TLSEXT_ERR_NOACK;
}

Http2Peer::Http2Peer() : context_(SSL_CTX_new(TLS_server_method())) {
    std::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to sockets that the client has closed
    SSL_CTX_use_certificate(context_, server_certificate().certificate());
    SSL_CTX_use_PrivateKey(context_, server_certificate().key());
    SSL_CTX_set_mode(context_, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_alpn_select_cb(context_, choose_protocol, this);
    listener_ = listen_on_loopback(port_, 64, SOCK_NONBLOCK);
}

Http2Peer::~Http2Peer() {
    connections_.clear();
    close(listener_);
    SSL_CTX_free(context_);
}

std::string Http2Peer::url(std::string_view path) const {
    return "https://127.0.0.1:" + std::to_string(port_) + std::string(path);
}

const std::string& Http2Peer::ca_file() const {
    return server_certificate().file();
}

std::size_t Http2Peer::complete_requests() const {
    return static_cast<std::size_t>(
        std::count_if(requests_.begin(), requests_.end(),
                      [](const Request& request) { return request.is_complete; }));
}

void Http2Peer::step() {
    for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK)) >= 0;)
        connections_.push_back(std::make_unique<Connection>(*this, fd));
    for (const auto& connection : connections_)
        connection->step();
}

void Http2Peer::stop_listening() noexcept {
    close(std::exchange(listener_, -1));
}

void Http2Peer::watch(std::vector<pollfd>& watched) const {
    watched.push_back({listener_, POLLIN, 0});
    for (const auto& connection : connections_)
        connection->watch(watched);
}

}  // namespace outbox
