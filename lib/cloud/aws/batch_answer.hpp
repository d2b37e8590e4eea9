// The answers of the services to a batch, whichever protocol they use.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sink.hpp"

namespace outbox {

// The reason why a request, or an entry of one, failed.
struct AwsFailure {
    std::string code;  // without its namespace; empty if the answer has none
    std::string message;
    bool sender_fault = false;
};

// Returns the last part of "com.amazonaws.sqs#QueueDoesNotExist" or
// "AWS.SimpleQueueService.NonExistentQueue".
std::string_view without_namespace(std::string_view code);

struct EntryAnswer {
    enum class State { missing, taken, failed } state = State::missing;
    std::string message_id;
    AwsFailure failure;
};
using BatchAnswer = std::vector<EntryAnswer>;  // one per event, in order

struct AwsVerdict {
    Fate fate = Fate::failed;
    bool permanent = false;
    bool bad_credentials = false;  // other credentials may work
    Scope scope = Scope::destination;
};

// Judges a request. `status` is the HTTP status, which decides if the code is unknown.
AwsVerdict verdict_of_request(int status, const AwsFailure& failure);
// Judges an entry of a request that was answered with 200.
AwsVerdict verdict_of_entry(const AwsFailure& failure);

// Returns "QueueDoesNotExist: The specified queue does not exist." in one line. Omits the text that
// should have been signed, because it contains the session token.
std::string explain(const AwsFailure& failure);

// Returns the entry with this id, or nullptr if the request had none. Ids are indexes.
EntryAnswer* entry_of(BatchAnswer& answer, std::string_view id);

}  // namespace outbox
