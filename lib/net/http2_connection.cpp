#include "net/http2_connection.hpp"

#include <algorithm>
#include <cstring>
#include <new>

#include "core/late.hpp"
#include "core/text.hpp"
#include "net/answer_head.hpp"
#include "net/curl_options.hpp"

namespace outbox {

// ALPN (RFC 7301): names with their lengths before them.
static constexpr std::string_view offered_protocols = "\x02h2\x08http/1.1";
static constexpr std::size_t max_unsent = 1024 * 1024;
// A request is sent again this often if the server has not read it, or if nothing of its answer has
// come.
static constexpr int max_repeats_if_refused = 5;
static constexpr int max_repeats_if_lost = 1;

struct Http2Connection::Call {
    Http2Request request;  // without exchange: it has ended, and its stream not yet
    std::int32_t stream = 0;
    std::size_t sent = 0;  // bytes of the body
    int status = 0;
    bool has_head = false;  // of the final answer
    AnswerHead head;
    std::size_t body_size = 0;
    std::string retry_after;
    std::string body;
    const char* wrong = nullptr;  // why we reset the stream

    Exchange* exchange() const noexcept { return request.exchange; }
    bool is_sent() const noexcept { return sent == exchange()->content.body.size(); }
};

static TransportConfig without_tls(const TransportConfig& config) {
    TransportConfig plain = config;
    plain.url.scheme = "http";
    if (plain.url.port.empty())
        plain.url.port = "443";
    plain.url_text = "http://" + host_header(plain.url) + '/';
    plain.ca_file.clear();
    plain.certificate.clear();
    plain.private_key.clear();
    return plain;
}

Http2Connection::Http2Connection(const TransportConfig& config)
    : config_(config),
      authority_(host_header(config.url)),
      target_(request_target(config)),
      stream_(without_tls(config)),
      tls_(config_),
      open_by_(config.clock.now() + config.connect_timeout) {
    stream_.open();
}

Http2Connection::~Http2Connection() = default;

bool Http2Connection::is_opening() const noexcept {
    return state_ == State::connecting || (state_ == State::open && !has_settings_ && !is_leaving_);
}

// A server may limit the number of requests at a time, and refuses others. It sends the limit
// first, in its settings.
bool Http2Connection::has_room() const noexcept {
    if (state_ != State::open || is_leaving_)
        return false;
    const std::size_t most = nghttp2_session_get_remote_settings(
        session_.get(), NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS);
    return under_way() < (has_settings_ ? most : 1);
}

Micros Http2Connection::deadline() const noexcept {
    if (has_to_write_ || has_unread_ || tls_.has_more())
        return 0;
    Micros first = stream_.deadline();
    if (state_ == State::connecting && shakes_hands_)
        first = std::min(first, open_by_);
    for (const auto& call : calls_)
        if (call->exchange() != nullptr)
            first = std::min(first, call->request.deadline);
    return first;
}

// -------------------------------------------------------------------------------------------------
// Callbacks of nghttp2, which is C: nothing is thrown through it.
// -------------------------------------------------------------------------------------------------

struct Http2Connection::Callbacks {
    static Call* call_of(nghttp2_session* session, std::int32_t stream) noexcept {
        auto* call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session, stream));
        return call != nullptr && call->exchange() != nullptr ? call : nullptr;
    }

    template <class Work>
    static int guarded(void* self, Work work) noexcept {
        try {
            return work(*static_cast<Http2Connection*>(self));
        } catch (...) {
            static_cast<Http2Connection*>(self)->out_of_memory_ = true;
            return NGHTTP2_ERR_CALLBACK_FAILURE;
        }
    }

    static ssize_t read_body(nghttp2_session*, std::int32_t, std::uint8_t* to, std::size_t room,
                             std::uint32_t* flags, nghttp2_data_source* source, void*) noexcept {
        Call& call = *static_cast<Call*>(source->ptr);
        if (call.exchange() == nullptr)
            return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
        const std::string_view rest = call.exchange()->content.body.substr(call.sent);
        const std::size_t size = std::min(room, rest.size());
        std::memcpy(to, rest.data(), size);
        call.sent += size;
        if (call.is_sent())
            *flags |= NGHTTP2_DATA_FLAG_EOF;
        return static_cast<ssize_t>(size);
    }

    static int take_header(nghttp2_session* session, const nghttp2_frame* frame,
                           const std::uint8_t* name_bytes, std::size_t name_size,
                           const std::uint8_t* value_bytes, std::size_t value_size, std::uint8_t,
                           void* self) noexcept {
        return guarded(self, [&](Http2Connection&) {
            Call* call = call_of(session, frame->hd.stream_id);
            if (call == nullptr)
                return 0;
            const std::string_view name(reinterpret_cast<const char*>(name_bytes), name_size);
            const std::string_view value(reinterpret_cast<const char*>(value_bytes), value_size);
            const bool begins = name == ":status";
            if (begins) {
                call->status = static_cast<int>(parse_integer(value).value_or(0));
                call->retry_after.clear();
            } else if (name == "retry-after") {
                call->retry_after = value;
            }
            if (call->head.add(name.size() + value.size(), begins))
                return 0;
            call->wrong = "the head of the answer is too large";
            return static_cast<int>(NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE);
        });
    }

    static int take_body(nghttp2_session* session, std::uint8_t, std::int32_t stream,
                         const std::uint8_t* bytes, std::size_t size, void* self) noexcept {
        return guarded(self, [&](Http2Connection& connection) {
            Call* call = call_of(session, stream);
            if (call == nullptr)
                return 0;
            const std::size_t kept = call->exchange()->keep_body;
            call->body.append(reinterpret_cast<const char*>(bytes),
                              std::min(size, kept - call->body.size()));
            call->body_size += size;
            if (call->body_size > std::max(Http1Response::max_body, kept)) {
                connection.finish(*call);
                connection.give_up(*call);
            }
            return 0;
        });
    }

    static int take_frame(nghttp2_session* session, const nghttp2_frame* frame,
                          void* self) noexcept {
        return guarded(self, [&](Http2Connection& connection) {
            if (frame->hd.type == NGHTTP2_SETTINGS)
                connection.has_settings_ = true;
            if (frame->hd.type == NGHTTP2_GOAWAY) {
                connection.is_leaving_ = true;
                connection.wants_http1_ |= frame->goaway.error_code == NGHTTP2_HTTP_1_1_REQUIRED;
            }
            const bool is_answer =
                frame->hd.type == NGHTTP2_HEADERS || frame->hd.type == NGHTTP2_DATA;
            Call* call = is_answer ? call_of(session, frame->hd.stream_id) : nullptr;
            if (call == nullptr)
                return 0;
            call->has_head |= call->status >= 200;
            if ((frame->hd.flags & NGHTTP2_FLAG_END_STREAM) == 0)
                return 0;
            // A server may answer before it has read the whole request (section 8.1).
            const bool is_early = !call->is_sent();
            connection.finish(*call);
            if (is_early)
                connection.give_up(*call);
            return 0;
        });
    }

    static int close_stream(nghttp2_session* session, std::int32_t stream, std::uint32_t code,
                            void* self) noexcept {
        return guarded(self, [&](Http2Connection& connection) {
            auto* call = static_cast<Call*>(nghttp2_session_get_stream_user_data(session, stream));
            if (call == nullptr)
                return 0;
            connection.wants_http1_ |= code == NGHTTP2_HTTP_1_1_REQUIRED;
            if (call->exchange() != nullptr)
                connection.take_reset(*call, code);
            connection.spare_.push_back(call);
            return 0;
        });
    }
};

