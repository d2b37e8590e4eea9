// The header fields of a request as nghttp2 takes them.
#pragma once

#include <nghttp2/nghttp2.h>

#include <string>
#include <string_view>
#include <vector>

namespace outbox {

// Refers to the names and values that it is given.
class Http2Fields {
  public:
    void clear() noexcept { fields_.clear(); }

    // These may throw std::bad_alloc.
    void add(std::string_view name, std::string_view value);
    // Never enters the table of a compressor, where others could guess it (RFC 7541, section 7.1.3).
    void add_secret(std::string_view name, std::string_view value);
    // `lines` as in RequestContent. Can be called once.
    void add_lines(std::string_view lines);

    const nghttp2_nv* data() const noexcept { return fields_.data(); }
    std::size_t size() const noexcept { return fields_.size(); }

  private:
    std::vector<nghttp2_nv> fields_;
    std::string lines_;  // with names in lower case
};

}  // namespace outbox
