#include "net/nats/nats_connection.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "core/late.hpp"
#include "core/text.hpp"
#include "net/json.hpp"

namespace outbox {

static constexpr std::size_t usual_payload = 1024 * 1024;  // of a server that does not say

NatsConnection::NatsConnection(NatsConfig config, const Clock& clock, NatsLimits limits)
    : config_(std::move(config)),
      clock_(clock),
      limits_(limits),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      current_(config_.hosts.size() - 1) {}

NatsConnection::~NatsConnection() {
    close();
    if (epoll_ >= 0)
        ::close(epoll_);
}

Micros NatsConnection::deadline() const noexcept {
    if (state_ == State::closed)
        return never;
    if (has_unread_ || (tls_ != nullptr && tls_->has_more()))
        return 0;
    return std::min(stream_->deadline(), login_due_);
}

const std::optional<Address>& NatsConnection::address() const noexcept {
    static const std::optional<Address> none;
    return stream_ != nullptr ? stream_->address() : none;
}

// -------------------------------------------------------------------------------------------------
// Connecting
// -------------------------------------------------------------------------------------------------

void NatsConnection::open(std::string greeting) {
    greeting_ = std::move(greeting);
    failure_.clear();
    scope_ = Scope::destination;
    hosts_left_ = config_.hosts.size();
    try_host();
}

void NatsConnection::try_host() {
    close();
    hosts_left_--;
    current_ = (current_ + 1) % config_.hosts.size();
    server_ = {};
    had_connection_ = had_tls_ = false;
    const std::size_t room = std::max(limits_.line, limits_.message) + 64 * 1024;
    const bool at_once = config_.tls && config_.tls_first;
    TransportOptions options = config_.transport;
    if (!at_once)  // LateTls has them
        options.certificate = options.private_key = options.ca_file = "";
    stream_ =
        std::make_unique<Stream>(stream_config(options, clock_, host(), port(), at_once, "nats"),
                                 std::max(room, Stream::usual_max_input));
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, stream_->descriptor(), &event);
    stream_->open();
    state_ = State::connecting;
    stage_ = Stage::info;
    login_due_ = clock_.now() + config_.transport.connect_timeout;
}

void NatsConnection::close() noexcept {
    tls_.reset();
    if (stream_ != nullptr)
        stream_->close();
    state_ = State::closed;
    login_due_ = never;
    has_unread_ = pong_waits_ = false;
}

// A connection that has worked is not replaced here, because its owner must know that it ended.
void NatsConnection::fail(std::string why, Scope scope) {
    if (config_.hosts.size() > 1)
        why = host() + ": " + why;
    if (scope == Scope::connection || state_ == State::ready)
        scope_ = scope;
    const bool goes_on = state_ == State::connecting && hosts_left_ > 0;
    close();
    if (goes_on)
        try_host();
    else
        failure_ = std::move(why);
}

std::string NatsConnection::late() const {
    const std::string limit =
        " within " + duration_text(config_.transport.connect_timeout) + " (connect_timeout)";
    if (!had_connection_)
        return "no connection" + limit;
    if (stage_ == Stage::info)
        return "the server did not introduce itself" + limit +
               (config_.tls && !config_.tls_first
                    ? "; if it has handshake_first, set the option \"tls_handshake_first\""
                    : "");
    return stage_ == Stage::tls ? "TLS was not ready" + limit : "no answer to the login" + limit;
}

void NatsConnection::begin_tls() {
    tls_config_.emplace(stream_config(config_.transport, clock_, host(), port(), true, "nats"));
    tls_ = std::make_unique<LateTls>(*tls_config_,
                                     std::max(limits_.line, limits_.message) + 64 * 1024);
    if (std::optional<std::string> why = tls_->start()) {
        fail(std::move(*why), Scope::destination);
        return;
    }
    stage_ = Stage::tls;
}

void NatsConnection::log_in() {
    stage_ = Stage::login;
    had_tls_ = config_.tls;
    output() += nats_connect(config_, server_) + greeting_ + "PING\r\n";
    flush();
}

