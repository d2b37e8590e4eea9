// Answers of SQS and SNS, and the verdicts on them.
#include <gmock/gmock.h>

#include "cloud/aws/aws_region.hpp"
#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/json_protocol.hpp"
#include "cloud/aws/sns_protocol.hpp"
#include "cloud/aws/sqs_protocol.hpp"
#include "cloud/aws/xml_element.hpp"
#include "unit/mutations.hpp"

namespace outbox {
namespace {

// ---------------------------------------------------------------------------------------------
// Verdicts
// ---------------------------------------------------------------------------------------------

TEST(AwsVerdict, OfARequestGoesByItsCode) {
    const auto fate = [](const char* code) { return verdict_of_request(400, {code, ""}).fate; };
    for (const char* code :
         {"QueueDoesNotExist", "NonExistentQueue", "AccessDenied", "AccessDeniedException",
          "InvalidClientTokenId", "ExpiredToken", "SignatureDoesNotMatch", "NotFound",
          "AuthorizationError", "NotAuthorized", "KmsDisabled", "KMSAccessDenied", "OptInRequired"})
        EXPECT_EQ(fate(code), Fate::unavailable) << code;
    for (const char* code : {"QueueDoesNotExist", "AccessDenied", "KmsDisabled", "NotFound"})
        EXPECT_EQ(verdict_of_request(400, {code, ""}).scope, Scope::lane) << code;
    for (const char* code : {"ExpiredToken", "OptInRequired"})
        EXPECT_EQ(verdict_of_request(400, {code, ""}).scope, Scope::destination) << code;
    for (const char* code :
         {"RequestThrottled", "ThrottlingException", "Throttled", "ServiceUnavailable",
          "KmsThrottled", "KMSThrottling", "KMSThrottlingException", "KMS.ThrottlingException"})
        EXPECT_EQ(fate(code), Fate::throttled) << code;
    for (const char* code : {"InternalError", "InternalFailure"})
        EXPECT_EQ(fate(code), Fate::failed) << code;
    for (const char* code : {"BatchRequestTooLong", "InvalidMessageContents"}) {
        EXPECT_EQ(fate(code), Fate::refused) << code;
        EXPECT_TRUE(verdict_of_request(400, {code, ""}).permanent) << code;
    }
    EXPECT_EQ(fate("InvalidParameterValue"), Fate::refused);
    EXPECT_FALSE(verdict_of_request(400, {"InvalidParameterValue", ""}).permanent);
}

// An answer about a quota, a key, rights, maintenance or time is not the event's fault: not as the
// answer to a request, nor as the result of an entry, although some of them are called a fault of
// the sender. The codes are those of the services' models, and of the common errors of AWS.
TEST(AwsVerdict, TellsAnOutageFromARefusal) {
    struct Case {
        const char* code;
        Fate fate;
        Scope scope = Scope::destination;
    };
    constexpr Case cases[] = {
        // Quotas, and too much at a time.
        {"Throttling", Fate::throttled},
        {"ThrottlingException", Fate::throttled},
        {"ThrottledException", Fate::throttled},
        {"RequestThrottled", Fate::throttled},
        {"RequestThrottledException", Fate::throttled},
        {"TooManyRequestsException", Fate::throttled},
        {"RequestLimitExceeded", Fate::throttled},
        {"BandwidthLimitExceeded", Fate::throttled},
        {"SlowDown", Fate::throttled},
        {"PriorRequestNotComplete", Fate::throttled},
        {"TransactionInProgressException", Fate::throttled},
        {"LimitExceededException", Fate::throttled},
        {"OverLimit", Fate::throttled},
        {"ProvisionedThroughputExceededException", Fate::throttled},
        {"KmsThrottled", Fate::throttled},
        {"KMSThrottling", Fate::throttled},
        {"KMSThrottlingException", Fate::throttled},
        {"ServiceUnavailable", Fate::throttled},
        {"ServiceUnavailableException", Fate::throttled},
        // The key of a queue, topic or stream.
        {"KmsDisabled", Fate::unavailable, Scope::lane},
        {"KmsInvalidState", Fate::unavailable, Scope::lane},
        {"KmsNotFound", Fate::unavailable, Scope::lane},
        {"KmsOptInRequired", Fate::unavailable, Scope::lane},
        {"KmsAccessDenied", Fate::unavailable, Scope::lane},
        {"KmsInvalidKeyUsage", Fate::unavailable, Scope::lane},
        {"KMSDisabledException", Fate::unavailable, Scope::lane},
        {"KMSInvalidStateException", Fate::unavailable, Scope::lane},
        {"KMSNotFoundException", Fate::unavailable, Scope::lane},
        {"KMSAccessDeniedException", Fate::unavailable, Scope::lane},
        {"KMSOptInRequired", Fate::unavailable, Scope::lane},
        // The queue, topic, stream or bus, and what an account may do with it.
        {"QueueDoesNotExist", Fate::unavailable, Scope::lane},
        {"QueueDeletedRecently", Fate::unavailable, Scope::lane},
        {"UnsupportedOperation", Fate::unavailable, Scope::lane},
        {"InvalidAddress", Fate::unavailable, Scope::lane},
        {"NotFound", Fate::unavailable, Scope::lane},
        {"ResourceNotFoundException", Fate::unavailable, Scope::lane},
        {"ResourceInUseException", Fate::unavailable, Scope::lane},
        {"EndpointDisabled", Fate::unavailable, Scope::lane},
        {"PlatformApplicationDisabled", Fate::unavailable, Scope::lane},
        {"OperationDisabledException", Fate::unavailable, Scope::lane},
        {"AuthorizationError", Fate::unavailable, Scope::lane},
        {"AccessDeniedException", Fate::unavailable, Scope::lane},
        {"InvalidAccountIdException", Fate::unavailable, Scope::lane},
        // The account, the credentials, the clock.
        {"OptInRequired", Fate::unavailable},
        {"SubscriptionRequiredException", Fate::unavailable},
        {"InvalidSecurity", Fate::unavailable},
        {"MissingAuthenticationTokenException", Fate::unavailable},
        {"UnrecognizedClientException", Fate::unavailable},
        {"InvalidClientTokenId", Fate::unavailable},
        {"ExpiredTokenException", Fate::unavailable},
        {"AuthFailure", Fate::unavailable},
        {"RequestExpired", Fate::unavailable},
        {"RequestInTheFuture", Fate::unavailable},
        {"RequestTimeTooSkewed", Fate::unavailable},
        {"InvalidSignatureException", Fate::unavailable},
        {"UnknownOperationException", Fate::unavailable},
        // The service itself, and nobody knows.
        {"InternalError", Fate::failed},
        {"InternalFailure", Fate::failed},
        {"InternalFailureException", Fate::failed},
        {"InternalException", Fate::failed},
        {"RequestTimeoutException", Fate::failed},
        {"RequestAbortedException", Fate::failed},
        // These are about the event.
        {"InvalidMessageContents", Fate::refused},
        {"BatchRequestTooLong", Fate::refused},
        {"RequestEntityTooLargeException", Fate::refused},
        {"InvalidParameterValue", Fate::refused},
        {"ParameterValueInvalid", Fate::refused},
        {"ValidationException", Fate::refused},
        {"InvalidArgumentException", Fate::refused},
        {"InvalidArgument", Fate::refused},
        {"MalformedDetail", Fate::refused},
        {"RedactionFailure", Fate::refused},
        {"NotAuthorizedForSourceException", Fate::refused},
        {"NotAuthorizedForDetailTypeException", Fate::refused},
    };
    for (const Case& expected : cases)
        for (const AwsVerdict& verdict : {verdict_of_request(400, {expected.code, ""}),
                                          verdict_of_entry({expected.code, "", true})}) {
            EXPECT_EQ(verdict.fate, expected.fate) << expected.code;
            EXPECT_EQ(verdict.scope, expected.scope) << expected.code;
        }
}

TEST(AwsVerdict, OfARefusedTopicBlamesNoEvent) {
    const auto verdict = [](const char* message) {
        return verdict_of_request(400, {"InvalidParameter", message});
    };
    for (const char* message :
         {"Invalid parameter: TopicArn", "Invalid parameter: TargetArn Reason: no",
          "Invalid parameter: TopicArn Reason: An ARN must have at least 6 elements"}) {
        EXPECT_EQ(verdict(message).fate, Fate::unavailable) << message;
        EXPECT_EQ(verdict(message).scope, Scope::lane) << message;
    }
    for (const char* message : {"Invalid parameter: Message too long", "", "TopicArn",
                                "Invalid parameter: Message Reason: Invalid parameter: TopicArn"})
        EXPECT_EQ(verdict(message).fate, Fate::refused) << message;
}

TEST(AwsRegion, HasTheNamesOfItsPartition) {
    const auto url = [](const char* region) { return service_url("sns", region); };
    EXPECT_EQ(url("eu-west-1"), "https://sns.eu-west-1.amazonaws.com");
    EXPECT_EQ(url("us-gov-east-1"), "https://sns.us-gov-east-1.amazonaws.com");
    EXPECT_EQ(url("cn-north-1"), "https://sns.cn-north-1.amazonaws.com.cn");
    EXPECT_EQ(url("eusc-de-east-1"), "https://sns.eusc-de-east-1.amazonaws.eu");
    EXPECT_EQ(url("us-iso-east-1"), "https://sns.us-iso-east-1.c2s.ic.gov");
    EXPECT_EQ(url("us-isob-east-1"), "https://sns.us-isob-east-1.sc2s.sgov.gov");
    EXPECT_EQ(url("eu-isoe-west-1"), "https://sns.eu-isoe-west-1.cloud.adc-e.uk");
    EXPECT_EQ(url("us-isof-south-1"), "https://sns.us-isof-south-1.csp.hci.ic.gov");
    EXPECT_EQ(partition_of("eusc-de-east-1").name, "aws-eusc");
    EXPECT_EQ(partition_of("us-east-1").name, "aws");
}

TEST(AwsVerdict, OfAnUnknownCodeFollowsTheHttpStatus) {
    const auto fate = [](int status) { return verdict_of_request(status, {}).fate; };
    EXPECT_EQ(fate(400), Fate::refused);
    EXPECT_EQ(fate(413), Fate::refused);
    for (int status : {204, 301, 401, 403, 404})
        EXPECT_EQ(fate(status), Fate::unavailable) << status;
    for (int status : {429, 503})
        EXPECT_EQ(fate(status), Fate::throttled) << status;
    for (int status : {408, 500, 502, 504})
        EXPECT_EQ(fate(status), Fate::failed) << status;
    EXPECT_EQ(verdict_of_request(400, {"NeverHeardOf", ""}).fate, Fate::refused);
    EXPECT_FALSE(verdict_of_request(400, {"NeverHeardOf", ""}).permanent);
}

TEST(AwsVerdict, OfAnEntryGoesByItsCodeAndThenByWhoseFaultItIs) {
    EXPECT_EQ(verdict_of_entry({"RequestThrottled", "", true}).fate, Fate::throttled);
    EXPECT_EQ(verdict_of_entry({"InternalError", "", false}).fate, Fate::failed);
    EXPECT_TRUE(verdict_of_entry({"InvalidMessageContents", "", true}).permanent);
    EXPECT_EQ(verdict_of_entry({"NeverHeardOf", "", true}).fate, Fate::refused);
    EXPECT_FALSE(verdict_of_entry({"NeverHeardOf", "", true}).permanent);
    EXPECT_EQ(verdict_of_entry({"NeverHeardOf", "", false}).fate, Fate::failed);
}

TEST(AwsVerdict, KnowsWhenOtherCredentialsMayDo) {
    for (const char* code : {"ExpiredToken", "ExpiredTokenException", "InvalidClientTokenId",
                             "UnrecognizedClientException", "SignatureDoesNotMatch"})
        EXPECT_TRUE(verdict_of_request(403, {code, ""}).bad_credentials) << code;
    for (const char* code : {"AccessDenied", "QueueDoesNotExist", "RequestThrottled"})
        EXPECT_FALSE(verdict_of_request(403, {code, ""}).bad_credentials) << code;
}

TEST(AwsFailure, IsExplainedInOneLineWithoutSecrets) {
    EXPECT_EQ(explain({"QueueDoesNotExist", "The queue\ndoes not exist.", true}),
              "QueueDoesNotExist: The queue does not exist.");
    EXPECT_EQ(explain({"AccessDenied", "", true}), "AccessDenied");
    EXPECT_EQ(explain({"InvalidSignatureException",
                       "It does not match.\n\nIt should have been\nx-amz-security-token:abc"}),
              "InvalidSignatureException: It does not match.");
    EXPECT_LT(explain({"AccessDenied", std::string(5'000, 'x')}).size(), 300u);
}

// ---------------------------------------------------------------------------------------------
// SQS
// ---------------------------------------------------------------------------------------------

constexpr const char* sqs_answer =
    R"({"Successful":[{"Id":"1","MessageId":"m1","MD5OfMessageBody":"x"}],
        "Failed":[{"Id":"0","Code":"AWS.SimpleQueueService.InternalError","SenderFault":false,
                   "Message":"later"}]})";

TEST(SqsAnswer, HasAResultForEachEntry) {
    const auto answer = parse_sqs_answer(sqs_answer, 3);
    ASSERT_TRUE(answer);
    EXPECT_EQ((*answer)[0].state, EntryAnswer::State::failed);
    EXPECT_EQ((*answer)[0].failure.code, "InternalError");
    EXPECT_EQ((*answer)[0].failure.message, "later");
    EXPECT_FALSE((*answer)[0].failure.sender_fault);
    EXPECT_EQ((*answer)[1].state, EntryAnswer::State::taken);
    EXPECT_EQ((*answer)[1].message_id, "m1");
    EXPECT_EQ((*answer)[2].state, EntryAnswer::State::missing);
}

TEST(SqsAnswer, MalformedAnswersAreRefused) {
    for (const char* text : {"", "[]", "null", "{", "<x/>", "{\"Successful\":[}"})
        EXPECT_FALSE(parse_sqs_answer(text, 1)) << text;
    for (const char* text : {"{}", R"({"Successful":{}})",
                             R"({"Successful":["0",null,{"Id":0},{"Id":"-1"},)"
                             R"({"Id":"1"},{"Id":"99999999999999999999"}]})"}) {
        const auto answer = parse_sqs_answer(text, 1);
        ASSERT_TRUE(answer) << text;
        EXPECT_EQ(answer->front().state, EntryAnswer::State::missing) << text;
    }
    EXPECT_FALSE(parse_sqs_answer(std::string(100'000, '['), 1));
}

TEST(SqsAnswer, FailuresAreNamed) {
    const AwsFailure failure =
        parse_json_failure(R"({"__type":"com.amazonaws.sqs#QueueDoesNotExist","message":"no"})");
    EXPECT_EQ(failure.code, "QueueDoesNotExist");
    EXPECT_EQ(failure.message, "no");
    EXPECT_EQ(parse_json_failure(R"({"__type":"ExpiredToken","Message":"no"})").message, "no");
    EXPECT_EQ(parse_json_failure("<html>").code, "");
}

TEST(SqsAnswer, HasTheUrlOfAQueue) {
    EXPECT_EQ(parse_sqs_queue_url(R"({"QueueUrl":"http://h/1/q"})"), "http://h/1/q");
    for (const char* text : {"", "{}", R"({"QueueUrl":7})", "[]"})
        EXPECT_EQ(parse_sqs_queue_url(text), "") << text;
}

// ---------------------------------------------------------------------------------------------
// SNS
// ---------------------------------------------------------------------------------------------

constexpr const char* sns_answer = R"(<?xml version="1.0"?>
<PublishBatchResponse xmlns="http://sns.amazonaws.com/doc/2010-03-31/">
  <!-- a comment -->
  <PublishBatchResult>
    <Failed>
      <member><Id>0</Id><Code>InternalError</Code><SenderFault>false</SenderFault>
              <Message>a &lt;b&gt; &#x41;&amp;</Message></member>
    </Failed>
    <Successful><member><MessageId>m1</MessageId><Id>1</Id></member></Successful>
  </PublishBatchResult>
  <ResponseMetadata><RequestId>r</RequestId></ResponseMetadata>
</PublishBatchResponse>)";

TEST(SnsAnswer, HasAResultForEachEntry) {
    const auto answer = parse_sns_answer(sns_answer, 3);
    ASSERT_TRUE(answer);
    EXPECT_EQ((*answer)[0].state, EntryAnswer::State::failed);
    EXPECT_EQ((*answer)[0].failure.code, "InternalError");
    EXPECT_EQ((*answer)[0].failure.message, "a <b> A&");
    EXPECT_FALSE((*answer)[0].failure.sender_fault);
    EXPECT_EQ((*answer)[1].state, EntryAnswer::State::taken);
    EXPECT_EQ((*answer)[1].message_id, "m1");
    EXPECT_EQ((*answer)[2].state, EntryAnswer::State::missing);
}

TEST(SnsAnswer, MalformedAnswersAreRefused) {
    for (const char* text : {"", "{}", "<PublishBatchResponse>", "<Other/>",
                             "<PublishBatchResponse/><PublishBatchResponse/>"})
        EXPECT_FALSE(parse_sns_answer(text, 1)) << text;
    const auto answer = parse_sns_answer("<PublishBatchResponse/>", 1);
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->front().state, EntryAnswer::State::missing);
}

TEST(SnsAnswer, FailuresAreNamed) {
    const AwsFailure failure = parse_query_failure(
        "<ErrorResponse><Error><Type>Sender</Type><Code>NotFound</Code><Message>no topic</Message>"
        "</Error><RequestId>r</RequestId></ErrorResponse>");
    EXPECT_EQ(failure.code, "NotFound");
    EXPECT_EQ(failure.message, "no topic");
    EXPECT_TRUE(failure.sender_fault);
    EXPECT_EQ(parse_query_failure("{}").code, "");
}

// ---------------------------------------------------------------------------------------------
// XML
// ---------------------------------------------------------------------------------------------

TEST(Xml, IsReadAsWritten) {
    const auto root =
        parse_xml("<a x='>' y=\"/>\"> one <b/>two<![CDATA[<&]]><c>&#228;&#x1d11e;&quot;</c ></a >");
    ASSERT_TRUE(root);
    EXPECT_EQ(root->name, "a");
    EXPECT_EQ(root->text, " one two<&");
    EXPECT_EQ(root->child("c").text, "ä𝄞\"");
    EXPECT_EQ(root->child("b").text, "");
    EXPECT_EQ(root->child("d").child("e").text, "");
}

TEST(Xml, MalformedDocumentsAreRefused) {
    for (const char* text : {"",
                             " ",
                             "a",
                             "<",
                             "<a",
                             "<a>",
                             "<a/",
                             "</a>",
                             "<a></b>",
                             "<a></a",
                             "<a/>x",
                             "<a/><b/>",
                             "<a x='></a>",
                             "<a>&unknown;</a>",
                             "<a>&amp</a>",
                             "<a>&#0;</a>",
                             "<a>&#xd800;</a>",
                             "<a>&#x110000;</a>",
                             "<a>&#99999999999;</a>",
                             "<a>&#;</a>",
                             "<a>&#x;</a>",
                             "<a><!-- </a>",
                             "<a><![CDATA[ </a>",
                             "<?xml",
                             "<!DOCTYPE a [<!ENTITY b 'c'>]><a>&b;</a>",
                             "<a><!DOCTYPE b></a>",
                             "< a/>"})
        EXPECT_FALSE(parse_xml(text)) << text;
}

TEST(Xml, ItsDepthIsBounded) {
    const auto nested = [](int depth) {
        std::string text;
        for (int i = 0; i < depth; i++)
            text += "<a>";
        for (int i = 0; i < depth; i++)
            text += "</a>";
        return text;
    };
    EXPECT_TRUE(parse_xml(nested(16)));
    EXPECT_FALSE(parse_xml(nested(17)));
    EXPECT_FALSE(parse_xml(nested(100'000)));
}

// ---------------------------------------------------------------------------------------------
// Random input
// ---------------------------------------------------------------------------------------------

TEST(RandomAnswer, ChangesOnlyTheEntriesThatItNames) {
    Mutations json({sqs_answer, R"({"__type":"com.amazonaws.sqs#X","message":"y"})"},
                   "{}[]\",:\\0u\xff");
    Mutations xml({sns_answer, "<ErrorResponse><Error><Code>X</Code></Error></ErrorResponse>"},
                  "<>/&;#!\"'=[]-x\xff");
    int taken = 0;
    const auto check = [&](const std::optional<BatchAnswer>& answer) {
        if (!answer)
            return;
        ASSERT_EQ(answer->size(), 3u);
        for (const EntryAnswer& entry : *answer)
            taken += entry.state == EntryAnswer::State::taken;
    };
    for (int i = 0; i < 20'000; i++) {
        const std::string a = json.next(), b = xml.next();
        check(parse_sqs_answer(a, 3));
        explain(parse_json_failure(a));
        parse_sqs_queue_url(a);
        check(parse_sns_answer(b, 3));
        explain(parse_query_failure(b));
    }
    EXPECT_GT(taken, 1'000);
}

}  // namespace
}  // namespace outbox
