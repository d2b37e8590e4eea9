#include "cloud/aws/key_source.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <ctime>

#include "cloud/aws/aws_region.hpp"
#include "cloud/aws/batch_answer.hpp"
#include "cloud/aws/form_field.hpp"
#include "cloud/aws/sns_protocol.hpp"
#include "cloud/aws/xml_element.hpp"
#include "core/small_file.hpp"
#include "core/text.hpp"
#include "core/url.hpp"
#include "net/json.hpp"

namespace outbox {

using Keys = Result<std::optional<AwsKeys>>;

// Timeout of local sources. They answer at once, or do not exist.
static constexpr Micros local_timeout = seconds(2);

static Error unavailable(std::string message) {
    return {ErrorKind::unavailable, std::move(message)};
}

// The text will be part of a header line or of the path of a request.
static bool is_plain(std::string_view text) {
    return !text.empty() &&
           std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c < 0x7f; });
}

// ---------------------------------------------------------------------------------------------
// Answers
// ---------------------------------------------------------------------------------------------

std::optional<Micros> parse_expiration(const std::string& text) {
    std::tm utc{};
    const char* rest = strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &utc);
    if (rest == nullptr)
        return std::nullopt;
    if (*rest == '.')
        rest += 1 + std::string_view(rest + 1).find_first_not_of("0123456789");
    const std::string_view zone = rest;
    if (zone != "Z" && zone != "+00:00")
        return std::nullopt;
    return seconds(timegm(&utc));
}

static Keys keys_from(std::string id, std::string secret, std::string token,
                      const std::string& expiration) {
    const std::optional<Micros> expires = parse_expiration(expiration);
    if (!is_plain(id) || secret.empty() || (!token.empty() && !is_plain(token)) || !expires)
        return unavailable("the answer has no usable keys");
    return std::optional(AwsKeys{std::move(id), std::move(secret), std::move(token), *expires});
}

// Reads the answer of a container's agent or of the metadata service.
static Keys keys_from_json(const Exchange& exchange) {
    const std::optional<Json::Value> root = parse_json(exchange.body);
    if (!root)
        return unavailable("the answer is not JSON");
    return keys_from(json_text(*root, "AccessKeyId"), json_text(*root, "SecretAccessKey"),
                     json_text(*root, "Token"), json_text(*root, "Expiration"));
}

// Omits the body, because it may contain keys.
static Error refusal(const Exchange& exchange) {
    return unavailable(exchange.status == 0 ? printable(exchange.error)
                                            : "HTTP " + std::to_string(exchange.status));
}

// ---------------------------------------------------------------------------------------------
// Web identity
// ---------------------------------------------------------------------------------------------

static Keys make_assume_role(Exchange& exchange, const Environment& environment,
                             const std::string& token_file) {
    const Result<std::string> token = read_small_file(token_file);
    if (!token)
        return token.error();
    const std::string session = environment("AWS_ROLE_SESSION_NAME");
    std::string& body = exchange.content.buffer;
    body = "Action=AssumeRoleWithWebIdentity&Version=2011-06-15";
    append_form_field(body, "RoleArn", environment("AWS_ROLE_ARN"));
    append_form_field(body, "RoleSessionName", session.empty() ? "pg_outbox" : session);
    append_form_field(body, "WebIdentityToken", trim(token.value()));
    exchange.method = "POST";
    exchange.content.headers = "Content-Type: application/x-www-form-urlencoded; charset=utf-8\r\n";
    exchange.content.body = body;
    return std::optional<AwsKeys>();
}

static Keys take_assumed_role(const Exchange& exchange) {
    if (exchange.status != 200) {
        const std::string why = explain(parse_query_failure(exchange.body));
        const Error error = refusal(exchange);
        return why.empty() ? error : unavailable(error.message + " " + why);
    }
    const std::optional<XmlElement> root = parse_xml(exchange.body);
    if (!root)
        return unavailable("the answer is not XML");
    const XmlElement& keys = root->child("AssumeRoleWithWebIdentityResult").child("Credentials");
    const auto text = [&](std::string_view name) {
        return std::string(trim(keys.child(name).text));
    };
    return keys_from(text("AccessKeyId"), text("SecretAccessKey"), text("SessionToken"),
                     text("Expiration"));
}

