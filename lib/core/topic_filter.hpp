// The topics that a destination takes: a list of patterns such as "video.*, user.events".
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/result.hpp"

namespace outbox {

// `*` stands for any run of characters, also an empty one. All other characters, dots too, stand
// for themselves.
bool pattern_matches(std::string_view pattern, std::string_view text) noexcept;

class TopicFilter {
  public:
    // Reads patterns separated by commas, and ignores blanks around them. "*" takes every topic.
    static Result<TopicFilter> parse(std::string_view list);

    bool matches(std::string_view topic) const noexcept;
    bool matches_everything() const noexcept { return patterns_.empty(); }

  private:
    std::vector<std::string> patterns_;  // empty if every topic is taken
};

}  // namespace outbox