// -------------------------------------------------------------------------------------------------
// Reading
// -------------------------------------------------------------------------------------------------

std::string_view NatsConnection::input() const noexcept {
    return tls_ != nullptr ? tls_->input() : stream_->input();
}

void NatsConnection::consume(std::size_t bytes) noexcept {
    if (tls_ != nullptr)
        tls_->consume(bytes);
    else
        stream_->consume(bytes);
}

void NatsConnection::step(Micros now, NatsListener& listener) {
    if (state_ == State::closed)
        return;
    has_unread_ = false;
    Stream* const stream = stream_.get();
    const std::size_t known = stream->input().size();
    stream->step(now);
    had_connection_ |= stream->state() == Stream::State::open;
    if (stream->input().size() != known)
        received_at_ = now;
    read(listener);
    if (stream_.get() != stream || state_ == State::closed)
        return;  // another host, or none
    if (!stream->failure().empty())
        fail(stream->failure(), stream->scope());
    else if (now >= login_due_)
        fail(late());
    if (unsent() == 0)
        pong_waits_ = false;
}

bool NatsConnection::step_tls() {
    const bool was_ready = tls_->is_ready();
    if (!tls_->error().empty() || !tls_->step(*stream_)) {
        // If one side refuses the certificate of the other, it will refuse it again.
        const bool has_ended = tls_->error() == "the peer closed the connection";
        fail(tls_->error(), has_ended ? Scope::connection : Scope::destination);
        return false;
    }
    if (!was_ready && tls_->is_ready())
        log_in();
    return true;
}

void NatsConnection::read(NatsListener& listener) {
    const Stream* const stream = stream_.get();
    const auto goes_on = [&] { return stream_.get() == stream && state_ != State::closed; };
    if (tls_ != nullptr && !step_tls())
        return;
    while (goes_on()) {
        if (stage_ == Stage::tls)
            return;
        const NatsInput next = read_nats(input(), limits_);
        if (next.kind == NatsInput::Kind::incomplete)
            return;
        if (next.kind == NatsInput::Kind::malformed) {
            fail("the server sent " + std::string(next.text));
            return;
        }
        consume(next.size);  // it stays where it is until more is read
        take(next, listener);
        // Bytes between INFO and TLS were not protected.
        if (goes_on() && stage_ == Stage::tls) {
            if (!stream_->input().empty())
                fail("the server sent something between INFO and TLS");
            else
                step_tls();
            return;
        }
    }
}

void NatsConnection::take(const NatsInput& input, NatsListener& listener) {
    switch (input.kind) {
        case NatsInput::Kind::info:
            if (stage_ == Stage::info)
                take_info(input.text);
            break;
        case NatsInput::Kind::error:
            take_error(input.text, listener);
            break;
        case NatsInput::Kind::ping:
            answer_ping();
            break;
        case NatsInput::Kind::pong:
            if (stage_ == Stage::login) {
                stage_ = Stage::ready;
                state_ = State::ready;
                login_due_ = never;
            }
            break;
        case NatsInput::Kind::message:
            if (stage_ == Stage::info)
                fail("the server sent a message before it introduced itself");
            else
                listener.on_message(input);
            break;
        default:
            break;
    }
}

void NatsConnection::take_info(std::string_view text) {
    const std::optional<Json::Value> info = parse_json(text);
    if (!info || !info->isObject()) {
        fail("the server did not introduce itself as NATS does");
        return;
    }
    const auto flag = [&](const char* name) {
        const Json::Value* value = json_member(*info, name);
        return value != nullptr && value->isBool() && value->asBool();
    };
    const Json::Value* const max_payload = json_member(*info, "max_payload");
    server_ = {.name = json_text(*info, "server_name"),
               .version = json_text(*info, "version"),
               .max_payload = max_payload != nullptr && max_payload->isUInt64()
                                  ? max_payload->asUInt64()
                                  : usual_payload,
               .nonce = json_text(*info, "nonce"),
               .has_headers = flag("headers"),
               .offers_tls = flag("tls_available") || flag("tls_required"),
               .requires_tls = flag("tls_required")};
    if (!server_.has_headers)
        fail("the server takes no headers; NATS 2.2 or later does", Scope::destination);
    else if (!config_.tls && server_.requires_tls)
        fail("the server requires TLS; is the URL meant to begin with tls://?", Scope::destination);
    else if (!config_.tls || config_.tls_first)
        log_in();
    else if (server_.offers_tls)
        begin_tls();
    else
        fail("the server offers no TLS; is the URL meant to begin with nats://?",
             Scope::destination);
}

