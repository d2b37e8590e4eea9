// What SQS and SNS say about a batch, whichever way they write it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sink.hpp"

namespace outbox {

// Why a request, or an entry of one, came to nothing.
struct AwsFailure {
    std::string code;  // without its namespace; empty: the answer names none
    std::string message;
    bool sender_fault = false;
};

// Of "com.amazonaws.sqs#QueueDoesNotExist" or "AWS.SimpleQueueService.NonExistentQueue" the last
// part.
std::string_view without_namespace(std::string_view code);

struct EntryAnswer {
    enum class State { missing, taken, failed } state = State::missing;
    std::string message_id;
    AwsFailure failure;
};
using BatchAnswer = std::vector<EntryAnswer>;  // one for each event, in order

struct AwsVerdict {
    Fate fate = Fate::failed;
    bool permanent = false;
    bool bad_credentials = false;  // others may do
    Scope scope = Scope::destination;
};

// Of a request: `status` is that of the answer, and decides where nothing is known of the code.
AwsVerdict verdict_of_request(int status, std::string_view code);
// Of an entry of a request that was answered with 200.
AwsVerdict verdict_of_entry(const AwsFailure& failure);

// "QueueDoesNotExist: The specified queue does not exist." One line; what a service says
// should have been signed is left out, for it holds the session token.
std::string explain(const AwsFailure& failure);

// The entry an id of an answer stands for; nothing: none that was asked for. An id is the index.
EntryAnswer* entry_of(BatchAnswer& answer, std::string_view id);

}  // namespace outbox
