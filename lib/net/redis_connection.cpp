#include "net/redis_connection.hpp"

#include <algorithm>
#include <utility>

#include "core/late.hpp"

namespace outbox {

bool has_code(std::string_view error, std::string_view code) noexcept {
    return error.starts_with(code) && (error.size() == code.size() || error[code.size()] == ' ');
}

RedisConnection::RedisConnection(TransportConfig config, RedisLogin login,
                                 RespReader::Limits limits)
    : login_(std::move(login)),
      connect_timeout_(config.connect_timeout),
      stream_(std::move(config)),
      reader_(limits) {}

Micros RedisConnection::deadline() const noexcept {
    if (state_ == State::closed)
        return never;
    if (stream_.state() == Stream::State::closed)
        return 0;  // which is not known yet to the owner
    return std::min(stream_.deadline(), give_up_at_);
}

void RedisConnection::open(Micros now) {
    reader_.reset();
    login_answers_ = 0;
    stream_.open();
    state_ = State::connecting;
    give_up_at_ = now + connect_timeout_;
}

void RedisConnection::close() noexcept {
    stream_.close();
    state_ = State::closed;
    give_up_at_ = never;
}

void RedisConnection::fail(std::string why, Scope scope) {
    stream_.fail(std::move(why), scope);
    close();
}

void RedisConnection::step(Micros now) {
    if (state_ == State::closed)
        return;
    const bool was_open = stream_.state() == Stream::State::open;
    stream_.step(now);
    if (state_ != State::connecting)
        return;
    const bool is_open = stream_.state() == Stream::State::open;
    if (is_open && !was_open)
        log_in();
    if (is_open || was_open)
        take_login_answers();
    else if (stream_.state() == Stream::State::closed)
        close();
    if (state_ == State::connecting && now >= give_up_at_)
        fail(no_connection_within(connect_timeout_));
}

void RedisConnection::log_in() {
    std::string& out = stream_.output();
    if (!login_.user.empty())
        append_command_of(out, std::string_view("AUTH"), std::string_view(login_.user),
                          std::string_view(login_.password));
    else if (!login_.password.empty())
        append_command_of(out, std::string_view("AUTH"), std::string_view(login_.password));
    login_answers_ = out.empty() ? 0 : 1;
    if (login_.database != 0) {
        append_command_of(out, std::string_view("SELECT"),
                          static_cast<std::int64_t>(login_.database));
        login_answers_++;
    }
    stream_.flush();
}

// Returns true if the server refuses all clients for now.
static bool is_passing(std::string_view error) noexcept {
    return has_code(error, "LOADING") || has_code(error, "MASTERDOWN") || has_code(error, "BUSY") ||
           error.find("max number of clients") != std::string_view::npos;
}

void RedisConnection::take_login_answers() {
    while (login_answers_ > 0) {
        const RespValue* answer = next_answer();
        if (answer == nullptr)
            return;
        login_answers_--;
        if (answer->is_error()) {
            const Scope scope = is_passing(answer->text) ? Scope::connection : Scope::destination;
            fail("login: " + answer->text, scope);
            return;
        }
    }
    state_ = State::ready;
    give_up_at_ = never;
}

RespValue* RedisConnection::next_answer() {
    std::string_view input = stream_.input();
    const std::size_t size = input.size();
    const RespReader::State state = reader_.read(input);
    stream_.consume(size - input.size());
    switch (state) {
        case RespReader::State::complete:
            return &reader_.value();
        case RespReader::State::broken:
            fail("the server does not speak the protocol of Redis");
            return nullptr;
        case RespReader::State::more:
            break;
    }
    if (stream_.state() == Stream::State::closed)
        close();  // all bytes before the end have been read
    return nullptr;
}

}  // namespace outbox