// These errors do not concern the credentials or the account.
static bool is_of_connection(std::string_view text) {
    static constexpr std::string_view beginnings[] = {"Stale Connection",
                                                      "Slow Consumer",
                                                      "Authentication Timeout",
                                                      "Maximum Connections Exceeded",
                                                      "Server Shutdown",
                                                      "Connection Throttling",
                                                      "Cluster Name Conflict",
                                                      "Maximum Account Active Connections Exceeded",
                                                      "Parser Error",
                                                      "Unknown Protocol Operation",
                                                      "Maximum Payload Violation",
                                                      "Maximum Control Line Exceeded"};
    return std::any_of(std::begin(beginnings), std::end(beginnings), [&](std::string_view one) {
        return equal_ignoring_case(text.substr(0, one.size()), one);
    });
}

static bool is_permission(std::string_view text) {
    constexpr std::string_view beginning = "Permissions Violation";
    return equal_ignoring_case(text.substr(0, beginning.size()), beginning);
}

void NatsConnection::take_error(std::string_view text, NatsListener& listener) {
    if (stage_ == Stage::ready && is_permission(text)) {
        listener.on_error(text);
        return;
    }
    std::string why = "the server says: " + printable(text, 300);
    if (is_permission(text))
        why += " (the user must be allowed to subscribe to its inbox)";
    fail(std::move(why), is_of_connection(text) ? Scope::connection : Scope::destination);
}

// A server that sends PING but does not read must not make the answers pile up.
void NatsConnection::answer_ping() {
    if (pong_waits_ || (stage_ != Stage::login && stage_ != Stage::ready))
        return;
    pong_waits_ = true;
    output() += "PONG\r\n";
    flush();
}

// -------------------------------------------------------------------------------------------------
// Writing
// -------------------------------------------------------------------------------------------------

std::string& NatsConnection::output() noexcept {
    return tls_ != nullptr ? tls_->output() : stream_->output();
}

std::size_t NatsConnection::unsent() const noexcept {
    return stream_->unsent() + (tls_ != nullptr ? tls_->output().size() : 0);
}

// A failure is seen at the next step().
void NatsConnection::flush() {
    if (state_ == State::closed)
        return;
    if (tls_ != nullptr)
        tls_->flush(*stream_);
    else
        stream_->flush();
    if (!stream_->failure().empty() || (tls_ != nullptr && !tls_->error().empty()))
        has_unread_ = true;
}

std::string nats_connect(const NatsConfig& config, const NatsServer& server) {
    std::string text =
        "CONNECT {\"verbose\":false,\"pedantic\":false,\"protocol\":0,"
        "\"headers\":true,\"no_responders\":true,\"lang\":\"C++\",";
    text += "\"tls_required\":";
    text += config.tls ? "true" : "false";
    const auto member = [&](std::string_view name, const std::string& value) {
        if (value.empty())
            return;
        text += ',';
        append_json_member(text, name, value);
    };
    member("name", config.client_name);
    const NatsLogin& login = config.login;
    member("user", login.user);
    member("pass", login.password);
    member("auth_token", login.token);
    if (login.key) {
        member("jwt", login.jwt);
        if (login.jwt.empty())
            member("nkey", login.key->public_key);
        if (!server.nonce.empty())
            member("sig", login.key->sign(server.nonce));
    }
    return text + "}\r\n";
}

}  // namespace outbox
