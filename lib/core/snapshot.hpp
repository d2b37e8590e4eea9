// Which transactions had finished at a moment: PostgreSQL's pg_snapshot, with 64-bit xids.
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

    // Brings xip, as the server lists it, into the form above. A transaction that was just being
    // prepared stands in it twice: once as its session's, once on its own.
    void order_xip();

    // Had this top-level transaction finished (committed or aborted) when the snapshot was taken?
    bool finished(std::uint64_t xid) const noexcept;

    // Room for the text form with its terminating zero, and the form itself.
    std::size_t text_size() const noexcept { return (xip.size() + 2) * 21 + 1; }
    void write_text(char* to) const noexcept;
    std::string to_string() const;
    static std::optional<Snapshot> parse(std::string_view text);

    bool operator==(const Snapshot&) const = default;
};

}  // namespace outbox
