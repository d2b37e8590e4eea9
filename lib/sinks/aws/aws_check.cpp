// Checks whether queues of SQS, topics of SNS and streams of Kinesis and buses of EventBridge
// exist, and whether the service accepts the credentials: it asks for the attributes of each. It
// cannot tell whether events may be sent there, because that would need an event. Names need no
// check: the services make sure that exactly FIFO queues and topics end with ".fifo".
#include <algorithm>

#include "cloud/aws/aws_credentials.hpp"
#include "cloud/aws/aws_service.hpp"
#include "cloud/aws/eventbridge_protocol.hpp"
#include "cloud/aws/kinesis_protocol.hpp"
#include "cloud/aws/sns_protocol.hpp"
#include "cloud/aws/sqs_protocol.hpp"
#include "core/text.hpp"
#include "sinks/aws/options.hpp"
#include "sinks/aws/target_names.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/request_check.hpp"

namespace outbox {

namespace {

class AwsCheck final : public RequestCheck {
  public:
    explicit AwsCheck(const CheckContext& context)
        : AwsCheck(aws_sink_options(context.destination), context) {}

  private:
    enum Step { look_up, look };

    AwsCheck(const AwsSinkOptions& options, const CheckContext& context)
        : kind_(options.kind),
          max_record_(options.max_record),
          clock_(context.clock),
          service_(options.kind, options.aws) {
        const TargetNames names(options.kind, options.target, options.source);
        for (const std::string& target : context.targets)
            add_name(names, target);
        auto credentials = std::make_unique<AwsCredentials>(
            options.aws, options.transport.request_timeout, context.clock);
        credentials_ = credentials.get();
        use(transport_config(options.transport, context.clock, service_.url(), 1),
            std::move(credentials));
    }

    void add_name(const TargetNames& names, const std::string& target) {
        std::string name;
        names.append(name, target);
        if (std::find(names_.begin(), names_.end(), name) == names_.end())
            names_.push_back(std::move(name));
    }

    bool ask(Exchange& exchange, std::vector<Finding>&) override {
        if (next_ == names_.size())
            return false;
        if (address_.empty())
            address_ = service_.address_of(names_[next_]);
        std::string& body = exchange.content.buffer;
        exchange.step = address_.empty() ? look_up : look;
        if (address_.empty()) {
            body = sqs_queue_url_request(names_[next_]);
            sign(exchange, "GetQueueUrl");
        } else {
            make_look(exchange);
        }
        return true;
    }

    void make_look(Exchange& exchange) {
        std::string& body = exchange.content.buffer;
        switch (kind_) {
            case AwsKind::sqs:
                body = sqs_attributes_request(address_);
                return sign(exchange, "GetQueueAttributes");
            case AwsKind::sns:
                body = sns_attributes_request(address_);
                return sign(exchange, "");
            case AwsKind::kinesis:
                body = kinesis_summary_request(address_);
                return sign(exchange, "DescribeStreamSummary");
            case AwsKind::eventbridge:
                body = event_bus_request(address_);
                return sign(exchange, "DescribeEventBus");
        }
    }

    void sign(Exchange& exchange, std::string_view action) {
        service_.sign(exchange, credentials_->keys(), clock_.unix_now(), action);
    }

    void judge(const Exchange& exchange, std::vector<Finding>& findings) override {
        if (exchange.status == 200 && exchange.step == look_up)
            address_ = parse_sqs_queue_url(exchange.body);
        if (exchange.status == 200 && exchange.step == look_up && !address_.empty())
            return;
        const std::string subject = service_.subject(names_[next_++]);
        address_.clear();
        if (exchange.status != 200)
            findings.push_back({subject, false, why_not(exchange)});
        else if (exchange.step == look_up)
            findings.push_back({subject, false, "the answer has no URL for it"});
        else
            findings.push_back(found(subject, exchange));
    }

    Finding found(const std::string& subject, const Exchange& exchange) const {
        if (kind_ != AwsKind::kinesis)
            return {subject, true, "it exists"};
        const std::optional<StreamSummary> stream = parse_kinesis_summary(exchange.body);
        if (!stream)
            return {subject, false, "the answer does not describe it"};
        // While it is updated, it works.
        if (stream->status != "ACTIVE" && stream->status != "UPDATING")
            return {subject, false, "its status is " + printable(stream->status)};
        const std::size_t most = 1024 * static_cast<std::size_t>(stream->max_record_kib);
        if (most != 0 && most < max_record_)
            return {subject, false,
                    "it takes records of " + std::to_string(stream->max_record_kib) +
                        " KiB, less than the option max_record_size says"};
        return {subject, true, "it is " + stream->status};
    }

    std::string why_not(const Exchange& exchange) const {
        const AwsFailure failure = service_.failure_in(exchange.body);
        std::string text = AwsService::describe(exchange, failure);
        const bool denied = failure.code == "AccessDenied" ||
                            failure.code == "AccessDeniedException" ||
                            failure.code == "AuthorizationError";
        if (denied && exchange.step == look)
            text += " (to look is another permission than to send: " + permission() + ')';
        return text;
    }

    std::string permission() const {
        switch (kind_) {
            case AwsKind::sqs:
                break;
            case AwsKind::sns:
                return "sns:GetTopicAttributes";
            case AwsKind::kinesis:
                return "kinesis:DescribeStreamSummary";
            case AwsKind::eventbridge:
                return "events:DescribeEventBus";
        }
        return "sqs:GetQueueAttributes";
    }

    const AwsKind kind_;
    const std::size_t max_record_;  // Kinesis only
    const Clock& clock_;
    AwsService service_;
    AwsCredentials* credentials_ = nullptr;  // owned by the base class
    std::vector<std::string> names_;
    std::size_t next_ = 0;
    std::string address_;  // of the next one, if it was looked up
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::AwsCheck(context);
    });
}