std::optional<Result<KeySource>> web_identity_source(const Environment& environment,
                                                     const std::string& region, Micros timeout) {
    const std::string token_file = environment("AWS_WEB_IDENTITY_TOKEN_FILE");
    if (token_file.empty())
        return std::nullopt;
    if (environment("AWS_ROLE_ARN").empty())
        return unavailable("AWS_WEB_IDENTITY_TOKEN_FILE is set, but not AWS_ROLE_ARN");
    const std::string endpoint = environment("AWS_ENDPOINT_URL_STS");
    return KeySource{.name = "web identity",
                     .url = endpoint.empty() ? service_url("sts", region) : endpoint,
                     .timeout = timeout,
                     .next = [=](Exchange& exchange) {
                         return exchange.step == 0
                                    ? make_assume_role(exchange, environment, token_file)
                                    : take_assumed_role(exchange);
                     }};
}

// ---------------------------------------------------------------------------------------------
// Container
// ---------------------------------------------------------------------------------------------

bool is_container_host(const std::string& host) {
    static constexpr std::array agents{
        std::string_view("169.254.170.2"), std::string_view("169.254.170.23"),
        std::string_view("fd00:ec2::23"), std::string_view("localhost")};
    if (std::find(agents.begin(), agents.end(), host) != agents.end())
        return true;
    in_addr v4{};
    in6_addr v6{};
    if (inet_pton(AF_INET, host.c_str(), &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

// Returns an empty token if none is configured.
static Result<std::string> container_token(const Environment& environment) {
    const std::string file = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
    if (file.empty())
        return environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
    return read_small_file(file);
}

static Keys make_container_request(Exchange& exchange, const Environment& environment) {
    const Result<std::string> token = container_token(environment);
    if (!token)
        return token.error();
    exchange.method = "GET";
    exchange.content.headers = "Accept: application/json\r\n";
    if (!token.value().empty()) {
        if (token.value().find_first_of("\r\n") != std::string::npos)
            return unavailable("the authorization token has more than one line");
        exchange.content.headers += "Authorization: " + token.value() + "\r\n";
    }
    return std::optional<AwsKeys>();
}

std::optional<Result<KeySource>> container_source(const Environment& environment) {
    const std::string relative = environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
    const std::string full = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
    if (relative.empty() && full.empty())
        return std::nullopt;
    const std::string url = relative.empty() ? full : "http://169.254.170.2" + relative;
    const Result<Url> parsed = Url::parse(url);
    if (!parsed || !is_container_host(parsed.value().host))
        return unavailable(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI names neither this machine nor an agent on it");
    return KeySource{.name = "container",
                     .url = url,
                     .timeout = local_timeout,
                     .next = [=](Exchange& exchange) -> Keys {
                         if (exchange.step == 0)
                             return make_container_request(exchange, environment);
                         if (exchange.status != 200)
                             return refusal(exchange);
                         return keys_from_json(exchange);
                     }};
}

// ---------------------------------------------------------------------------------------------
// EC2
// ---------------------------------------------------------------------------------------------

static Keys next_of_instance(Exchange& exchange, const std::string& session) {
    static constexpr std::string_view roles = "/latest/meta-data/iam/security-credentials/";
    if (exchange.step > 0 && exchange.status != 200)
        return exchange.step == 2 && exchange.status == 404
                   ? unavailable("this machine has no role")
                   : refusal(exchange);
    if (exchange.step == 3)
        return keys_from_json(exchange);

    exchange.method = "GET";
    exchange.content.headers = "X-aws-ec2-metadata-token: " + session + "\r\n";
    exchange.target = roles;
    if (exchange.step == 0) {
        exchange.method = "PUT";
        exchange.content.headers = "X-aws-ec2-metadata-token-ttl-seconds: 21600\r\n";
        exchange.target = "/latest/api/token";
    } else if (exchange.step == 2) {
        const std::string_view body = exchange.body;
        const std::string_view role = trim(body.substr(0, body.find('\n')));
        if (!is_plain(role))
            return unavailable("the answer names no role");
        append_percent_encoded(exchange.target, role);
    }
    return std::optional<AwsKeys>();
}

std::optional<Result<KeySource>> instance_source(const Environment& environment) {
    if (equal_ignoring_case(environment("AWS_EC2_METADATA_DISABLED"), "true"))
        return std::nullopt;
    const std::string endpoint = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
    return KeySource{.name = "instance metadata",
                     .url = endpoint.empty() ? "http://169.254.169.254" : endpoint,
                     .timeout = local_timeout,
                     .next = [session = std::string()](Exchange& exchange) mutable -> Keys {
                         if (exchange.step == 1 && exchange.status == 200) {
                             session = trim(exchange.body);
                             if (!is_plain(session))
                                 return unavailable("the answer is not a token");
                         }
                         return next_of_instance(exchange, session);
                     }};
}

}  // namespace outbox
