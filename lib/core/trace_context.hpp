// W3C Trace Context (https://www.w3.org/TR/trace-context/): names the request that something was
// done for. Clients of a database write it into comments (https://google.github.io/sqlcommenter/).
//
// Nothing here allocates or throws, and nothing has a destructor, so that server code can use it.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace outbox {

inline constexpr std::size_t traceparent_length = 55;
inline constexpr std::size_t max_tracestate_length = 512;  // each system must pass on this much

// "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01": version, trace, parent, flags. Later
// versions may be longer; those are refused, because what follows is not known.
bool is_traceparent(std::string_view text) noexcept;

// Any printable ASCII characters: pg_outbox passes a tracestate on and does not look into it.
bool is_tracestate(std::string_view text) noexcept;

// Both end in a zero byte. `tracestate` may be empty.
struct TraceContext {
    char traceparent[traceparent_length + 1];
    char tracestate[max_tracestate_length + 1];
};

// Reads /*traceparent='00-...',tracestate='a%3D1'*/ at the end of a statement or at its beginning.
// Other comments are not searched for, so the time does not depend on the length of the statement.
// A literal that looks like such a comment ends in a quote, so it is not taken for one. Returns
// std::nullopt if there is no valid traceparent.
std::optional<TraceContext> trace_of_comment(std::string_view statement) noexcept;

}  // namespace outbox
