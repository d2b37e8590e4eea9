// Reads an HTTP/1.1 response from a stream of bytes (RFC 9112), as far as a sender of events needs
// it: the status, Retry-After, whether the connection can be reused, where the response ends, and
// the beginning of the body.
//
// The network is not trusted. Every byte counts against one of two limits: bytes of the body, and
// bytes around it (heads, interim responses, sizes and ends of chunks, trailers). Malformed input
// is an error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "net/exchange.hpp"

namespace outbox {

class Http1Response {
  public:
    enum class State { incomplete, complete, malformed };

    // Limit for all bytes that are not part of the body.
    static constexpr std::size_t max_around_body = 64 * 1024;
    static constexpr int max_interim_responses = 16;
    // The rest of a longer body is not read, unless more must be kept. The response then counts as
    // complete, and the connection cannot be reused.
    static constexpr std::size_t max_body = 1024 * 1024;

    // Prepares for the next response. `keep_body` is the number of bytes of its body to keep.
    void reset(std::size_t keep_body = usual_kept_body);

    // Takes more bytes. Interim (1xx) responses are skipped. If bytes follow the end of the
    // response, the connection cannot be reused.
    State take(std::string_view bytes);
    // The peer closed the connection.
    State end_of_stream();
    // The rest is not waited for, and the connection cannot be reused. Returns complete if the head has come, because it
    // has the verdict.
    State cut_off();

    // These are valid once the response is complete.
    int status() const { return status_; }
    bool keep_alive() const { return keep_alive_; }
    std::string_view retry_after() const { return retry_after_; }
    std::string_view body() const { return body_; }  // at most keep_body bytes

    // True once any byte has arrived.
    bool begun() const { return begun_; }

  private:
    enum class Part {
        head,
        body_by_length,
        chunk_size,
        chunk_data,
        chunk_end,
        trailers,
        body_to_end,
        done
    };

    bool take_part(std::string_view& bytes);
    bool read_head(std::string_view& bytes);
    bool parse_head();
    bool parse_status_line(std::string_view line);
    bool parse_field(std::string_view line);
    bool parse_chunk_size();
    bool take_line(std::string_view& bytes);
    void forget_head();
    void keep(std::string_view data);

    Part part_ = Part::head;
    std::string head_;  // of the current response, or the line of a chunk
    std::size_t around_body_ = 0;
    int interim_responses_ = 0;
    bool begun_ = false;
    int status_ = 0;
    bool keep_alive_ = true;
    bool chunked_ = false;
    bool has_length_ = false;
    std::uint64_t left_ = 0;  // bytes left of the body or chunk
    std::uint64_t body_size_ = 0;
    std::string retry_after_;
    std::size_t keep_body_ = usual_kept_body;
    std::string body_;
};

}  // namespace outbox
