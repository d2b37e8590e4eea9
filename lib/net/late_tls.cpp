#include "net/late_tls.hpp"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <new>

#include "core/small_file.hpp"

namespace outbox {

static constexpr std::size_t max_certificates_size = 1024 * 1024;
static constexpr std::size_t piece = 64 * 1024;

namespace {

struct FreeBio {
    void operator()(BIO* bio) const noexcept { BIO_free(bio); }
};
struct FreeCertificate {
    void operator()(X509* certificate) const noexcept { X509_free(certificate); }
};
struct FreeKey {
    void operator()(EVP_PKEY* key) const noexcept { EVP_PKEY_free(key); }
};

std::unique_ptr<BIO, FreeBio> bio_of(const std::string& text) {
    std::unique_ptr<BIO, FreeBio> bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
    if (bio == nullptr)
        throw std::bad_alloc();
    return bio;
}

// OpenSSL would ask for the passphrase of a key on the terminal.
int no_passphrase(char*, int, int, void*) {
    return 0;
}

std::string last_error() {
    const unsigned long code = ERR_peek_last_error();
    if (code == 0)
        return "the peer ended the handshake";
    char text[256];
    ERR_error_string_n(code, text, sizeof text);
    const char* reason = ERR_reason_error_string(code);
    return reason != nullptr ? reason : text;
}

}  // namespace

LateTls::LateTls(const TransportConfig& config, std::size_t max_input)
    : config_(config), max_input_(max_input) {}

LateTls::~LateTls() = default;

std::optional<std::string> LateTls::start(std::string_view protocols) {
    ERR_clear_error();
    ssl_.reset();
    is_ready_ = has_more_ = false;
    input_.clear();
    consumed_ = 0;
    output_.clear();
    error_.clear();
    context_.reset(SSL_CTX_new(TLS_client_method()));
    if (context_ == nullptr)
        throw std::bad_alloc();
    SSL_CTX_set_min_proto_version(context_.get(), TLS1_2_VERSION);
    SSL_CTX_set_verify(context_.get(), SSL_VERIFY_PEER, nullptr);
    SSL_CTX_set_mode(context_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE |
                                         SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                         SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_default_passwd_cb(context_.get(), no_passphrase);
    if (std::optional<std::string> why = set_trust())
        return why;
    if (std::optional<std::string> why = set_client_certificate())
        return why;
    ssl_.reset(SSL_new(context_.get()));
    from_peer_ = BIO_new(BIO_s_mem());
    to_peer_ = BIO_new(BIO_s_mem());
    if (ssl_ == nullptr || from_peer_ == nullptr || to_peer_ == nullptr) {
        BIO_free(from_peer_);
        BIO_free(to_peer_);
        throw std::bad_alloc();
    }
    BIO_set_mem_eof_return(from_peer_, -1);  // empty means that more may come
    BIO_set_mem_eof_return(to_peer_, -1);
    SSL_set_bio(ssl_.get(), from_peer_, to_peer_);
    SSL_set_connect_state(ssl_.get());
    if (!protocols.empty() &&
        SSL_set_alpn_protos(ssl_.get(), reinterpret_cast<const unsigned char*>(protocols.data()),
                            static_cast<unsigned>(protocols.size())) != 0)
        throw std::bad_alloc();
    if (!set_host())
        return "TLS cannot use the host \"" + config_.url.host + '"';
    has_more_ = true;  // the first message of the handshake
    return std::nullopt;
}

std::optional<std::string> LateTls::set_trust() {
    if (config_.ca_file.empty()) {
        SSL_CTX_set_default_verify_paths(context_.get());
        return std::nullopt;
    }
    const Result<std::string> text = read_small_file(config_.ca_file, max_certificates_size);
    if (!text)
        return "option \"ca_file\": " + text.error().message;
    const auto bio = bio_of(text.value());
    X509_STORE* store = SSL_CTX_get_cert_store(context_.get());
    int count = 0;
    while (const auto certificate = std::unique_ptr<X509, FreeCertificate>(
               PEM_read_bio_X509(bio.get(), nullptr, no_passphrase, nullptr)))
        count += X509_STORE_add_cert(store, certificate.get());
    ERR_clear_error();  // that of the end of the file
    if (count == 0)
        return "option \"ca_file\": it has no certificate";
    return std::nullopt;
}

std::optional<std::string> LateTls::set_client_certificate() {
    if (std::optional<std::string> why =
            wrong_client_certificate(config_.certificate, config_.private_key, true))
        return why;
    if (config_.certificate.empty())
        return std::nullopt;
    const auto chain = bio_of(config_.certificate);
    const std::unique_ptr<X509, FreeCertificate> own(
        PEM_read_bio_X509(chain.get(), nullptr, no_passphrase, nullptr));
    if (own == nullptr || SSL_CTX_use_certificate(context_.get(), own.get()) != 1)
        return "certificate of the user mapping: " + last_error();
    while (X509* issuer = PEM_read_bio_X509(chain.get(), nullptr, no_passphrase, nullptr))
        if (SSL_CTX_add0_chain_cert(context_.get(), issuer) != 1)
            X509_free(issuer);
    ERR_clear_error();
    const auto text = bio_of(config_.private_key);
    const std::unique_ptr<EVP_PKEY, FreeKey> key(
        PEM_read_bio_PrivateKey(text.get(), nullptr, no_passphrase, nullptr));
    if (key == nullptr || SSL_CTX_use_PrivateKey(context_.get(), key.get()) != 1 ||
        SSL_CTX_check_private_key(context_.get()) != 1)
        return "private_key of the user mapping: " + last_error();
    return std::nullopt;
}

std::string_view LateTls::protocol() const noexcept {
    const unsigned char* name = nullptr;
    unsigned size = 0;
    SSL_get0_alpn_selected(ssl_.get(), &name, &size);
    return {reinterpret_cast<const char*>(name), size};
}

bool LateTls::set_host() {
    const std::string& host = config_.url.host;
    in6_addr address;
    if (inet_pton(AF_INET, host.c_str(), &address) == 1 ||
        inet_pton(AF_INET6, host.c_str(), &address) == 1)
        return X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl_.get()), host.c_str()) == 1;
    return SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
           SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1;
}