// -------------------------------------------------------------------------------------------------
// Opening
// -------------------------------------------------------------------------------------------------

void Http2Connection::follow_handshake(Micros now) {
    if (stream_.state() == Stream::State::closed && !shakes_hands_) {
        end(State::unreachable, stream_.failure());
        return;
    }
    if (stream_.state() == Stream::State::open && !std::exchange(shakes_hands_, true)) {
        if (std::optional<std::string> why = tls_.start(offered_protocols)) {
            end(State::without_tls, std::move(*why));
            return;
        }
    }
    if (!shakes_hands_)
        return;
    if (!tls_.step(stream_))
        end(State::without_tls, tls_.error());
    else if (tls_.is_ready() && tls_.protocol() == "h2")
        open_session();
    else if (tls_.is_ready())
        end(State::other_protocol, "");
    else if (stream_.state() == Stream::State::closed)
        end(State::without_tls, stream_.failure());
    else if (now >= open_by_)
        end(State::unreachable,
            "no TLS handshake within " + duration_text(config_.connect_timeout));
}

void Http2Connection::open_session() {
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_option* options = nullptr;
    nghttp2_session* session = nullptr;
    if (nghttp2_session_callbacks_new(&callbacks) == 0 && nghttp2_option_new(&options) == 0) {
        nghttp2_session_callbacks_set_on_header_callback(callbacks, Callbacks::take_header);
        nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, Callbacks::take_body);
        nghttp2_session_callbacks_set_on_frame_recv_callback(callbacks, Callbacks::take_frame);
        nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, Callbacks::close_stream);
        nghttp2_option_set_no_closed_streams(options, 1);  // priorities are not used
        nghttp2_session_client_new2(&session, callbacks, this, options);
    }
    nghttp2_session_callbacks_del(callbacks);
    nghttp2_option_del(options);
    session_.reset(session);
    const nghttp2_settings_entry settings[] = {{NGHTTP2_SETTINGS_ENABLE_PUSH, 0}};
    if (session == nullptr ||
        nghttp2_submit_settings(session, NGHTTP2_FLAG_NONE, settings, std::size(settings)) != 0)
        throw std::bad_alloc();
    state_ = State::open;
    has_to_write_ = true;
}

