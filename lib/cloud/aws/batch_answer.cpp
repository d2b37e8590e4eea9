#include "cloud/aws/batch_answer.hpp"

#include <algorithm>
#include <array>

#include "core/text.hpp"
#include "net/exchange.hpp"

namespace outbox {

namespace {

enum class Meaning {
    credentials,  // they are invalid; others may be valid
    signature,    // the same, and further lines of the message quote the signed text
    lane,         // the queue, topic, stream or bus, its encryption key, or our permission for it
    destination,  // any request would fail
    throttled,
    never,  // this message will never be accepted
    message,
    server,
};

struct Code {
    std::string_view name;
    Meaning meaning;
};

// Codes of all services, and codes common to all of AWS. Protocols have different names for the
// same error.
constexpr std::array codes{
    Code{"ExpiredToken", Meaning::credentials},
    Code{"ExpiredTokenException", Meaning::credentials},
    Code{"InvalidClientTokenId", Meaning::credentials},
    Code{"InvalidAccessKeyId", Meaning::credentials},
    Code{"UnrecognizedClientException", Meaning::credentials},
    Code{"AuthFailure", Meaning::credentials},
    Code{"RequestExpired", Meaning::signature},
    Code{"RequestInTheFuture", Meaning::signature},
    Code{"RequestTimeTooSkewed", Meaning::signature},
    Code{"SignatureDoesNotMatch", Meaning::signature},
    Code{"InvalidSignatureException", Meaning::signature},
    Code{"IncompleteSignature", Meaning::signature},
    Code{"IncompleteSignatureException", Meaning::signature},

    Code{"MissingAuthenticationToken", Meaning::destination},
    Code{"MissingAuthenticationTokenException", Meaning::destination},
    Code{"AccessDenied", Meaning::lane},
    Code{"AccessDeniedException", Meaning::lane},
    Code{"AuthorizationError", Meaning::lane},
    Code{"AuthorizationErrorException", Meaning::lane},
    Code{"NotAuthorized", Meaning::lane},
    Code{"InvalidSecurity", Meaning::destination},
    Code{"OptInRequired", Meaning::destination},
    Code{"SubscriptionRequiredException", Meaning::destination},
    Code{"QueueDoesNotExist", Meaning::lane},
    Code{"NonExistentQueue", Meaning::lane},
    Code{"QueueDeletedRecently", Meaning::lane},
    Code{"InvalidAddress", Meaning::lane},
    Code{"UnsupportedOperation", Meaning::lane},
    Code{"NotFound", Meaning::lane},
    Code{"NotFoundException", Meaning::lane},
    Code{"EndpointDisabled", Meaning::lane},
    Code{"PlatformApplicationDisabled", Meaning::lane},
    Code{"OperationDisabledException", Meaning::lane},
    Code{"ResourceNotFoundException", Meaning::lane},
    Code{"ResourceInUseException", Meaning::lane},
    Code{"InvalidAccountIdException", Meaning::lane},
    Code{"UnknownOperationException", Meaning::destination},
    Code{"InvalidAction", Meaning::destination},
    Code{"MissingAction", Meaning::destination},

    Code{"TooManyRequestsException", Meaning::throttled},
    Code{"RequestLimitExceeded", Meaning::throttled},
    Code{"BandwidthLimitExceeded", Meaning::throttled},
    Code{"SlowDown", Meaning::throttled},
    Code{"PriorRequestNotComplete", Meaning::throttled},
    Code{"TransactionInProgressException", Meaning::throttled},
    Code{"OverLimit", Meaning::throttled},
    Code{"LimitExceededException", Meaning::throttled},
    Code{"ProvisionedThroughputExceededException", Meaning::throttled},
    Code{"ServiceUnavailable", Meaning::throttled},
    Code{"ServiceUnavailableException", Meaning::throttled},

    Code{"BatchRequestTooLong", Meaning::never},
    Code{"BatchRequestTooLongException", Meaning::never},
    Code{"InvalidMessageContents", Meaning::never},
    Code{"MessageTooLong", Meaning::never},
    Code{"RequestEntityTooLargeException", Meaning::never},
    Code{"MalformedDetail", Meaning::never},
    Code{"InvalidAttributeName", Meaning::never},
    Code{"InvalidAttributeValue", Meaning::never},

    Code{"InvalidArgument", Meaning::message},
    Code{"InvalidArgumentException", Meaning::message},
    Code{"NotAuthorizedForSourceException", Meaning::message},
    Code{"NotAuthorizedForDetailTypeException", Meaning::message},
    Code{"RedactionFailure", Meaning::message},
    Code{"InvalidParameter", Meaning::message},
    Code{"InvalidParameterValue", Meaning::message},
    Code{"ParameterValueInvalid", Meaning::message},
    Code{"MissingParameter", Meaning::message},
    Code{"ValidationError", Meaning::message},
    Code{"ValidationException", Meaning::message},

    Code{"InternalError", Meaning::server},
    Code{"InternalFailure", Meaning::server},
    Code{"InternalFailureException", Meaning::server},
    Code{"InternalException", Meaning::server},
    Code{"InternalServerError", Meaning::server},
    Code{"RequestTimeout", Meaning::server},
    Code{"RequestTimeoutException", Meaning::server},
    Code{"RequestAbortedException", Meaning::server},
};

// Each service has names of its own: Throttled, KmsThrottled, KMS.ThrottlingException, and more.
bool is_throttling(std::string_view code) {
    return code.find("hrottl") != std::string_view::npos;
}

std::optional<Meaning> meaning_of(std::string_view code) {
    if (is_throttling(code))
        return Meaning::throttled;
    const auto known = std::find_if(codes.begin(), codes.end(),
                                    [&](const Code& known) { return known.name == code; });
    if (known != codes.end())
        return known->meaning;
    // Errors of the key that encrypts the queue, topic or stream: KmsDisabled, KMSAccessDenied, and more.
    if (equal_ignoring_case(code.substr(0, 3), "kms"))
        return Meaning::lane;
    return std::nullopt;
}

AwsVerdict verdict_of(Meaning meaning) {
    switch (meaning) {
        case Meaning::credentials:
        case Meaning::signature:
            return {.fate = Fate::unavailable, .bad_credentials = true};
        case Meaning::lane:
            return {.fate = Fate::unavailable, .scope = Scope::lane};
        case Meaning::destination:
            return {.fate = Fate::unavailable};
        case Meaning::throttled:
            return {.fate = Fate::throttled};
        case Meaning::never:
            return {.fate = Fate::refused, .permanent = true};
        case Meaning::message:
            return {.fate = Fate::refused};
        case Meaning::server:
            break;
    }
    return {.fate = Fate::failed};
}

AwsVerdict verdict_of_status(int status) {
    switch (status) {
        case 400:
            return {.fate = Fate::refused};
        case 413:
            return {.fate = Fate::refused, .permanent = true};
        case 408:
            return {.fate = Fate::failed};
        case 429:
        case 503:
            return {.fate = Fate::throttled};
        case 404:
            return {.fate = Fate::unavailable, .scope = Scope::lane};
        default:
            return {.fate = status >= 500 ? Fate::failed : Fate::unavailable};
    }
}

}  // namespace

std::string_view without_namespace(std::string_view code) {
    return code.substr(code.find_last_of("#.") + 1);
}

// SNS has one code for a topic that it does not accept and for an event. What follows may quote the event, so only the
// beginning counts.
static bool names_topic(std::string_view message) {
    return message.starts_with("Invalid parameter: TopicArn") ||
           message.starts_with("Invalid parameter: TargetArn");
}

AwsVerdict verdict_of_request(int status, const AwsFailure& failure) {
    const std::optional<Meaning> meaning = meaning_of(failure.code);
    const AwsVerdict verdict = meaning ? verdict_of(*meaning) : verdict_of_status(status);
    const bool blames_event = verdict.fate == Fate::refused && !verdict.permanent;
    return blames_event && names_topic(failure.message) ? verdict_of(Meaning::lane) : verdict;
}

AwsVerdict verdict_of_entry(const AwsFailure& failure) {
    if (const std::optional<Meaning> meaning = meaning_of(failure.code))
        return verdict_of(*meaning);
    return {.fate = failure.sender_fault ? Fate::refused : Fate::failed};
}

std::string explain(const AwsFailure& failure) {
    std::string_view message = failure.message;
    if (meaning_of(failure.code) == Meaning::signature)
        message = message.substr(0, message.find('\n'));
    std::string text = printable(failure.code);
    if (!message.empty())
        text += (text.empty() ? "" : ": ") + printable(message.substr(0, usual_kept_body));
    return text;
}

EntryAnswer* entry_of(BatchAnswer& answer, std::string_view id) {
    const auto index = parse_integer(id);
    const bool known = index && *index >= 0 && static_cast<std::size_t>(*index) < answer.size();
    return known ? &answer[static_cast<std::size_t>(*index)] : nullptr;
}

}  // namespace outbox
