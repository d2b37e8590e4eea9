// The mark of a position: the last message before it. If another message has its offset, the
// position is one of another topic or stream, whose offsets began again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace inbox {

struct Mark {
    std::int64_t offset = -1;  // -1 if it is not known
    std::string event_id{};

    explicit operator bool() const { return offset >= 0; }
    // '<offset> <id of the event>', or an empty text. Anything else is parsed as an unknown mark.
    std::string text() const;
    static Mark parse(std::string_view text);
};

}  // namespace inbox
