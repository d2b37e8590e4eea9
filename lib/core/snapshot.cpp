#include "core/snapshot.hpp"

#include <algorithm>
#include <charconv>

namespace outbox {

void Snapshot::order_xip() {
    std::sort(xip.begin(), xip.end());
    xip.erase(std::unique(xip.begin(), xip.end()), xip.end());
}

bool Snapshot::finished(std::uint64_t xid) const noexcept {
    if (xid < xmin)
        return true;
    if (xid >= xmax)
        return false;
    return !std::binary_search(xip.begin(), xip.end(), xid);
}

void Snapshot::write_text(char* to) const noexcept {
    char* const end = to + text_size();
    auto put = [&](std::uint64_t number, char separator) {
        to = std::to_chars(to, end, number).ptr;
        *to++ = separator;
    };
    put(xmin, ':');
    put(xmax, ':');
    for (std::uint64_t xid : xip)
        put(xid, ',');
    if (!xip.empty())
        to--;  // no comma after the last one
    *to = '\0';
}

std::string Snapshot::to_string() const {
    std::string text(text_size(), '\0');
    write_text(text.data());
    text.resize(text.find('\0'));
    return text;
}

// Takes a number and the separator after it off the front of `text`.
static std::optional<std::uint64_t> take_number(std::string_view& text, char separator) {
    std::uint64_t number = 0;
    auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{})
        return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(end - text.data()));
    if (text.empty())
        return separator == ',' ? std::optional(number) : std::nullopt;
    if (text.front() != separator)
        return std::nullopt;
    text.remove_prefix(1);
    return number;
}

std::optional<Snapshot> Snapshot::parse(std::string_view text) {
    auto xmin = take_number(text, ':');
    auto xmax = take_number(text, ':');
    if (!xmin || !xmax || *xmin == 0 || *xmin > *xmax)
        return std::nullopt;

    Snapshot snapshot{*xmin, *xmax, {}};
    while (!text.empty()) {
        auto xid = take_number(text, ',');
        if (!xid || *xid < *xmin || *xid >= *xmax)
            return std::nullopt;
        if (!snapshot.xip.empty() && *xid <= snapshot.xip.back())
            return std::nullopt;
        snapshot.xip.push_back(*xid);
    }
    return snapshot;
}

}  // namespace outbox