bool LateTls::step(Stream& stream) {
    has_more_ = false;
    ERR_clear_error();
    const bool is_usable = decrypt(stream) && (!is_ready_ || encrypt());
    hand_over(stream);  // including the reason why this side ends the handshake
    return is_usable;
}

bool LateTls::flush(Stream& stream) {
    ERR_clear_error();
    const bool is_usable = !is_ready_ || encrypt();
    hand_over(stream);
    return is_usable;
}

bool LateTls::handshake() {
    const int result = SSL_do_handshake(ssl_.get());
    is_ready_ = result == 1;
    return is_ready_ || !failed(result);
}

bool LateTls::decrypt(Stream& stream) {
    input_.erase(0, consumed_);
    consumed_ = 0;
    while (true) {
        if ((!is_ready_ && !handshake()) || (is_ready_ && !read_plain()))
            return false;
        if (input_.size() >= max_input_) {
            has_more_ = true;
            return true;
        }
        if (stream.input().empty())
            return true;
        feed(stream);
    }
}

// Called when OpenSSL needs more, so that its memory holds little except these bytes.
void LateTls::feed(Stream& stream) {
    const std::string_view next = stream.input().substr(0, piece);
    if (BIO_write(from_peer_, next.data(), static_cast<int>(next.size())) !=
        static_cast<int>(next.size()))
        throw std::bad_alloc();
    stream.consume(next.size());
}

bool LateTls::read_plain() {
    while (input_.size() < max_input_) {
        const std::size_t before = input_.size();
        input_.resize(before + piece);
        const int result = SSL_read(ssl_.get(), input_.data() + before, static_cast<int>(piece));
        input_.resize(before + static_cast<std::size_t>(std::max(result, 0)));
        if (result <= 0)
            return !failed(result);
    }
    return true;
}

bool LateTls::encrypt() {
    std::size_t done = 0;
    while (done < output_.size()) {
        const std::size_t size = std::min(piece, output_.size() - done);
        const int result = SSL_write(ssl_.get(), output_.data() + done, static_cast<int>(size));
        if (result <= 0) {
            output_.erase(0, done);
            return !failed(result);
        }
        done += static_cast<std::size_t>(result);
    }
    output_.clear();
    return true;
}

void LateTls::hand_over(Stream& stream) {
    std::string& out = stream.output();
    while (const std::size_t size = BIO_ctrl_pending(to_peer_)) {
        const std::size_t before = out.size();
        out.resize(before + size);
        const int read = BIO_read(to_peer_, out.data() + before, static_cast<int>(size));
        out.resize(before + static_cast<std::size_t>(std::max(read, 0)));
        if (read <= 0)
            break;
    }
    stream.flush();
}

// Returns false if the call only has to wait.
bool LateTls::failed(int result) {
    switch (SSL_get_error(ssl_.get(), result)) {
        case SSL_ERROR_WANT_READ:
        case SSL_ERROR_WANT_WRITE:
            return false;
        case SSL_ERROR_ZERO_RETURN:
            error_ = "the peer closed the connection";
            return true;
        default:
            break;
    }
    const long verified = SSL_get_verify_result(ssl_.get());
    if (verified != X509_V_OK)
        error_ = std::string("the certificate is not valid for ") + config_.url.host + ": " +
                 X509_verify_cert_error_string(verified);
    else
        error_ = "TLS: " + last_error();
    return true;
}

}  // namespace outbox
