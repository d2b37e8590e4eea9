#include "core/position_ranges.hpp"

#include <algorithm>

#include "core/text.hpp"

namespace outbox {

std::string ranges_of(std::vector<std::int64_t>& positions) {
    std::sort(positions.begin(), positions.end());
    std::string text = "{";
    for (std::size_t i = 0, end; i < positions.size(); i = end) {
        for (end = i + 1; end < positions.size() && positions[end] <= positions[end - 1] + 1;)
            end++;
        text += i > 0 ? ",[" : "[";
        append_integer(text, positions[i]);
        text += ',';
        append_integer(text, positions[end - 1]);
        text += ']';
    }
    return text += '}';
}

}  // namespace outbox
