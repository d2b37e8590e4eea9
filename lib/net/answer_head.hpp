// Counts what comes around the body of an answer, for parsers that are not ours: they limit neither the
// number of header lines nor their size.
#pragma once

#include <cstddef>

#include "net/http1_response.hpp"

namespace outbox {

class AnswerHead {
  public:
    static constexpr std::size_t max_lines = 256;

    // Counts a line, also of an interim answer or a trailer. `begins`: it is the first of an answer.
    // Returns false if there are too many.
    bool add(std::size_t bytes, bool begins) noexcept {
        bytes_ += bytes;
        lines_++;
        answers_ += begins;
        return bytes_ <= Http1Response::max_around_body && lines_ <= max_lines &&
               answers_ <= Http1Response::max_interim_responses + 1;
    }

    bool has_begun() const noexcept { return answers_ > 0; }

  private:
    std::size_t bytes_ = 0;
    std::size_t lines_ = 0;
    int answers_ = 0;  // with interim ones
};

}  // namespace outbox
