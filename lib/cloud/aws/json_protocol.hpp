// AWS JSON, the protocol of SQS, Kinesis and EventBridge: a request is an object, and so is its answer.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

#include "cloud/aws/batch_answer.hpp"

namespace outbox {

AwsFailure parse_json_failure(std::string_view body);

// An answer to a batch that has a result for each entry, in the order of the entries.
struct ResultNames {
    std::string_view list;  // of the results
    std::string_view id;    // that a result has if the entry was taken
};
inline constexpr ResultNames kinesis_results{"Records", "SequenceNumber"};
inline constexpr ResultNames eventbridge_results{"Entries", "EventId"};

// Returns the result of each entry of a batch, or std::nullopt if the body is not an answer to this
// request.
std::optional<BatchAnswer> parse_ordered_answer(std::string_view body, const ResultNames& names,
                                                std::size_t entries);

}  // namespace outbox
