// An HTTP request and its result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "core/sink.hpp"

namespace outbox {

// The part of a request that depends on its events. Buffers are reused from request to request.
struct RequestContent {
    std::string headers;    // "name: value\r\n" ..., without Content-Length
    std::string_view body;  // points into an event or into `buffer`
    std::string buffer;
};

// Number of bytes of an answer's body that are kept: enough for an error message.
constexpr std::size_t usual_kept_body = 200;

// The caller of Transport::send() owns it. The transport refers to it until step() puts it into
// `done`.
struct Exchange {
    Batch* batch = nullptr;
    int step = 0;  // number of this request, if a batch takes several; set by the sink
    const char* method = "POST";
    std::string url;     // only if the transport has none: that of this request
    std::string target;  // path and query, or empty for those of the transport's URL
    RequestContent content;
    std::size_t keep_body = usual_kept_body;

    // The answer. If there was none, status is 0 and `error` says why.
    int status = 0;
    bool reached = false;  // only without an answer: the request may have arrived
    // Only without an answer, and if not reached: the thing that failed.
    Scope scope = Scope::connection;
    std::string error;
    std::string retry_after;  // the value of the header, or empty
    std::string body;         // at most keep_body bytes

    void fail(std::string why) {
        status = 0;
        error = std::move(why);
    }
};

// Requests that a transport has sent again by itself, because their connection was lost before an
// answer, though they may have arrived: attempts that failed, and have no outcome of their own.
struct Repeats {
    std::uint64_t count = 0;
    std::string why;  // the last one

    void add(std::uint64_t more, std::string_view reason) {
        count += more;
        why = reason;
    }
    // Moves them to `report`.
    void report(SinkReport& report) noexcept {
        report.sent_again = std::exchange(count, 0);
        report.why_again.swap(why);
    }
};

// Describes an answer, such as "HTTP 503: try later", or the reason why there is none. One line.
std::string explain(const Exchange& exchange);

// Removes the credentials of the request from a text of the answer, which may repeat them. A text
// that was decoded must be given again: before, it may have had the credentials in another form.
void conceal_secrets(const Exchange& exchange, std::string& text) noexcept;

// Returns the pause that the server asks for, or 0. `text` is the value of Retry-After: a number of
// seconds or a date (RFC 9110, section 10.2.3).
Micros retry_after_of(const std::string& text, Micros unix_now);

// Returns the token or password in the value of an Authorization header. A signature is not secret.
std::string_view secret_in(std::string_view authorization);

}  // namespace outbox
