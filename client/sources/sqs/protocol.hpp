// The requests of a consumer to SQS, and their answers. Those of a sink are in
// lib/cloud/aws/sqs_protocol.hpp.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "inbox/event.hpp"

namespace inbox::sqs {

constexpr std::size_t max_per_request = 10;

struct Message {
    std::string id;
    std::string receipt_handle;  // identifies the message when it is deleted or made visible
    std::string body;
    std::map<std::string, std::string> attributes{};
    std::string group{};  // empty if it has none
    Time sent_at{};
};

struct ReceiveRequest {
    std::string_view queue_url;
    std::chrono::seconds wait;
    std::chrono::seconds visibility;
    std::string_view attempt_id;  // for FIFO queues; may be empty
};
std::string receive_request(const ReceiveRequest& request);
// Returns std::nullopt if the body is not an answer to this request.
std::optional<std::vector<Message>> parse_messages(std::string_view body);

// The id of an entry is its index, as in outbox::parse_sqs_answer().
std::string delete_request(std::string_view queue_url, std::span<const std::string> handles);
std::string visibility_request(std::string_view queue_url, std::span<const std::string> handles,
                               std::chrono::seconds visibility);

std::string queue_url_request(std::string_view queue, std::string_view account);

}  // namespace inbox::sqs
