// A statement that is to be run, and its answer.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "core/sql/call.hpp"
#include "core/sql/event_rows.hpp"
#include "core/sql/rows.hpp"

namespace outbox::relay {

using sql::Call;
using sql::EventRows;
using sql::Parameters;
using sql::Place;
using sql::Rows;
namespace type = sql::type;

inline constexpr std::string_view query_canceled = "57014";

struct Answer {
    Rows rows{};
    bool ok = false;
    // If it is not ok.
    std::string error{};  // one line
    std::string
        sqlstate{};  // empty if the connection was lost: the statement may have taken effect

    bool connection_lost() const noexcept { return !ok && sqlstate.empty(); }
};

struct Statement {
    sql::Call call{};
    // Called once, unless everything ends before. Must not be called after the owner is gone: an
    // owner outlives its statements.
    std::function<void(Answer)> done{};
};

}  // namespace outbox::relay
