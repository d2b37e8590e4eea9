// The set of transactions that had finished at a moment: PostgreSQL's pg_snapshot, with 64-bit
// xids.
//
// Text form and meaning are those of the type pg_snapshot: "xmin:xmax:xip,xip,...". Every xid below
// xmin had finished; every xid from xmax on had not; in between, those listed in xip had not.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

struct Snapshot {
    std::uint64_t xmin = 1;
    std::uint64_t xmax = 1;
    std::vector<std::uint64_t> xip;  // ascending, each in [xmin, xmax)

    // Sorts xip as the server lists it, and removes duplicates. A transaction that was being
    // prepared is listed twice: once for its session, once on its own.
    void order_xip();

    // True if this top-level transaction had finished (committed or aborted) in the snapshot.
    bool finished(std::uint64_t xid) const noexcept;

    // The size of the text form with its terminating zero, and the text form itself.
    std::size_t text_size() const noexcept { return (xip.size() + 2) * 21 + 1; }
    void write_text(char* to) const noexcept;
    std::string to_string() const;
    static std::optional<Snapshot> parse(std::string_view text);

    bool operator==(const Snapshot&) const = default;
};

}  // namespace outbox
