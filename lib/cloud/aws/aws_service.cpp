#include "cloud/aws/aws_service.hpp"

#include <algorithm>
#include <vector>

#include "cloud/aws/aws_region.hpp"
#include "cloud/aws/json_protocol.hpp"
#include "cloud/aws/sns_protocol.hpp"
#include "net/transport.hpp"

namespace outbox {

// Enough for the result of an entry, with its error.
static constexpr std::size_t kept_of_entry = 1024;
static constexpr std::size_t kept_answer = 64 * 1024;

static constexpr AwsTraits sqs{.name = "sqs",
                               .title = "SQS",
                               .place = "queue",
                               .resource = "",
                               .action = "AmazonSQS.",
                               .content_type = "application/x-amz-json-1.0",
                               .max_entries = 10,
                               .max_bytes = 1024 * 1024,
                               .max_name = 80};
static constexpr AwsTraits sns{.name = "sns",
                               .title = "SNS",
                               .place = "topic",
                               .resource = "",
                               .action = "",
                               .content_type = "application/x-www-form-urlencoded; charset=utf-8",
                               .max_entries = 10,
                               .max_bytes = 256 * 1024,
                               .max_name = 256};
static constexpr AwsTraits kinesis{.name = "kinesis",
                                   .title = "Kinesis",
                                   .place = "stream",
                                   .resource = "stream/",
                                   .action = "Kinesis_20131202.",
                                   .content_type = "application/x-amz-json-1.1",
                                   .max_entries = 500,
                                   .max_bytes = 10 * 1024 * 1024,
                                   .max_name = 128};

static constexpr AwsTraits eventbridge{.name = "events",
                                       .title = "EventBridge",
                                       .place = "event bus",
                                       .resource = "event-bus/",
                                       .action = "AWSEvents.",
                                       .content_type = "application/x-amz-json-1.1",
                                       .max_entries = 10,
                                       .max_bytes = 1024 * 1024,
                                       .max_name = 256};

static const AwsTraits& traits_of(AwsKind kind) {
    switch (kind) {
        case AwsKind::sqs:
            break;
        case AwsKind::sns:
            return sns;
        case AwsKind::kinesis:
            return kinesis;
        case AwsKind::eventbridge:
            return eventbridge;
    }
    return sqs;
}

AwsService::AwsService(AwsKind kind, const AwsOptions& options)
    : kind_(kind),
      traits_(traits_of(kind)),
      region_(options.region),
      account_(options.account),
      url_(options.endpoint.empty() ? service_url(traits_.name, region_) : options.endpoint),
      signature_(region_, std::string(traits_.name)) {
    if (url_.ends_with('/'))
        url_.pop_back();
    host_ = host_header(Url::parse(url_).value());
}

std::string AwsService::subject(std::string_view name) const {
    std::string text(traits_.place);
    text += " \"";
    text += name;
    return text + '"';
}

std::string AwsService::address_of(std::string_view name) const {
    if (account_.empty())
        return kind_ == AwsKind::sqs ? "" : std::string(name);
    std::string address;
    if (kind_ == AwsKind::sqs)
        address = url_ + '/' + account_ + '/';
    else
        address = "arn:" + std::string(partition_of(region_).name) + ':' +
                  std::string(traits_.name) + ':' + region_ + ':' + account_ + ':' +
                  std::string(traits_.resource);
    address += name;
    return address;
}

void AwsService::sign(Exchange& exchange, const AwsKeys& keys, Micros unix_now,
                      std::string_view action) {
    const std::string time = basic_timestamp(unix_now);
    std::string target;
    if (!traits_.action.empty())
        target = std::string(traits_.action) + std::string(action);
    exchange.content.body = exchange.content.buffer;
    exchange.keep_body = std::max(kept_answer, traits_.max_entries * kept_of_entry);
    std::vector<HeaderField> fields{{"Content-Type", traits_.content_type}, {"X-Amz-Date", time}};
    if (!target.empty())
        fields.push_back({"X-Amz-Target", target});
    if (!keys.session_token.empty())
        fields.push_back({"X-Amz-Security-Token", keys.session_token});

    std::string& lines = exchange.content.headers;
    lines.clear();
    const auto append = [&](const HeaderField& field) {
        lines += field.name;
        lines += ": ";
        lines += field.value;
        lines += "\r\n";
    };
    for (const HeaderField& field : fields)
        append(field);
    fields.push_back({"Host", host_});  // signed here, added by the transport
    append({"Authorization", signature_.authorization(
                                 {.headers = fields, .body = exchange.content.body}, keys, time)});
}

AwsFailure AwsService::failure_in(std::string_view body) const {
    return kind_ == AwsKind::sns ? parse_query_failure(body) : parse_json_failure(body);
}

std::string AwsService::describe(const Exchange& exchange, const AwsFailure& failure) {
    std::string text = failure.code.empty()
                           ? explain(exchange)
                           : "HTTP " + std::to_string(exchange.status) + ' ' + explain(failure);
    conceal_secrets(exchange, text);
    return text;
}

}  // namespace outbox
