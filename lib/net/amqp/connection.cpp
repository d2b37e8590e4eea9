#include "net/amqp/connection.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "core/late.hpp"
#include "core/text.hpp"

namespace outbox {

static constexpr std::string_view protocol_header{"AMQP\0\0\x09\x01", 8};
static constexpr std::uint16_t wanted_channels = 1024;
static constexpr std::size_t wanted_frame = 128 * 1024;
static constexpr Micros max_heartbeat = seconds(30);
// A server may send its first frames before anything was agreed. Its properties are in one of them.
static constexpr std::size_t frame_before_login = 64 * 1024;

AmqpConnection::AmqpConnection(const AmqpConfig& config, const Clock& clock)
    : config_(config),
      clock_(clock),
      stream_(
          stream_config(config.transport, clock, config.host, config.port, config.tls, "amqp")) {}

void AmqpConnection::open() {
    stream_.open();
    stream_.output() += protocol_header;
    state_ = State::connecting;
    login_ = Step::start;
    taken_ = 0;
    max_frame_ = frame_before_login;
    heartbeat_ = 0;
    opened_at_ = heard_at_ = said_at_ = clock_.now();
    unblocked_at_ = 0;
    blocked_ = dismissed_ = false;
    failure_.clear();
    scope_ = Scope::connection;
}

Micros AmqpConnection::deadline() const noexcept {
    if (state_ == State::closed)
        return never;
    if (stream_.state() == Stream::State::closed)
        return 0;  // nobody has been told
    Micros due = stream_.deadline();
    if (state_ == State::connecting)
        due = std::min(due, opened_at_ + config_.transport.connect_timeout);
    if (heartbeat_ > 0)
        due = std::min({due, said_at_ + heartbeat_ / 2, heard_at_ + 2 * heartbeat_});
    return due;
}

void AmqpConnection::step(Micros now) {
    if (state_ == State::closed)
        return;
    const Stream::State before = stream_.state();
    const std::size_t had = stream_.input().size();
    stream_.step(now);
    if (before != Stream::State::open && stream_.state() == Stream::State::open)
        stream_.flush();
    if (stream_.input().size() > had)
        heard_at_ = now;
    if (stream_.state() == Stream::State::closed)
        return;  // next() says so after the last frame
    if (state_ == State::connecting && now >= opened_at_ + config_.transport.connect_timeout) {
        fail(no_connection_within(config_.transport.connect_timeout));
    } else if (heartbeat_ > 0 && now >= heard_at_ + 2 * heartbeat_) {
        fail("the server has sent nothing for " + duration_text(2 * heartbeat_));
    } else if (heartbeat_ > 0 && now >= said_at_ + heartbeat_ / 2) {
        // If bytes wait to be sent, a heartbeat is not needed.
        if (stream_.unsent() == 0) {
            append_heartbeat(output());
            stream_.flush();
        }
        said_at_ = now;
    }
}

void AmqpConnection::flush() {
    said_at_ = clock_.now();
    stream_.flush();
}

void AmqpConnection::close() {
    if (state_ == State::ready) {
        amqp_connection_close_t close{.reply_code = AMQP_REPLY_SUCCESS,
                                      .reply_text = amqp_bytes(""),
                                      .class_id = 0,
                                      .method_id = 0};
        append_method(output(), 0, AMQP_CONNECTION_CLOSE_METHOD, &close);
        stream_.flush();
    }
    state_ = State::closed;
    stream_.close();
}

void AmqpConnection::fail(std::string why, Scope scope) {
    failure_ = std::move(why);
    scope_ = scope;
    state_ = State::closed;
    stream_.close();
}

void AmqpConnection::malformed(std::string_view what) {
    fail("the server sent " + std::string(what));
}

std::optional<Frame> AmqpConnection::next() {
    stream_.consume(std::exchange(taken_, 0));
    while (state_ != State::closed) {
        const std::string_view input = stream_.input();
        if (login_ == Step::start && input.starts_with("AMQP")) {
            fail("the server does not speak AMQP 0-9-1", Scope::destination);
            break;
        }
        Frame frame;
        const Framing framing = read_frame(input, max_frame_, frame);
        if (framing == Framing::malformed) {
            malformed(login_ == Step::start ? "something that is not AMQP 0-9-1"
                                            : "a malformed frame");
            break;
        }
        if (framing == Framing::incomplete) {
            if (stream_.state() == Stream::State::closed)
                fail(stream_.failure(), stream_.scope());
            break;
        }
        const std::size_t size = frame.payload.size() + frame_overhead;
        if (frame.channel != 0 && login_ == Step::done) {
            taken_ = size;
            return frame;
        }
        handle(frame);
        stream_.consume(size);
    }
    return std::nullopt;
}

// Frames that concern the connection.
void AmqpConnection::handle(const Frame& frame) {
    if (frame.type == AMQP_FRAME_HEARTBEAT)
        return;
    const amqp_method_number_t method = AmqpDecoder::number_of(frame);
    if (method == AMQP_CONNECTION_CLOSE_METHOD) {
        closed(frame);
    } else if (login_ == Step::start && method == AMQP_CONNECTION_START_METHOD) {
        started(frame);
    } else if (login_ == Step::tune && method == AMQP_CONNECTION_TUNE_METHOD) {
        tuned(frame);
    } else if (login_ == Step::open && method == AMQP_CONNECTION_OPEN_OK_METHOD) {
        login_ = Step::done;
        state_ = State::ready;
    } else if (login_ == Step::done && method == AMQP_CONNECTION_BLOCKED_METHOD) {
        const auto* blocked = decoder_.decode<amqp_connection_blocked_t>(frame);
        if (blocked == nullptr) {
            malformed("a malformed frame");
            return;
        }
        blocked_ = true;
        blocked_by_ = "the server takes no messages: " + printable(text_of(blocked->reason));
    } else if (login_ == Step::done && method == AMQP_CONNECTION_UNBLOCKED_METHOD) {
        blocked_ = false;
        unblocked_at_ = clock_.now();
    } else {
        malformed("a frame that nobody expects");
    }
}

// -------------------------------------------------------------------------------------------------
// Login
// -------------------------------------------------------------------------------------------------

static amqp_table_entry_t entry(std::string_view name, std::string_view value) {
    amqp_table_entry_t made{};
    made.key = amqp_bytes(name);
    made.value.kind = AMQP_FIELD_KIND_UTF8;
    made.value.value.bytes = amqp_bytes(value);
    return made;
}

static amqp_table_entry_t capability(std::string_view name) {
    amqp_table_entry_t made{};
    made.key = amqp_bytes(name);
    made.value.kind = AMQP_FIELD_KIND_BOOLEAN;
    made.value.value.boolean = 1;
    return made;
}

static bool offers(std::string_view mechanisms, std::string_view wanted) {
    while (!mechanisms.empty()) {
        const std::string_view one = mechanisms.substr(0, mechanisms.find(' '));
        if (one == wanted)
            return true;
        mechanisms.remove_prefix(std::min(mechanisms.size(), one.size() + 1));
    }
    return false;
}

static std::string product_of(const amqp_table_t& properties) {
    std::string product, version;
    for (int i = 0; i < properties.num_entries; i++) {
        const amqp_table_entry_t& one = properties.entries[i];
        if (one.value.kind != AMQP_FIELD_KIND_UTF8)
            continue;
        const std::string_view value = text_of(one.value.value.bytes);
        if (text_of(one.key) == "product")
            product = printable(value, 100);
        else if (text_of(one.key) == "version")
            version = ' ' + printable(value, 100);
    }
    return product + version;
}

void AmqpConnection::started(const Frame& frame) {
    const auto* start = decoder_.decode<amqp_connection_start_t>(frame);
    if (start == nullptr) {
        malformed("a malformed frame");
        return;
    }
    server_ = product_of(start->server_properties);
    const std::string_view mechanism = config_.user.empty() ? "EXTERNAL" : "PLAIN";
    if (const std::string_view offered = text_of(start->mechanisms); !offers(offered, mechanism)) {
        fail("the server does not offer the mechanism " + std::string(mechanism) + ", only " +
                 printable(offered),
             Scope::destination);
        return;
    }
    std::array capabilities{capability("publisher_confirms"), capability("basic.nack"),
                            capability("connection.blocked"), capability("consumer_cancel_notify"),
                            // The server answers a refused login, instead of only closing the
                            // connection.
                            capability("authentication_failure_close")};
    std::array properties{entry("product", "pg_outbox"), entry("connection_name", config_.name),
                          amqp_table_entry_t{}};
    properties[2].key = amqp_bytes("capabilities");
    properties[2].value.kind = AMQP_FIELD_KIND_TABLE;
    properties[2].value.value.table = {static_cast<int>(capabilities.size()), capabilities.data()};
    std::string response;
    if (!config_.user.empty())
        response.append(1, '\0').append(config_.user).append(1, '\0').append(config_.password);
    amqp_connection_start_ok_t answer{
        .client_properties = {static_cast<int>(properties.size()), properties.data()},
        .mechanism = amqp_bytes(mechanism),
        .response = amqp_bytes(response),
        .locale = amqp_bytes("en_US")};
    append_method(output(), 0, AMQP_CONNECTION_START_OK_METHOD, &answer);
    login_ = Step::tune;
    flush();
}

void AmqpConnection::tuned(const Frame& frame) {
    const auto* tune = decoder_.decode<amqp_connection_tune_t>(frame);
    if (tune == nullptr || (tune->frame_max != 0 && tune->frame_max < AMQP_FRAME_MIN_SIZE)) {
        malformed("a malformed frame");
        return;
    }
    // 0 means unlimited, and for the heartbeat that there is none.
    max_frame_ =
        std::min<std::size_t>(wanted_frame, tune->frame_max == 0 ? wanted_frame : tune->frame_max);
    max_channels_ =
        std::min(wanted_channels, tune->channel_max == 0 ? wanted_channels : tune->channel_max);
    heartbeat_ =
        std::min(max_heartbeat, tune->heartbeat == 0 ? max_heartbeat : seconds(tune->heartbeat));
    amqp_connection_tune_ok_t answer{
        .channel_max = max_channels_,
        .frame_max = static_cast<std::uint32_t>(max_frame_),
        .heartbeat = static_cast<std::uint16_t>(heartbeat_ / seconds(1))};
    append_method(output(), 0, AMQP_CONNECTION_TUNE_OK_METHOD, &answer);
    amqp_connection_open_t open{.virtual_host = amqp_bytes(config_.virtual_host),
                                .capabilities = amqp_bytes(""),
                                .insist = 0};
    append_method(output(), 0, AMQP_CONNECTION_OPEN_METHOD, &open);
    login_ = Step::open;
    flush();
}

// -------------------------------------------------------------------------------------------------
// The end
// -------------------------------------------------------------------------------------------------

std::string explain_close(std::uint16_t code, amqp_bytes_t text) {
    return std::to_string(code) + ' ' + printable(text_of(text));
}

void AmqpConnection::closed(const Frame& frame) {
    const auto* close = decoder_.decode<amqp_connection_close_t>(frame);
    if (close == nullptr) {
        malformed("a malformed frame");
        return;
    }
    const std::string why = explain_close(close->reply_code, close->reply_text);
    // An end during the login concerns the user, the virtual host, or a limit of either, and would
    // be the same next time.
    const bool is_refused = state_ == State::connecting &&
                            close->reply_code != AMQP_CONNECTION_FORCED &&
                            close->reply_code != AMQP_INTERNAL_ERROR;
    dismissed_ = close->reply_code == AMQP_CONNECTION_FORCED;
    amqp_connection_close_ok_t answer{};
    append_method(output(), 0, AMQP_CONNECTION_CLOSE_OK_METHOD, &answer);
    stream_.flush();
    fail(why, is_refused ? Scope::destination : Scope::connection);
}

}  // namespace outbox
