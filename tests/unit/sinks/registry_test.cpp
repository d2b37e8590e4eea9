#include "sinks/registry.hpp"
#include "sinks/redis/options.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "sinks/aws/options.hpp"
#include "sinks/http/endpoint_options.hpp"
#include "sinks/http/options.hpp"
#include "sinks/kafka/options.hpp"
#include "sinks/postgresql/options.hpp"
#include "sinks/pubsub/options.hpp"

namespace outbox {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using Options = std::vector<Option>;

const DestinationDefaults defaults{.connect_timeout = seconds(7),
                                   .request_timeout = seconds(8),
                                   .user = "relay",
                                   .local_host = "/run/postgresql",
                                   .local_port = "5433",
                                   .allowed_hosts = "db.example.com"};

Result<Destination> parse(const Options& server, const Options& mapping = {}) {
    return parse_destination("bus", server, mapping, defaults);
}

Destination destination(const Options& server, const Options& mapping = {}) {
    Result<Destination> result = parse(server, mapping);
    EXPECT_TRUE(result) << result.error().message;
    return result ? result.value() : Destination{};
}

std::string text_of(const Error& error) {
    return error.message + '\n' + error.detail + '\n' + error.hint;
}

// ---------------------------------------------------------------------------------------------
// Accepted options
// ---------------------------------------------------------------------------------------------

TEST(Destination, OfSchemeNullNeedsNothingElse) {
    const Destination d = destination({{"url", "null:"}});
    EXPECT_EQ(d.name, "bus");
    EXPECT_EQ(d.sink->name, "null");
    EXPECT_TRUE(d.topics.matches_everything());
}

TEST(Destination, FallsBackToTheDefaultsOfTheServer) {
    const Destination d = destination({{"url", "postgresql:///catalog"}});
    EXPECT_FALSE(d.receipts);
    EXPECT_TRUE(d.allowed_hosts.allows_unreserved("db.example.com", Address()));
    const PostgresqlOptions o = postgresql_options(d);
    EXPECT_EQ(o.limits.connect, seconds(7));
    EXPECT_EQ(o.limits.request, seconds(8));
    EXPECT_EQ(o.role, "relay");
    EXPECT_EQ(o.host, "/run/postgresql");
    EXPECT_EQ(o.port, "5433");
    EXPECT_EQ(o.batch_size, 1'000u);
}

TEST(Destination, OfSchemeHttpTakesItsOptions) {
    const Destination d = destination({{"topics", "video.*"},
                                       {"format", "batched"},
                                       {"batch_size", "50"},
                                       {"max_connections", "4"},
                                       {"connect_timeout", "500ms"},
                                       {"request_timeout", "2min"},
                                       {"ca_file", "/etc/ca.pem"},
                                       {"start", "end"},
                                       {"receipts", "on"},
                                       {"url", "https://example.com/events?a=1"}},
                                      {{"user", "alice"}, {"password", "pw"}, {"token", "t"}});
    EXPECT_EQ(d.sink->name, "http");
    EXPECT_EQ(d.url.host, "example.com");
    EXPECT_TRUE(d.topics.matches("video.events"));
    EXPECT_FALSE(d.topics.matches("user.events"));
    EXPECT_TRUE(d.receipts);
    const HttpOptions o = http_options(d);
    EXPECT_EQ(o.url, "https://example.com/events?a=1");
    EXPECT_EQ(o.format, EventFormat::batched);
    EXPECT_EQ(o.batch_size, 50u);
    EXPECT_EQ(o.transport.max_connections, 4u);
    EXPECT_EQ(o.transport.more_connections, 0u);
    EXPECT_EQ(o.transport.connect_timeout, milliseconds(500));
    EXPECT_EQ(o.transport.request_timeout, seconds(120));
    EXPECT_EQ(o.transport.ca_file, "/etc/ca.pem");
    EXPECT_EQ(o.user, "alice");
    EXPECT_EQ(o.password, "pw");
    EXPECT_EQ(o.token, "t");
}

TEST(Destination, UsesMoreConnectionsUnlessTheirNumberIsGiven) {
    const TransportOptions o = http_options(destination({{"url", "http://h/"}})).transport;
    EXPECT_EQ(o.max_connections, 16u);
    EXPECT_EQ(o.more_connections, 48u);
}

TEST(Destination, OfSchemeEndpointsTakesItsOptions) {
    const Destination d = destination(
        {{"url", "endpoints:"},
         {"topics", "order"},
         {"format", "structured"},
         {"on_gone", "retry"},
         {"requests_per_endpoint", "2"},
         {"max_connections", "50"},
         {"retry_base", "2s"},
         {"retry_max", "1min"}},
        {{"signing_secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, {"headers", "a: b"}});
    EXPECT_EQ(d.sink->name, "endpoints");
    EXPECT_TRUE(d.sink->ordered);
    const EndpointOptions o = endpoint_options(d);
    EXPECT_EQ(o.format, EventFormat::structured);
    EXPECT_FALSE(o.pauses_if_gone);
    EXPECT_EQ(o.requests_per_endpoint, 2u);
    EXPECT_EQ(o.transport.max_connections, 50u);
    EXPECT_EQ(o.transport.more_connections, 50u);
    EXPECT_EQ(o.retry_base, seconds(2));
    EXPECT_EQ(o.retry_max, seconds(60));
    EXPECT_EQ(o.headers, "a: b");
    EXPECT_EQ(o.master_secrets,
              (std::array<std::string, 2>{"whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", ""}));
    const EndpointOptions defaults = endpoint_options(destination({{"url", "endpoints:"}}));
    EXPECT_TRUE(defaults.pauses_if_gone);
    EXPECT_EQ(defaults.requests_per_endpoint, 4u);
    EXPECT_EQ(defaults.transport.max_connections, 200u);
}

TEST(Destination, OfSchemePostgresqlTakesItsOptions) {
    const Destination d = destination(
        {{"url", "postgresql://alice@db.example.com:5434/c%41talog?sslmode=verify-full"},
         {"consumer", "catalog"},
         {"batch_size", "10000"}},
        {{"password", "pw"}, {"sslcert", "c.pem"}, {"sslkey", "k.pem"}});
    EXPECT_EQ(d.sink->name, "postgresql");
    const PostgresqlOptions o = postgresql_options(d);
    EXPECT_EQ(o.role, "alice");
    EXPECT_EQ(o.host, "db.example.com");
    EXPECT_EQ(o.port, "5434");
    EXPECT_EQ(o.database, "cAtalog");
    EXPECT_EQ(o.consumer, "catalog");
    EXPECT_EQ(o.batch_size, 10'000u);
    EXPECT_EQ(o.password, "pw");
    EXPECT_EQ(o.parameters,
              (std::vector<std::pair<std::string, std::string>>{{"sslmode", "verify-full"}}));
    EXPECT_THAT(o.files(), testing::ElementsAre("c.pem", "k.pem"));
    EXPECT_EQ(
        postgresql_options(destination({{"url", "postgresql://alice@h/db"}}, {{"user", "bob"}}))
            .role,
        "bob");
}

TEST(Destination, OfSchemePostgresqlTakesHostAndPortAsParameters) {
    const PostgresqlOptions o = postgresql_options(destination(
        {{"url", "postgresql:///db?host=/tmp&port=1&sslrootcert=system&sslcrl=crl.pem"}}));
    EXPECT_EQ(o.host, "/tmp");
    EXPECT_EQ(o.port, "1");
    EXPECT_THAT(o.files(), testing::ElementsAre("crl.pem"));
    EXPECT_EQ(postgresql_options(destination({{"url", "postgresql:///db?host=h"}})).port, "5432");
}

TEST(Destination, SchemesHaveTheirSinks) {
    const auto sink_of = [](const Options& options) { return destination(options).sink->name; };
    EXPECT_EQ(sink_of({{"url", "http://h/"}}), "http");
    EXPECT_EQ(sink_of({{"url", "HTTPS://h/"}}), "http");
    EXPECT_EQ(sink_of({{"url", "postgres://h/db"}}), "postgresql");
    EXPECT_EQ(sink_of({{"url", "null:"}}), "null");
    EXPECT_EQ(sink_of({{"url", "pull:"}, {"lanes", "1024"}}), "pull");
    EXPECT_TRUE(sink_of_url("pull:")->is_fetched());
    EXPECT_FALSE(sink_of_url("null:")->is_fetched());
    EXPECT_EQ(sink_of_url(""), nullptr);
}

TEST(Destination, FormatsHaveTheirNames) {
    const auto format_of = [](const Options& options) {
        return http_options(destination(options)).format;
    };
    const Option url{"url", "http://h/"};
    EXPECT_EQ(format_of({url}), EventFormat::binary);
    EXPECT_EQ(format_of({url, {"format", "binary"}}), EventFormat::binary);
    EXPECT_EQ(format_of({url, {"format", "structured"}}), EventFormat::structured);
    EXPECT_EQ(pubsub_options(destination({{"url", "pubsub://p"}, {"format", "binary"}})).format,
              EventFormat::binary);
}

TEST(Destination, AMessageOfAwsHasTooFewAttributesForACloudEvent) {
    for (const char* url : {"sqs://eu-west-1", "sns://eu-west-1/123456789012"}) {
        EXPECT_EQ(aws_sink_options(destination({{"url", url}})).format, EventFormat::attributes);
        EXPECT_EQ(aws_sink_options(destination({{"url", url}, {"format", "structured"}})).format,
                  EventFormat::structured);
        for (const char* format : {"binary", "batched", "nonsense"}) {
            const Result<Destination> parsed = parse({{"url", url}, {"format", format}});
            ASSERT_FALSE(parsed) << format;
            EXPECT_EQ(parsed.error().hint, "Write \"attributes\" or \"structured\".");
        }
    }
}

TEST(Destination, OfPubsubHasAProjectAndPerhapsARegion) {
    const PubsubOptions plain = pubsub_options(destination({{"url", "pubsub://my-project"}}));
    EXPECT_EQ(plain.project, "my-project");
    EXPECT_EQ(plain.service_url, "https://pubsub.googleapis.com");
    EXPECT_FALSE(plain.emulated || plain.create_topics);
    EXPECT_EQ(plain.format, EventFormat::attributes);
    EXPECT_TRUE(plain.topic.needs_only_topic());
    EXPECT_EQ(pubsub_options(destination({{"url", "pubsub://p?region=europe-west1"}})).service_url,
              "https://europe-west1-pubsub.googleapis.com");

    const PubsubOptions other = pubsub_options(
        destination({{"url", "pubsub://p?region=europe-west1&endpoint=https://x.example.com"},
                     {"create_topics", "on"},
                     {"topic", "{database}.{topic}"}},
                    {{"key", "{\n}"}}));
    EXPECT_EQ(other.service_url, "https://x.example.com");
    EXPECT_TRUE(other.create_topics);
    EXPECT_EQ(other.google.key, "{\n}");
}

TEST(Destination, OfKafkaHasBrokersToBeginWith) {
    const KafkaOptions plain = kafka_options(destination({{"url", "kafka://b"}}));
    EXPECT_EQ(plain.brokers, "b:9092");
    EXPECT_FALSE(plain.tls);
    EXPECT_EQ(plain.partitioner, "murmur2_random");
    EXPECT_EQ(plain.compression, "") << "the best there is";
    EXPECT_EQ(plain.max_request_size, 1'000'000u);
    EXPECT_FALSE(plain.has_time_of_event) << "brokers delete old records";
    const KafkaOptions other = kafka_options(
        destination({{"url", "kafkas://b1:9093,[::1]:9094,b3/"}, {"sasl_mechanism", "PLAIN"}},
                    {{"user", "u"}, {"password", "p"}}));
    EXPECT_EQ(other.brokers, "b1:9093,[::1]:9094,b3:9092");
    EXPECT_TRUE(other.tls);
    EXPECT_EQ(other.login.mechanism + other.login.user + other.login.password, "PLAINup");
}

TEST(Destination, OfRedisHasHostsToBeginWith) {
    const RedisOptions plain = redis_options(destination({{"url", "redis://r"}}));
    EXPECT_EQ(plain.hosts, (std::vector<std::pair<std::string, std::string>>{{"r", "6379"}}));
    EXPECT_FALSE(plain.tls);
    EXPECT_EQ(plain.database, 0u);
    EXPECT_EQ(plain.min_replicas, 0u);
    EXPECT_EQ(plain.max_length, 0u);
    EXPECT_TRUE(plain.ids_of_positions);
    const RedisOptions other =
        redis_options(destination({{"url", "rediss://a:1,[::1],b/7"}, {"sentinel", "m"}}));
    EXPECT_EQ(other.hosts, (std::vector<std::pair<std::string, std::string>>{
                               {"a", "1"}, {"::1", "26379"}, {"b", "26379"}}));
    EXPECT_TRUE(other.tls);
    EXPECT_EQ(other.database, 7u);
    EXPECT_EQ(other.sentinel, "m");
}

TEST(Destination, OfKafkaMayLogInWithTokens) {
    const KafkaLogin oauth =
        kafka_options(
            destination({{"url", "kafkas://b"},
                         {"sasl_mechanism", "OAUTHBEARER"},
                         {"token_endpoint", "https://id.example.com/token"},
                         {"client_id", "relay"},
                         {"scope", "write"},
                         {"token_extensions", "logicalCluster=lkc-1, identityPoolId=p=2"}},
                        {{"client_secret", "s"}}))
            .login;
    EXPECT_TRUE(oauth.uses_token());
    EXPECT_EQ(oauth.token_endpoint + oauth.client_id + oauth.client_secret + oauth.scope,
              "https://id.example.com/tokenrelayswrite");
    EXPECT_EQ(oauth.token_extensions,
              (std::vector<std::string>{"logicalCluster", "lkc-1", "identityPoolId", "p=2"}));
    const auto region_of = [](const std::string& url, Options options) {
        options.insert(options.end(), {{"url", url}, {"sasl_mechanism", "AWS_MSK_IAM"}});
        return kafka_options(destination(options)).login.aws.region;
    };
    EXPECT_EQ(region_of("kafkas://b-1.demo.abc.c2.kafka.eu-west-1.amazonaws.com:9098,b-2", {}),
              "eu-west-1");
    EXPECT_EQ(region_of("kafkas://boot-1.c1.kafka-serverless.us-east-1.amazonaws.com", {}),
              "us-east-1");
    EXPECT_EQ(region_of("kafkas://b-1.kafka.cn-north-1.amazonaws.com.cn", {}), "cn-north-1");
    EXPECT_EQ(region_of("kafkas://b-1.kafka.eu-west-1.amazonaws.com", {{"region", "eu-west-2"}}),
              "eu-west-2");
}

TEST(Destination, OfKafkaSaysHowRecordsLook) {
    const RecordForm form = kafka_options(destination({{"url", "kafka://b"},
                                                       {"headers", "event_id:id, version"},
                                                       {"json_key", "on"},
                                                       {"json_payload", "string"}}))
                                .form;
    ASSERT_EQ(form.headers.size(), 2u);
    EXPECT_EQ(form.headers[0].name, "id");
    EXPECT_EQ(form.headers[1].attribute, PlainAttribute::version);
    EXPECT_TRUE(form.json_key);
    EXPECT_EQ(form.json_payload, JsonPayload::string);
}

TEST(Destination, AnEmulatorGoesByItsHost) {
    const PubsubOptions o = pubsub_options(destination(
        {{"url", "pubsub://p?endpoint=http://x"}, {"emulator_host", "127.0.0.1:8085"}}));
    EXPECT_TRUE(o.emulated);
    EXPECT_EQ(o.service_url, "http://127.0.0.1:8085");
}

TEST(Destination, OfAwsHasARegionAndAnAccount) {
    const AwsSinkOptions queue = aws_sink_options(
        destination({{"url", "sqs://eu-west-1"}, {"queue", "{topic}.fifo"}},
                    {{"access_key_id", "A"}, {"secret_access_key", "S"}, {"session_token", "T"}}));
    EXPECT_EQ(queue.kind, AwsKind::sqs);
    EXPECT_EQ(queue.aws.region, "eu-west-1");
    EXPECT_EQ(queue.aws.account, "");
    EXPECT_TRUE(queue.target.ends_with(".fifo"));
    EXPECT_EQ(queue.aws.access_key_id + queue.aws.secret_access_key + queue.aws.session_token,
              "AST");
    EXPECT_EQ(queue.aws.needs_credentials_because, "");
    const AwsSinkOptions topic = aws_sink_options(
        destination({{"url", "sns://cn-north-1/123456789012?endpoint=http://h:1/"}}));
    EXPECT_EQ(topic.kind, AwsKind::sns);
    EXPECT_EQ(topic.aws.account, "123456789012");
    EXPECT_EQ(topic.aws.endpoint, "http://h:1/");
    const AwsSinkOptions stream = aws_sink_options(
        destination({{"url", "kinesis://eu-west-1"}, {"max_record_size", "2048"}}));
    EXPECT_EQ(stream.kind, AwsKind::kinesis);
    EXPECT_EQ(stream.batch_size, 500u);
    EXPECT_EQ(stream.max_record, 2u * 1024 * 1024);
    EXPECT_EQ(stream.format, EventFormat::structured);
    const AwsSinkOptions bus =
        aws_sink_options(destination({{"url", "eventbridge://eu-west-1"}, {"format", "payload"}}));
    EXPECT_EQ(bus.kind, AwsKind::eventbridge);
    EXPECT_EQ(bus.batch_size, 10u);
    EXPECT_EQ(bus.format, EventFormat::payload);
    EXPECT_TRUE(bus.target.is_constant());
    EXPECT_TRUE(bus.verify_bus);
}

TEST(Destination, ABatchOfOneNeedsNoBatchedFormat) {
    EXPECT_EQ(http_options(destination({{"url", "http://h/"}, {"batch_size", "1"}})).batch_size,
              1u);
}

// ---------------------------------------------------------------------------------------------
// Declarations
// ---------------------------------------------------------------------------------------------

// Declarations are shown in databases of any encoding.
bool is_ascii(std::string_view text) {
    return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c < 0x7f; });
}

TEST(Declarations, AreComplete) {
    std::set<std::string_view> schemes, names;
    for (const SinkDeclaration* sink : all_sinks()) {
        SCOPED_TRACE(sink->name);
        EXPECT_TRUE(names.insert(sink->name).second);
        for (std::string_view scheme : sink->schemes)
            EXPECT_TRUE(schemes.insert(scheme).second) << scheme;
        EXPECT_FALSE(sink->url.empty() || sink->title.empty() || sink->order.empty() ||
                     sink->check.empty());
        EXPECT_TRUE(is_ascii(sink->url) && is_ascii(sink->name) && is_ascii(sink->check));
        EXPECT_NE(sink->check_url, nullptr);
        EXPECT_FALSE(!sink->module.empty() && sink->create != nullptr);
        EXPECT_TRUE(sink->target == nullptr || sink->lanes);
    }
}

std::vector<const OptionSpec*> options_of(const SinkDeclaration& sink) {
    std::vector<const OptionSpec*> all;
    for (const OptionSpec& spec : common_options)
        all.push_back(&spec);
    for (const OptionSpec& spec : sink.options)
        all.push_back(&spec);
    return all;
}

TEST(Declarations, OfOptionsSayWhatTheyAreAndHaveValidDefaults) {
    for (const SinkDeclaration* sink : all_sinks()) {
        std::set<std::string_view> names;
        for (const OptionSpec* spec : options_of(*sink)) {
            SCOPED_TRACE(std::string(sink->name) + " " + std::string(spec->name));
            EXPECT_TRUE(names.insert(spec->name).second) << "twice";
            EXPECT_NE(spec->description, "");
            EXPECT_TRUE(is_ascii(spec->description) && is_ascii(spec->range));
            EXPECT_NE(spec->place, OptionPlace::url);
            EXPECT_TRUE(!spec->secret || spec->place == OptionPlace::user_mapping);
            if (!spec->default_value.empty() && !spec->default_value.starts_with("outbox.")) {
                EXPECT_EQ(check_value(*spec, spec->default_value), std::nullopt);
            }
        }
        for (const OptionSpec& spec : sink->parameters)
            EXPECT_EQ(spec.place, OptionPlace::url) << spec.name;
    }
}

TEST(Declarations, SayWhichOptionsNameFilesOfTheServer) {
    for (const char* option : {"sslcert", "sslkey", "key_file", "profile"})
        EXPECT_TRUE(names_server_keys(option)) << option;
    for (const char* option : {"ca_file", "password", "key", ""})
        EXPECT_FALSE(names_server_keys(option)) << option;
    EXPECT_EQ(file_option(destination({{"url", "https://h/"}, {"ca_file", "a"}})), "ca_file");
    EXPECT_EQ(file_option(destination({{"url", "postgresql:///d?sslcrl=a"}})), "sslcrl");
    EXPECT_EQ(file_option(destination({{"url", "postgresql:///d?sslrootcert=system"}})), "");
    EXPECT_EQ(file_option(destination({{"url", "null:"}})), "");
}

TEST(DestinationValidation, AgreesWithParsing) {
    EXPECT_EQ(validate_server_options({{"url", "http://h/"}, {"format", "batched"}}), std::nullopt);
    EXPECT_EQ(validate_mapping_options({{"user", "alice"}, {"password", "pw"}}), std::nullopt);
    EXPECT_EQ(validate_mapping_options({}), std::nullopt);
    EXPECT_EQ(validate_no_options({}), std::nullopt);
}

TEST(DestinationValidation, AMappingIsCheckedWithoutTheSinkOfItsServer) {
    const Options token{{"token", "t"}};
    EXPECT_EQ(validate_mapping_options(token), std::nullopt);
    EXPECT_FALSE(parse({{"url", "postgresql:///db"}}, token)) << "only the whole shows the mistake";
}

// ---------------------------------------------------------------------------------------------
// Refused options: each case has a part of the message, and of the detail or hint
// ---------------------------------------------------------------------------------------------

struct Refused {
    const char* name;
    Options server;
    Options mapping;
    ErrorKind kind;
    const char* message;
    const char* advice;
    bool only_together = false;  // the options of each catalog are valid without those of the other
};

void PrintTo(const Refused& refused, std::ostream* out) {
    *out << refused.name;
}

class Refusal : public testing::TestWithParam<Refused> {};

constexpr ErrorKind option = ErrorKind::invalid_option;
constexpr ErrorKind value = ErrorKind::invalid_value;

const Option http_url{"url", "http://host/"};
const Option pg_url{"url", "postgresql:///db"};
const Option null_url{"url", "null:"};

const Refused refusals[] = {
    // The URL.
    {"NoUrl", {{"topics", "*"}}, {}, option, "\"url\" is required", "OPTIONS (url"},
    {"NoScheme", {{"url", "example.com"}}, {}, value, "invalid URL", "scheme"},
    {"BadPort", {{"url", "http://h:99999/"}}, {}, value, "invalid URL: its port", "1 to 65535"},
    {"UnknownScheme",
     {{"url", "ftp://h/"}},
     {},
     value,
     "\"ftp\" is not supported",
     "Supported schemes are: null, http, https, postgresql, postgres, kafka, kafkas, amqp, amqps, "
     "nats, tls, redis, rediss, mqtt, mqtts, pubsub, sqs, sns, kinesis, eventbridge, pull, "
     "endpoints."},
    {"EndpointsWithMore",
     {{"url", "endpoints://h/"}},
     {},
     value,
     "\"endpoints:\", and nothing else",
     "outbox.endpoint"},
    {"EndpointsWithFilter",
     {{"url", "endpoints:"}, {"filter", "true"}},
     {},
     option,
     "\"filter\" is not valid for a destination with endpoints",
     "topics"},
    {"EndpointsBatched",
     {{"url", "endpoints:"}, {"format", "batched"}},
     {},
     value,
     "\"format\"",
     "\"binary\" or \"structured\""},
    {"EndpointsWithToken",
     {{"url", "endpoints:"}},
     {{"token", "t"}},
     option,
     "invalid option \"token\"",
     "signing_secret",
     true},
    {"MqttWithoutBroker", {{"url", "mqtt://"}}, {}, value, "no broker", "mqtts://broker"},
    {"MqttHost", {{"url", "mqtt://a%20b"}}, {}, value, "not a host name", "mqtts://broker"},
    {"MqttWithUser", {{"url", "mqtt://u@a"}}, {}, value, "a user", "CREATE USER MAPPING"},
    {"MqttWithTopic", {{"url", "mqtt://a/t"}}, {}, value, "follow the broker", "\"topic\""},
    {"MqttWildcard",
     {{"url", "mqtt://a"}, {"topic", "{topic}/#"}},
     {},
     value,
     "\"+\" or \"#\"",
     "wildcards"},
    {"MqttQos0", {{"url", "mqtt://a"}, {"qos", "0"}}, {}, value, "\"qos\"", "\"1\" or \"2\""},
    {"RedisWithoutHost", {{"url", "redis://"}}, {}, value, "no host", "redis://redis"},
    {"RabbitmqHost", {{"url", "amqp://a%40b"}}, {}, value, "not a host name", "amqp://broker"},
    {"RedisHost", {{"url", "redis://a,b%20c"}}, {}, value, "not a host name", "redis://redis"},
    {"RedisWithEmptyHost", {{"url", "redis://a,,b"}}, {}, value, "no host", "redis://redis"},
    {"RedisWithUser", {{"url", "redis://u@a"}}, {}, value, "a user", "CREATE USER MAPPING"},
    {"RedisWithStream", {{"url", "redis://a/s"}}, {}, value, "number of a database", "\"stream\""},
    {"RedisWithPath", {{"url", "redis://a/1/2"}}, {}, value, "number of a database", "\"stream\""},
    {"RedisWithQuery",
     {{"url", "redis://a/1?x=y"}},
     {},
     value,
     "number of a database",
     "\"stream\""},
    {"KafkaWithoutBroker", {{"url", "kafka://"}}, {}, value, "no broker", "kafka://broker1"},
    {"KafkaWithEmptyBroker", {{"url", "kafka://a,,b"}}, {}, value, "no broker", "kafka://broker1"},
    {"KafkaWithComma", {{"url", "kafka://a%2cb"}}, {}, value, "no broker", "kafka://broker1"},
    {"KafkaWithUser", {{"url", "kafka://u@a"}}, {}, value, "a user", "CREATE USER MAPPING"},
    {"KafkaWithTopic", {{"url", "kafka://a/t"}}, {}, value, "follow the brokers", "\"topic\""},
    {"KafkaTokenWithoutEndpoint",
     {{"url", "kafka://a"}, {"sasl_mechanism", "OAUTHBEARER"}, {"client_id", "c"}},
     {},
     value,
     "option \"token_endpoint\" is required",
     "client_secret"},
    {"KafkaTokenOverHttp",
     {{"url", "kafka://a"}, {"token_endpoint", "http://h/"}},
     {},
     value,
     "\"token_endpoint\"",
     "https"},
    {"KafkaTokenWithoutMechanism",
     {{"url", "kafka://a"}, {"sasl_mechanism", "PLAIN"}, {"scope", "s"}},
     {},
     value,
     "option \"scope\" has no effect here",
     "OAUTHBEARER"},
    {"KafkaTokenExtension",
     {{"url", "kafka://a"}, {"token_extensions", "auth=x"}},
     {},
     value,
     "\"token_extensions\"",
     "logicalCluster"},
    {"KafkaKeysWithoutRegion",
     {{"url", "kafka://a"}, {"sasl_mechanism", "AWS_MSK_IAM"}},
     {},
     value,
     "option \"region\" is required",
     "first broker"},
    {"KafkaRegionWithoutKeys",
     {{"url", "kafka://a"}, {"region", "eu-west-1"}},
     {},
     value,
     "option \"region\" has no effect here",
     "AWS_MSK_IAM"},
    {"KafkaSchemaRegistry",
     {{"url", "kafka://a"}, {"schema_registry", "https://u@h"}},
     {},
     value,
     "\"schema_registry\"",
     "registry_user"},
    {"KafkaSubjectWithoutRegistry",
     {{"url", "kafka://a"}, {"schema_subject", "s"}},
     {},
     value,
     "option \"schema_subject\" has no effect here",
     "schema_registry"},
    {"KafkaIndexWithoutProtobuf",
     {{"url", "kafka://a"}, {"schema_id_header", "s"}, {"message_index_header", "i"}},
     {},
     value,
     "option \"message_index_header\" has no effect here",
     "protobuf"},
    {"KafkaSchemaOfDocument",
     {{"url", "kafka://a"}, {"schema_id_header", "s"}, {"format", "structured"}},
     {},
     value,
     "exclude each other",
     "document"},
    {"KafkaTombstones",
     {{"url", "kafka://a"}, {"tombstone_after", "a,,b"}},
     {},
     value,
     "\"tombstone_after\"",
     "event types"},
    {"NatsWithoutServer", {{"url", "nats://"}}, {}, value, "no server", "nats://server1"},
    {"NatsHost", {{"url", "nats://a%2fb"}}, {}, value, "not a host name", "nats://server1"},
    {"NatsUser", {{"url", "tls://u@a"}}, {}, value, "a user", "CREATE USER MAPPING"},
    {"NatsPath", {{"url", "nats://a/s"}}, {}, value, "follow the servers", "\"subject\""},
    {"NatsWildcard",
     {{"url", "nats://a"}, {"subject", "a.*"}},
     {},
     value,
     "\"subject\"",
     "no wildcards"},
    {"NatsReserved",
     {{"url", "nats://a"}, {"subject", "$JS.API.{topic}"}},
     {},
     value,
     "\"subject\"",
     "$KV."},
    {"NatsField",
     {{"url", "nats://a"}, {"stream", "{aggregate_id}"}},
     {},
     value,
     "\"stream\"",
     "{topic}"},
    {"NatsInbox",
     {{"url", "nats://a"}, {"inbox_prefix", "a..b"}},
     {},
     value,
     "\"inbox_prefix\"",
     "_INBOX"},
    {"NatsSeed", {{"url", "nats://a"}}, {{"nkey_seed", "x"}}, value, "\"nkey_seed\"", "\"SU\""},
    {"NatsCredentials",
     {{"url", "nats://a"}},
     {{"credentials", "x"}},
     value,
     "\"credentials\"",
     "all its lines"},
    {"KafkaPort", {{"url", "kafka://a:1,b:99999"}}, {}, value, "its port", "1 to 65535"},
    {"KafkaPartitioners",
     {{"url", "kafka://a"}, {"partitioner", "consistent_random"}, {"partition_header", "p"}},
     {},
     value,
     "exclude each other",
     "nothing left"},
    {"KafkaHeaders",
     {{"url", "kafka://a"}, {"headers", "event_id:id, of_nobody"}},
     {},
     value,
     "\"headers\"",
     "event_id:id"},
    {"KafkaHeadersOfCloudEvents",
     {{"url", "kafka://a"}, {"headers", "event_id:id"}, {"format", "binary"}},
     {},
     value,
     "\"attributes\"",
     "CloudEvents"},
    {"KafkaPayloadOfADocument",
     {{"url", "kafka://a"}, {"json_payload", "compact"}, {"format", "structured"}},
     {},
     value,
     "exclude each other",
     "part of the document"},
    {"KafkaKey",
     {{"url", "kafka://a"}},
     {{"private_key", "/etc/key.pem"}},
     value,
     "\"private_key\"",
     "PEM"},
    {"PubsubWithoutProject",
     {{"url", "pubsub://"}},
     {},
     value,
     "does not name a project",
     "pubsub://my-project"},
    {"PubsubWithTopic", {{"url", "pubsub://p/t"}}, {}, value, "follow the project", "\"topic\""},
    {"PubsubWithPort",
     {{"url", "pubsub://p:1"}},
     {},
     value,
     "does not name a project",
     "pubsub://my-project"},
    {"PubsubParameter", {{"url", "pubsub://p?zone=x"}}, {}, value, "\"zone\"", "region, endpoint"},
    {"PubsubEndpoint",
     {{"url", "pubsub://p?endpoint=h:1"}},
     {},
     value,
     "invalid URL parameter \"endpoint\" \"h:1\"",
     "http://127.0.0.1:8085"},
    {"EmulatorWithScheme",
     {{"url", "pubsub://p"}, {"emulator_host", "http://h:1"}},
     {},
     value,
     "\"emulator_host\"",
     "127.0.0.1:8085"},
    {"EmulatorOfAws",
     {{"url", "sqs://r"}, {"emulator_host", "h:1"}},
     {},
     option,
     "\"emulator_host\"",
     "Valid options"},
    {"NoSuchSwitch",
     {{"url", "pubsub://p"}, {"create_topics", "yes"}},
     {},
     value,
     "\"create_topics\"",
     "\"on\" or \"off\""},
    {"NoSuchField",
     {{"url", "pubsub://p"}, {"topic", "{name}"}},
     {},
     value,
     "\"topic\"",
     "There is no field \"{name}\"."},
    {"EmptyKey", {{"url", "pubsub://p"}}, {{"key", " "}}, value, "\"key\"", "service account"},
    {"EventBridgeFormat",
     {{"url", "eventbridge://eu-west-1"}, {"format", "binary"}},
     {},
     value,
     "\"format\"",
     "\"structured\" or \"payload\""},
    {"EventBridgeBus",
     {{"url", "eventbridge://eu-west-1"}, {"event_bus", "{aggregate_id}"}},
     {},
     value,
     "\"event_bus\"",
     "{topic}"},
    {"KinesisAccount",
     {{"url", "kinesis://eu-west-1/orders"}},
     {},
     value,
     "does not name an account",
     "twelve digits"},
    {"KinesisRecordSize",
     {{"url", "kinesis://eu-west-1"}, {"max_record_size", "10241"}},
     {},
     value,
     "\"max_record_size\"",
     "1 to 10240"},
    {"SnsWithoutAccount",
     {{"url", "sns://r"}},
     {},
     value,
     "does not name an account",
     "sns://eu-west-1/1234"},
    {"ShortAccount",
     {{"url", "sqs://r/123"}},
     {},
     value,
     "does not name an account",
     "twelve digits"},
    {"RegionOfSqs", {{"url", "sqs://r?region=x"}}, {}, value, "\"region\"", "\"endpoint\""},
    {"TopicOfSqs",
     {{"url", "sqs://r"}, {"topic", "x"}},
     {},
     option,
     "invalid option \"topic\"",
     "queue"},
    {"KeysForPubsub",
     {{"url", "pubsub://p"}},
     {{"access_key_id", "x"}},
     option,
     "\"access_key_id\"",
     "key_file",
     true},
    {"PasswordInHttpUrl",
     {{"url", "https://alice:hunter2@h/"}},
     {},
     value,
     "password",
     "CREATE USER MAPPING"},
    {"PasswordInPostgresqlUrl",
     {{"url", "postgresql://alice:hunter2@h/db"}},
     {},
     value,
     "password",
     "CREATE USER MAPPING"},
    {"PasswordWithoutSlashes",
     {{"url", "postgresql:alice:hunter2@h"}},
     {},
     value,
     "URL",
     "postgresql://"},
    {"PasswordInNullUrl",
     {{"url", "null://alice:hunter2@"}},
     {},
     value,
     "password",
     "CREATE USER MAPPING"},
    {"PasswordAsParameter",
     {{"url", "postgresql:///db?password=hunter2"}},
     {},
     value,
     "password",
     "CREATE USER MAPPING"},
    {"PasswordAsParameterInDisguise",
     {{"url", "postgresql:///db?p%61ssword=hunter2"}},
     {},
     value,
     "password",
     "CREATE USER MAPPING"},
    {"SecretParameter",
     {{"url", "postgresql:///db?sslpassword=hunter2"}},
     {},
     value,
     "invalid URL parameter \"sslpassword\"",
     "Valid parameters are: host, port, sslmode,"},
    {"ServiceParameter",
     {{"url", "postgresql:///db?service=other"}},
     {},
     value,
     "invalid URL parameter \"service\"",
     "Valid parameters are:"},
    {"ParameterThatNamesAnotherDatabase",
     {{"url", "postgresql:///db?dbname=other"}},
     {},
     value,
     "invalid URL parameter \"dbname\"",
     "Valid parameters are:"},
    {"UserInHttpUrl",
     {{"url", "https://alice@h/"}},
     {},
     value,
     "user or password",
     "CREATE USER MAPPING"},
    {"NoHost", {{"url", "https:///events"}}, {}, value, "no host", "https://example.com"},
    {"NoSlashes", {{"url", "https:example.com"}}, {}, value, "no host", "https://example.com"},
    {"NoDatabase",
     {{"url", "postgresql://h"}},
     {},
     value,
     "does not name a database",
     "postgresql://host/"},
    {"EmptyDatabase",
     {{"url", "postgresql://h/"}},
     {},
     value,
     "does not name a database",
     "postgresql://host/"},
    {"DatabaseWithoutSlashes", {{"url", "postgresql:catalog"}}, {}, value, "URL", "postgresql://"},
    {"MoreThanADatabase",
     {{"url", "postgresql://h/db/table"}},
     {},
     value,
     "does not name a database",
     "Only the name of a database may follow the host."},
    {"SomethingBehindNull", {{"url", "null:x"}}, {}, value, "null:", ""},
    {"SeveralHosts",
     {{"url", "postgresql://a,b/db"}},
     {},
     value,
     "several hosts",
     "several addresses"},
    {"SeveralHostsInAParameter",
     {{"url", "postgresql:///db?host=/tmp,b"}},
     {},
     value,
     "several hosts",
     "several addresses"},
    {"SeveralHostsInDisguise", {{"url", "postgresql://a%2Cb/db"}}, {}, value, "several hosts", ""},
    {"HostBehindNull", {{"url", "null://host"}}, {}, value, "null:", ""},
    {"UserBehindNull", {{"url", "null://alice@"}}, {}, value, "null:", ""},
    {"QueryBehindNull", {{"url", "null:?token=hunter2"}}, {}, value, "null:", ""},
    {"SomethingBehindPull", {{"url", "pull:x"}}, {}, value, "pull:", ""},
    {"PullInCapitals", {{"url", "PULL:"}}, {}, value, "pull:", ""},

    {"BadlyEncodedDatabase", {{"url", "postgresql:///d%zz"}}, {}, value, "badly encoded", ""},

    // Options that do not exist, or not in this place.
    {"UnknownHttpOption",
     {http_url, {"fromat", "binary"}},
     {},
     option,
     "invalid option \"fromat\"",
     "Valid options are: url, topics, filter, payload, start, max_attempts, retry_base, retry_max, "
     "on_dead_letter, "
     "receipts, relay, connect_timeout, request_timeout, batch_size, format, on_gone, "
     "max_connections, ca_file."},
    {"UnknownPostgresqlOption",
     {pg_url, {"x", "1"}},
     {},
     option,
     "invalid option \"x\"",
     "Valid options are: url, topics, filter, payload, start, max_attempts, retry_base, retry_max, "
     "on_dead_letter, "
     "receipts, relay, connect_timeout, request_timeout, batch_size, "
     "consumer."},
    {"UnknownNullOption",
     {null_url, {"x", "1"}},
     {},
     option,
     "invalid option \"x\"",
     "Valid options are: url, topics, filter, payload, start, max_attempts, retry_base, retry_max, "
     "on_dead_letter, "
     "receipts, relay."},
    {"NameInCapitals",
     {http_url, {"Format", "binary"}},
     {},
     option,
     "invalid option \"Format\"",
     "Valid options are:"},
    {"OptionOfAnotherSink",
     {pg_url, {"format", "binary"}},
     {},
     option,
     "invalid option \"format\"",
     "Valid options are: url,"},
    {"SecretInTheServer",
     {http_url, {"password", "hunter2"}},
     {},
     option,
     "invalid option \"password\"",
     "Set it in CREATE USER MAPPING"},
    {"TokenInTheServer",
     {http_url, {"token", "hunter2"}},
     {},
     option,
     "invalid option \"token\"",
     "Set it in CREATE USER MAPPING"},
    {"UnknownMappingOption",
     {http_url},
     {{"pasword", "hunter2"}},
     option,
     "invalid option \"pasword\"",
     "Valid options are: user, password, token, headers, signing_secret, next_signing_secret, "
     "signing_key, next_signing_key, certificate, private_key."},
    {"SigningSecretWithoutMark",
     {http_url},
     {{"signing_secret", "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
     value,
     "\"signing_secret\"",
     "\"whsec_\" and 24 to 64 random bytes in base64"},
    {"SigningSecretThatIsShort",
     {http_url},
     {{"next_signing_secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaQ="}},
     value,
     "\"next_signing_secret\"",
     "openssl rand -base64 32"},
    {"SigningSecretThatIsLong",
     {http_url},
     {{"signing_secret", "whsec_" + std::string(88, 'A')}},
     value,
     "\"signing_secret\"",
     "24 to 64"},
    {"SigningSecretForUrls",
     {http_url},
     {{"signing_secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaS-"}},
     value,
     "\"signing_secret\"",
     "base64"},
    {"SigningSecretWithoutPadding",
     {http_url},
     {{"signing_secret", "whsec_" + std::string(43, 'A')}},
     value,
     "\"signing_secret\"",
     "base64"},
    {"SigningKeyThatIsASecret",
     {http_url},
     {{"signing_key", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
     value,
     "\"signing_key\"",
     "\"whsk_\" and a private key of Ed25519"},
    {"SigningKeyThatIsShort",
     {http_url},
     {{"next_signing_key", "whsk_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
     value,
     "\"next_signing_key\"",
     "32 bytes"},
    {"SigningSecretInTheServer",
     {http_url, {"signing_secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}},
     {},
     option,
     "invalid option \"signing_secret\"",
     "Set it in CREATE USER MAPPING"},
    {"MappingOptionOfAnotherSink",
     {pg_url},
     {{"token", "hunter2"}},
     option,
     "invalid option \"token\"",
     "Valid options are: user, password, sslcert, sslkey.",
     true},
    {"ServerOptionInTheMapping",
     {http_url},
     {{"format", "binary"}},
     option,
     "invalid option \"format\"",
     "Set it in CREATE SERVER."},
    {"MappingOfNull",
     {null_url},
     {{"user", "alice"}},
     option,
     "invalid option \"user\"",
     "There are no valid options in this context.",
     true},

    // Values.
    {"EmptyTopics", {http_url, {"topics", ""}}, {}, value, "topic pattern", "video.*"},
    {"Start", {http_url, {"start", "now"}}, {}, value, "\"start\"", "\"end\""},
    {"Format", {http_url, {"format", "xml"}}, {}, value, "\"format\"", "\"structured\""},
    {"BatchSizeZero",
     {pg_url, {"batch_size", "0"}},
     {},
     value,
     "\"batch_size\"",
     "from 1 to 10000"},
    {"BatchSizeTooLarge",
     {pg_url, {"batch_size", "10001"}},
     {},
     value,
     "\"batch_size\"",
     "from 1 to 10000"},
    {"BatchSizeNoNumber",
     {pg_url, {"batch_size", "many"}},
     {},
     value,
     "\"batch_size\"",
     "from 1 to 10000"},
    {"BatchSizeWithoutBatches",
     {http_url, {"batch_size", "2"}},
     {},
     value,
     "\"batch_size\"",
     "\"batched\""},
    {"ConnectionsZero",
     {http_url, {"max_connections", "0"}},
     {},
     value,
     "\"max_connections\"",
     "from 1 to 256"},
    {"ConnectionsTooMany",
     {http_url, {"max_connections", "257"}},
     {},
     value,
     "\"max_connections\"",
     "from 1 to 256"},
    {"ConnectTimeout",
     {http_url, {"connect_timeout", "soon"}},
     {},
     value,
     "invalid value for option \"connect_timeout\"",
     "ms, s, min or h"},
    {"RequestTimeout",
     {http_url, {"request_timeout", "0"}},
     {},
     value,
     "invalid value for option \"request_timeout\"",
     "ms, s, min or h"},
    {"EmptyConsumer", {pg_url, {"consumer", ""}}, {}, value, "\"consumer\"", "empty"},
    {"ConsumerWithControlCharacter",
     {pg_url, {"consumer", "a\nb"}},
     {},
     value,
     "\"consumer\"",
     "control characters"},
    {"EmptyCaFile", {http_url, {"ca_file", ""}}, {}, value, "\"ca_file\"", "empty"},
    {"EmptyPassword", {http_url}, {{"password", ""}}, value, "\"password\"", "empty"},
    {"PasswordWithLineBreak",
     {http_url},
     {{"password", "hunter2\r\nx: y"}},
     value,
     "\"password\"",
     "control characters"},
    {"TokenWithDelete",
     {http_url},
     {{"token", "hunter2\x7f"}},
     value,
     "\"token\"",
     "control characters"},
};

INSTANTIATE_TEST_SUITE_P(, Refusal, testing::ValuesIn(refusals),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(Refusal, NamesTheMistakeAndAValidValue) {
    const Result<Destination> result = parse(GetParam().server, GetParam().mapping);
    ASSERT_FALSE(result) << "it was accepted";
    const Error& error = result.error();
    EXPECT_EQ(error.kind, GetParam().kind);
    EXPECT_THAT(error.message, HasSubstr(GetParam().message));
    EXPECT_THAT(text_of(error), HasSubstr(GetParam().advice));
    EXPECT_NE(error.hint, "") << "no hint with: " << error.message;
    EXPECT_THAT(error.message, Not(HasSubstr("\n")));
    EXPECT_THAT(text_of(error), Not(HasSubstr("hunter2"))) << "a secret is repeated";
}

TEST(DestinationValidation, RefusesEveryMistakeThatOneCatalogShows) {
    for (const Refused& each : refusals) {
        const bool refused = validate_server_options(each.server).has_value() ||
                             validate_mapping_options(each.mapping).has_value();
        EXPECT_EQ(refused, !parse(each.server, each.mapping) && !each.only_together) << each.name;
    }
}

TEST(DestinationValidation, ObjectsWithoutOptionsSaySo) {
    const std::optional<Error> error = validate_no_options({{"url", "null:"}});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind, ErrorKind::invalid_option);
    EXPECT_EQ(error->message, "invalid option \"url\"");
    EXPECT_EQ(error->hint, "There are no valid options in this context.");
}

TEST(DestinationValidation, AMappingWithoutServerListsTheOptionsOfAllSinks) {
    const std::optional<Error> error = validate_mapping_options({{"x", "1"}});
    ASSERT_TRUE(error);
    EXPECT_EQ(error->hint,
              "Valid options are: user, password, token, headers, signing_secret, "
              "next_signing_secret, signing_key, next_signing_key, certificate, private_key, "
              "client_secret, registry_user, registry_password, access_key_id, secret_access_key, "
              "session_token, profile, nkey_seed, credentials, sentinel_user, sentinel_password, "
              "key, key_file, sslcert, sslkey.");
}

// ---------------------------------------------------------------------------------------------
// Durations
// ---------------------------------------------------------------------------------------------

TEST(Duration, HasUnits) {
    EXPECT_EQ(parse_duration("500").value(), milliseconds(500));
    EXPECT_EQ(parse_duration("500ms").value(), milliseconds(500));
    EXPECT_EQ(parse_duration("10s").value(), seconds(10));
    EXPECT_EQ(parse_duration("2min").value(), seconds(120));
    EXPECT_EQ(parse_duration("1h").value(), seconds(3600));
    EXPECT_EQ(parse_duration("1h").value(), seconds(3600));
    EXPECT_EQ(parse_duration(" 10 s ").value(), seconds(10));
}

TEST(Duration, ReachesFromAMillisecondToADay) {
    EXPECT_EQ(parse_duration("1").value(), milliseconds(1));
    for (const char* day : {"86400000", "86400000ms", "86400s", "1440min"})
        EXPECT_EQ(parse_duration(day).value(), seconds(86'400)) << day;
}

TEST(Duration, RefusesEverythingElseAndShowsTheUnits) {
    for (const char* text : {"",
                             " ",
                             "s",
                             "ms",
                             "0",
                             "0s",
                             "-1",
                             "-5s",
                             "1.5s",
                             "1d",
                             "10m",
                             "10S",
                             "1d",
                             "10 s s",
                             "1 0s",
                             "10sec",
                             "ten",
                             "86400001",
                             "86401s",
                             "1441min",
                             "99999999999999999999",
                             "9223372036854775807min",
                             "1e3",
                             "+5s"}) {
        const Result<Micros> duration = parse_duration(text);
        ASSERT_FALSE(duration) << '"' << text << '"';
        EXPECT_EQ(duration.error().kind, ErrorKind::invalid_value);
        EXPECT_THAT(duration.error().message, HasSubstr('"' + std::string(text) + '"'));
        EXPECT_THAT(duration.error().hint,
                    AllOf(HasSubstr("ms, s, min or h"), HasSubstr("at most a day")));
    }
}

}  // namespace
}  // namespace outbox
