#include "net/http1_response.hpp"

#include <algorithm>
#include <charconv>

#include "core/text.hpp"

namespace outbox {

void Http1Response::reset(std::size_t keep_body) {
    *this = Http1Response{};
    keep_body_ = keep_body;
}

Http1Response::State Http1Response::take(std::string_view bytes) {
    begun_ = begun_ || !bytes.empty();
    while (!bytes.empty() && part_ != Part::done) {
        const std::size_t size = bytes.size();
        const std::uint64_t body_size = body_size_;
        if (!take_part(bytes))
            return State::malformed;
        around_body_ += size - bytes.size() - static_cast<std::size_t>(body_size_ - body_size);
        if (around_body_ > max_around_body)
            return State::malformed;
        if (body_size_ > std::max(max_body, keep_body_)) {
            keep_alive_ = false;
            return State::complete;
        }
    }
    if (part_ != Part::done)
        return State::incomplete;
    if (!bytes.empty())  // more than the one response we asked for
        keep_alive_ = false;
    return State::complete;
}

// Takes at least one byte of the current part off the front. Returns false if it is malformed.
bool Http1Response::take_part(std::string_view& bytes) {
    switch (part_) {
        case Part::head:
            return read_head(bytes);
        case Part::body_by_length:
        case Part::chunk_data: {
            const std::string_view data = bytes.substr(0, left_);
            keep(data);
            left_ -= data.size();
            bytes.remove_prefix(data.size());
            if (left_ == 0)
                part_ = part_ == Part::chunk_data ? Part::chunk_end : Part::done;
            return true;
        }
        case Part::chunk_size:
            return !take_line(bytes) || parse_chunk_size();
        case Part::chunk_end:
            if (take_line(bytes))
                part_ = Part::chunk_size;
            return head_.empty() || head_ == "\r";  // only the end of the line
        case Part::trailers:
            if (take_line(bytes)) {
                if (head_.empty())
                    part_ = Part::done;
                head_.clear();
            }
            return true;
        case Part::body_to_end:
            keep(bytes);
            bytes = {};
            return true;
        case Part::done:
            break;
    }
    return false;
}

bool Http1Response::parse_chunk_size() {
    const std::string_view size = trim(std::string_view(head_).substr(0, head_.find(';')));
    const auto [end, error] = std::from_chars(size.data(), size.data() + size.size(), left_, 16);
    if (error != std::errc{} || end != size.data() + size.size())
        return false;
    head_.clear();
    part_ = left_ == 0 ? Part::trailers : Part::chunk_data;
    return true;
}

Http1Response::State Http1Response::end_of_stream() {
    keep_alive_ = false;
    return part_ == Part::body_to_end || part_ == Part::done ? State::complete : State::malformed;
}

Http1Response::State Http1Response::cut_off() {
    keep_alive_ = false;
    return part_ == Part::head ? State::incomplete : State::complete;
}

// Appends a line without its end to head_. Returns false if the line is not complete yet.
bool Http1Response::take_line(std::string_view& bytes) {
    const std::size_t end = bytes.find('\n');
    head_ += bytes.substr(0, end);
    if (end == std::string_view::npos) {
        bytes = {};
        return false;
    }
    bytes.remove_prefix(end + 1);
    if (!head_.empty() && head_.back() == '\r')
        head_.pop_back();
    return true;
}

// Collects the head up to the empty line, then parses it. Returns false if it is malformed.
bool Http1Response::read_head(std::string_view& bytes) {
    // The empty line may be split between reads, so the search starts a little before the new
    // bytes. A line may end without CR (RFC 9112, section 2.2). The first empty line ends the head,
    // however it was split.
    const std::size_t from = head_.size() < 2 ? 0 : head_.size() - 2;
    const std::size_t before = head_.size();
    head_ += bytes;
    auto is_empty_line = [&](std::size_t newline) {
        const std::string_view text = std::string_view(head_).substr(0, newline);
        return text.ends_with('\n') || text.ends_with("\n\r");
    };
    std::size_t newline = head_.find('\n', from);
    while (newline != std::string::npos && !is_empty_line(newline))
        newline = head_.find('\n', newline + 1);
    if (newline == std::string::npos) {
        bytes = {};
        return true;
    }
    bytes.remove_prefix(newline + 1 - before);
    head_.resize(head_.rfind('\n', newline - 1) + 1);
    return parse_head();
}

bool Http1Response::parse_head() {
    std::string_view rest = head_;
    bool first = true;
    while (!rest.empty()) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (!line.empty() && line.back() == '\r')
            line.remove_suffix(1);
        if (first ? !parse_status_line(line) : !parse_field(line))
            return false;
        first = false;
    }
    if (first)
        return false;

    if (status_ >= 100 && status_ < 200) {  // the final response follows
        if (status_ == 101 || ++interim_responses_ > max_interim_responses)
            return false;
        forget_head();
        return true;
    }
    if (chunked_ && has_length_)  // RFC 9112, section 6.3: the message cannot be trusted
        keep_alive_ = false;
    if (status_ == 204 || status_ == 304)
        part_ = Part::done;
    else if (chunked_)
        part_ = Part::chunk_size;
    else if (has_length_)
        part_ = left_ > 0 ? Part::body_by_length : Part::done;
    else
        part_ = Part::body_to_end;
    head_.clear();
    return true;
}

bool Http1Response::parse_status_line(std::string_view line) {
    if (!line.starts_with("HTTP/1.") || line.size() < 12 || line[8] != ' ')
        return false;
    keep_alive_ = line[7] != '0';
    const auto status = parse_integer(line.substr(9, 3));
    if (!status || *status < 100 || *status > 599 || (line.size() > 12 && line[12] != ' '))
        return false;
    status_ = static_cast<int>(*status);
    return true;
}

bool Http1Response::parse_field(std::string_view line) {
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || colon == 0)
        return false;
    const std::string_view name = line.substr(0, colon);
    const std::string_view value = trim(line.substr(colon + 1));
    if (equal_ignoring_case(name, "content-length")) {
        const auto length = parse_integer(value);
        if (!length || *length < 0 || (has_length_ && left_ != static_cast<std::uint64_t>(*length)))
            return false;
        has_length_ = true;
        left_ = static_cast<std::uint64_t>(*length);
    } else if (equal_ignoring_case(name, "transfer-encoding")) {
        // The only coding that a server may use unasked. If there are several, it must be the last
        // one.
        const std::size_t comma = value.rfind(',');
        chunked_ = equal_ignoring_case(
            trim(comma == std::string_view::npos ? value : value.substr(comma + 1)), "chunked");
        if (!chunked_)
            keep_alive_ = false;
    } else if (equal_ignoring_case(name, "connection")) {
        if (equal_ignoring_case(value, "close"))
            keep_alive_ = false;
        else if (equal_ignoring_case(value, "keep-alive"))
            keep_alive_ = true;
    } else if (equal_ignoring_case(name, "retry-after")) {
        retry_after_ = value;
    }
    return true;
}

// Forgets the head of an interim response. Its bytes still count against the limit.
void Http1Response::forget_head() {
    Http1Response next;
    next.begun_ = true;
    next.keep_body_ = keep_body_;
    next.around_body_ = around_body_;
    next.interim_responses_ = interim_responses_;
    *this = std::move(next);
}

void Http1Response::keep(std::string_view data) {
    body_size_ += data.size();
    if (body_.size() < keep_body_)
        body_ += data.substr(0, keep_body_ - body_.size());
}

}  // namespace outbox