// -------------------------------------------------------------------------------------------------
// Requests
// -------------------------------------------------------------------------------------------------

void Http2Connection::start(const Http2Request& request) {
    if (spare_.empty()) {
        calls_.reserve(calls_.size() + 1);
        spare_.reserve(calls_.capacity());  // callbacks push without allocating
        calls_.push_back(std::make_unique<Call>());
        spare_.push_back(calls_.back().get());
    }
    Call& call = *spare_.back();
    spare_.pop_back();
    call = Call();
    call.request = request;
    submit(call);
    has_to_write_ = true;
}

void Http2Connection::submit(Call& call) {
    const Exchange& exchange = *call.exchange();
    const std::string_view body = exchange.content.body;
    fields_.clear();
    fields_.add(":method", exchange.method);
    fields_.add(":scheme", "https");
    fields_.add(":authority", authority_);
    fields_.add(":path", exchange.target.empty() ? target_ : exchange.target);
    fields_.add("user-agent", user_agent);
    if (!config_.authorization.empty())
        fields_.add_secret("authorization", config_.authorization);
    fields_.add_lines(exchange.content.headers);
    const std::string size = std::to_string(body.size());
    fields_.add("content-length", size);

    nghttp2_data_provider provider{.source = {.ptr = &call}, .read_callback = Callbacks::read_body};
    const std::int32_t stream =
        nghttp2_submit_request(session_.get(), nullptr, fields_.data(), fields_.size(),
                               body.empty() ? nullptr : &provider, &call);
    if (stream == NGHTTP2_ERR_NOMEM)
        throw std::bad_alloc();
    if (stream < 0) {  // no numbers are left for streams
        is_leaving_ = true;
        refused(call, nghttp2_strerror(stream));
        spare_.push_back(&call);
        return;
    }
    call.stream = stream;
    call.exchange()->reached = true;
    has_to_write_ = true;
}

bool Http2Connection::is_idle() const noexcept {
    return std::none_of(calls_.begin(), calls_.end(),
                        [](const auto& call) { return call->exchange() != nullptr; });
}

void Http2Connection::finish(Call& call) {
    if (call.status < 200) {  // nghttp2 takes any three digits
        fail(call, "malformed answer");
        return;
    }
    Exchange& exchange = *call.exchange();
    exchange.status = call.status;
    exchange.retry_after = call.retry_after;
    exchange.body = call.body;
    done_.push_back(&exchange);
    call.request.exchange = nullptr;
    was_used_ = true;
}

void Http2Connection::take_reset(Call& call, std::uint32_t code) {
    if (call.wrong != nullptr) {
        fail(call, call.wrong);
        return;
    }
    std::string why =
        std::string("the server has reset the stream: ") + nghttp2_http2_strerror(code);
    if (code == NGHTTP2_REFUSED_STREAM || code == NGHTTP2_HTTP_1_1_REQUIRED)
        refused(call, std::move(why));
    else
        fail(call, std::move(why));
}

void Http2Connection::fail(Call& call, std::string why) {
    call.exchange()->fail(std::move(why));
    done_.push_back(call.exchange());
    call.request.exchange = nullptr;
}

// The server has not read it.
void Http2Connection::refused(Call& call, std::string why) {
    if (call.request.refused++ >= max_repeats_if_refused) {
        fail(call, std::move(why));
        return;
    }
    call.exchange()->reached = call.request.lost > 0;
    send_again(call);
}

// It may have arrived.
void Http2Connection::lost(Call& call, const std::string& why) {
    if (call.request.lost++ >= max_repeats_if_lost) {
        fail(call, why);
        return;
    }
    config_.count_repeats(1, why);
    send_again(call);
}

void Http2Connection::send_again(Call& call) {
    again_.push_back(call.request);
    call.request.exchange = nullptr;
}

