// The request of Kinesis that looks at a stream, and its answer.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace outbox {

// Appends the member of a request that names the stream. `address` is its ARN or its name.
void append_stream_name(std::string& body, std::string_view address);

// Makes the request DescribeStreamSummary.
std::string kinesis_summary_request(std::string_view address);

struct StreamSummary {
    std::string status;      // such as "ACTIVE"
    int max_record_kib = 0;  // 0 if the answer does not say so
};
// Returns std::nullopt if the body is not an answer to this request.
std::optional<StreamSummary> parse_kinesis_summary(std::string_view body);

}  // namespace outbox
