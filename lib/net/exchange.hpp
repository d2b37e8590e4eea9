// A request over HTTP and what came of it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "core/sink.hpp"

namespace outbox {

// What of a request depends on its events. Buffers are reused from request to request.
struct RequestContent {
    std::string headers;    // "name: value\r\n" ..., without Content-Length
    std::string_view body;  // lies in an event or in `buffer`
    std::string buffer;
};

// How much of an answer's body is kept: enough to say what was wrong.
constexpr std::size_t usual_kept_body = 200;

// Owned by whoever asks; the transport holds it from send() until it puts it into `done`.
struct Exchange {
    Batch* batch = nullptr;
    int step = 0;  // the sink's, of a batch that takes several requests: which this is
    const char* method = "POST";
    std::string target;  // path and query; empty: those of the transport's URL
    RequestContent content;
    std::size_t keep_body = usual_kept_body;

    // The answer. status 0: there was none, and `error` says why.
    int status = 0;
    bool reached = false;             // without an answer: the request may have got there
    Scope scope = Scope::connection;  // without an answer, and not reached: what is to blame
    std::string error;
    std::string retry_after;  // as the header has it; empty: none
    std::string body;         // at most keep_body bytes of it

    void fail(std::string why) {
        status = 0;
        error = std::move(why);
    }
};

// An answer in words: "HTTP 503: try later", or why there is none. One line.
std::string explain(const Exchange& exchange);

// Takes what the request proved its sender with out of the answer, which may repeat it.
void conceal_secrets(Exchange& exchange) noexcept;

// How long the server asks to be left alone; 0: it does not. `text` is the value of Retry-After, a
// number of seconds or a date (RFC 9110, section 10.2.3).
Micros retry_after_of(const std::string& text, Micros unix_now);

// Of the value of an Authorization header: a token or a password. A signature is none.
std::string_view secret_in(std::string_view authorization);

}  // namespace outbox