// The stream closes, and close_stream() is called, when this is sent.
void Http2Connection::give_up(Call& call) {
    if (nghttp2_submit_rst_stream(session_.get(), NGHTTP2_FLAG_NONE, call.stream, NGHTTP2_CANCEL) !=
        0)
        throw std::bad_alloc();
    has_to_write_ = true;
}

void Http2Connection::expire(Micros now) {
    for (const auto& call : calls_) {
        if (call->exchange() == nullptr || now < call->request.deadline)
            continue;
        // A server that has been silent meanwhile may have disappeared. And if it does not read,
        // streams stay open for ever.
        is_leaving_ |=
            heard_at_ <= call->request.deadline - config_.request_timeout || stream_.unsent() > 0;
        if (call->has_head)  // it has the verdict; a body without end must not make it another one
            finish(*call);
        else
            fail(*call, late_answer(config_));
        give_up(*call);
    }
}

// -------------------------------------------------------------------------------------------------
// Frames
// -------------------------------------------------------------------------------------------------

void Http2Connection::step(Micros now, std::vector<Exchange*>& done,
                           std::vector<Http2Request>& again) {
    stream_.step(now);
    if (state_ == State::connecting)
        follow_handshake(now);
    if (state_ == State::open)
        exchange_frames(now);
    if (state_ == State::open)
        expire(now);
    if (state_ == State::open && is_leaving_ && is_idle())
        end(State::closed, "");
    done.insert(done.end(), done_.begin(), done_.end());
    done_.clear();
    again.insert(again.end(), again_.begin(), again_.end());
    again_.clear();
}

void Http2Connection::exchange_frames(Micros now) {
    has_to_write_ = has_unread_ = false;
    const bool is_usable = tls_.step(stream_);
    if (!tls_.input().empty())
        heard_at_ = now;
    read_frames();
    if (state_ == State::open)
        write_frames();
    if (state_ != State::open)
        return;
    if (wants_http1_)  // first, because the server may close the connection too
        end(State::other_protocol, "the server wants HTTP/1.1");
    else if (!is_usable || !tls_.flush(stream_))
        end(State::closed, tls_.error());
    else if (stream_.state() == Stream::State::closed && !stream_.input().empty())
        has_unread_ = true;  // flush() has read what the server said before it closed
    else if (stream_.state() == Stream::State::closed)
        end(State::closed, stream_.failure());
    else if (nghttp2_session_want_read(session_.get()) == 0 &&
             nghttp2_session_want_write(session_.get()) == 0)
        end(State::closed, "the server broke the protocol of HTTP/2");
    else if (stream_.unsent() == 0 && nghttp2_session_want_write(session_.get()) != 0)
        has_to_write_ = true;  // nothing reports that there is room for more
}

void Http2Connection::read_frames() {
    const std::string_view input = tls_.input();
    const ssize_t size = nghttp2_session_mem_recv(
        session_.get(), reinterpret_cast<const std::uint8_t*>(input.data()), input.size());
    if (out_of_memory_ || size == NGHTTP2_ERR_NOMEM)
        throw std::bad_alloc();
    if (size < 0)
        end(State::closed, std::string("the server broke the protocol of HTTP/2: ") +
                               nghttp2_strerror(static_cast<int>(size)));
    else
        tls_.consume(static_cast<std::size_t>(size));
}

// Writes as much as the peer takes, and a little more.
void Http2Connection::write_frames() {
    while (stream_.unsent() + tls_.output().size() < max_unsent) {
        const std::uint8_t* bytes = nullptr;
        const ssize_t size = nghttp2_session_mem_send(session_.get(), &bytes);
        if (out_of_memory_ || size == NGHTTP2_ERR_NOMEM)
            throw std::bad_alloc();
        if (size < 0) {
            end(State::closed, nghttp2_strerror(static_cast<int>(size)));
            return;
        }
        if (size == 0)
            return;
        tls_.output().append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
    }
}

// A server may close a connection that it thinks is idle just when we use it. That says nothing
// about the server, so requests without an answer are sent once more.
void Http2Connection::end(State state, std::string why) {
    const bool says_nothing = was_used_ || state == State::other_protocol;
    for (const auto& call : calls_) {
        if (call->exchange() == nullptr)
            continue;
        if (!says_nothing || call->head.has_begun())
            fail(*call, why);
        else if (state == State::other_protocol)
            refused(*call, why);
        else
            lost(*call, why);
    }
    state_ = state;
    failure_ = std::move(why);
    has_to_write_ = has_unread_ = false;
    stream_.close();
}

}  // namespace outbox
