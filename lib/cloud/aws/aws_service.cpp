#include "cloud/aws/aws_service.hpp"

#include <vector>

#include "cloud/aws/aws_region.hpp"
#include "cloud/aws/sns_protocol.hpp"
#include "cloud/aws/sqs_protocol.hpp"
#include "net/transport.hpp"

namespace outbox {

static constexpr std::size_t kept_answer = 64 * 1024;
static constexpr std::string_view fifo_suffix = ".fifo";

static constexpr AwsTraits sqs{"sqs",       "SQS", "queue", "application/x-amz-json-1.0",
                               1024 * 1024, 80};
static constexpr AwsTraits sns{
    "sns", "SNS", "topic", "application/x-www-form-urlencoded; charset=utf-8", 256 * 1024, 256};

AwsService::AwsService(const Destination& destination)
    : destination_(destination),
      traits_(destination.kind == SinkKind::sns ? sns : sqs),
      fifo_(destination.target.ends_with(fifo_suffix)),
      url_(destination.endpoint_text.empty() ? service_url(traits_.name, destination.region)
                                             : destination.endpoint_text),
      signature_(destination.region, std::string(traits_.name)) {
    if (url_.ends_with('/'))
        url_.pop_back();
    host_ = host_header(Url::parse(url_).value());
}

void AwsService::append_name(std::string& out, std::string_view made) const {
    if (fifo_)
        made.remove_suffix(fifo_suffix.size());
    for (char c : made) {
        const bool is_legal = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                              (c >= '0' && c <= '9') || c == '-' || c == '_';
        const bool continues_character = (static_cast<unsigned char>(c) & 0xc0) == 0x80;
        if (!continues_character)
            out += is_legal ? c : '-';
    }
    if (fifo_)
        out += fifo_suffix;
}

void AwsService::append_name(std::string& out, const Event& event) const {
    std::string made;
    destination_.target.append_to(made, event, destination_.source);
    append_name(out, made);
}

std::string AwsService::subject(std::string_view name) const {
    std::string text(traits_.place);
    text += " \"";
    text += name;
    return text + '"';
}

std::string AwsService::address_of(std::string_view name) const {
    std::string address;
    if (destination_.kind == SinkKind::sns)
        address = "arn:" + std::string(partition_of(destination_.region)) +
                  ":sns:" + destination_.region + ':' + destination_.account + ':';
    else if (!destination_.account.empty())
        address = url_ + '/' + destination_.account + '/';
    else
        return "";
    address += name;
    return address;
}

void AwsService::sign(Exchange& exchange, const AwsKeys& keys, Micros unix_now,
                      std::string_view action) {
    const std::string time = basic_timestamp(unix_now);
    const std::string target = action.empty() ? "" : "AmazonSQS." + std::string(action);
    exchange.content.body = exchange.content.buffer;
    exchange.keep_body = kept_answer;
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
    fields.push_back({"Host", host_});  // the transport sends it
    append({"Authorization", signature_.authorization(
                                 {.headers = fields, .body = exchange.content.body}, keys, time)});
}

AwsFailure AwsService::failure_in(std::string_view body) const {
    return destination_.kind == SinkKind::sns ? parse_query_failure(body) : parse_sqs_failure(body);
}

std::string AwsService::describe(const Exchange& exchange, AwsFailure failure,
                                 const AwsKeys& keys) {
    const std::string& token = keys.session_token;
    const bool has_token = !token.empty() && exchange.body.find(token) != std::string::npos;
    if (has_token)
        failure.message.clear();
    if (failure.code.empty() && !has_token)
        return explain(exchange);
    return "HTTP " + std::to_string(exchange.status) + ' ' + explain(failure);
}

}  // namespace outbox
