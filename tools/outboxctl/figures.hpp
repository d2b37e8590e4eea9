// Figures of destinations and consumers, as `top` and the console show them.
#pragma once

namespace outboxctl {

// Columns of outbox.status and inbox.status. Both have: name, state, counter, waiting, keys that wait,
// oldest, p50 and p99 in ms, error.
inline constexpr const char* figures_of_destinations =
    "destination AS name, state, published AS total, pending_at_most AS waiting, "
    "held_keys AS keys, date_trunc('second', oldest_pending_age) AS oldest, "
    "round(extract(epoch FROM latency_p50) * 1000, 1) AS p50_ms, "
    "round(extract(epoch FROM latency_p99) * 1000, 1) AS p99_ms, last_error AS error";
inline constexpr const char* figures_of_consumers =
    "consumer AS name, state, processed AS total, pending_at_most AS waiting, "
    "waiting_keys AS keys, date_trunc('second', oldest_pending_age) AS oldest, "
    "round(extract(epoch FROM latency_p50) * 1000, 1) AS p50_ms, "
    "round(extract(epoch FROM latency_p99) * 1000, 1) AS p99_ms, last_error AS error";

}  // namespace outboxctl
