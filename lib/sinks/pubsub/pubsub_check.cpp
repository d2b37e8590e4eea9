// Checks whether topics of Pub/Sub can be published to: looks at each topic, and then asks for the
// permission.
//
// A role that may only publish may not look (pubsub.topics.get is not part of
// roles/pubsub.publisher), so the permission decides. Emulators have no permissions.
#include "cloud/google/google_credentials.hpp"
#include "net/json.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/pubsub/answer.hpp"
#include "sinks/pubsub/options.hpp"
#include "sinks/pubsub/resource.hpp"
#include "sinks/request_check.hpp"

namespace outbox {

namespace {

constexpr std::string_view permission = "pubsub.topics.publish";

class PubsubCheck final : public RequestCheck {
  public:
    explicit PubsubCheck(const CheckContext& context)
        : options_(pubsub_options(context.destination)), topics_(context.targets) {
        std::unique_ptr<GoogleCredentials> credentials;
        if (!options_.emulated)
            credentials = google_credentials(options_.google, context.clock);
        credentials_ = credentials.get();
        use(transport_config(options_.transport, context.clock, options_.service_url, 1),
            std::move(credentials));
    }

  private:
    enum Step { look, ask_permission };

    bool ask(Exchange& exchange, std::vector<Finding>& findings) override {
        if (step_ == look)
            skip_invalid(findings);
        if (next_ == topics_.size())
            return false;
        exchange.step = step_;
        exchange.target = topic_path(options_.project, topics_[next_]);
        if (step_ == look) {
            exchange.method = "GET";
        } else {
            exchange.target += ":testIamPermissions";
            exchange.content.buffer = "{\"permissions\":[\"" + std::string(permission) + "\"]}";
            exchange.content.body = exchange.content.buffer;
        }
        exchange.keep_body = kept_answer(1);
        exchange.content.headers = "Content-Type: application/json\r\n";
        if (credentials_ != nullptr)
            exchange.content.headers += "Authorization: " + credentials_->authorization() + "\r\n";
        return true;
    }

    void skip_invalid(std::vector<Finding>& findings) {
        for (; next_ < topics_.size(); next_++) {
            std::optional<std::string> why = invalid_topic_id(topics_[next_]);
            if (!why)
                return;
            findings.push_back({subject(), false, std::move(*why)});
        }
    }

    void judge(const Exchange& exchange, std::vector<Finding>& findings) override {
        std::optional<Finding> verdict =
            exchange.step == look ? after_look(exchange) : after_permission(exchange);
        if (!verdict) {
            step_ = ask_permission;
            return;
        }
        findings.push_back(std::move(*verdict));
        step_ = look;
        next_++;
    }

    // Returns std::nullopt if the permission decides.
    std::optional<Finding> after_look(const Exchange& exchange) {
        const ServiceError error = ServiceError::of(exchange);
        hidden_.clear();
        if (exchange.status == 404 && error.status == "NOT_FOUND")
            return options_.create_topics
                       ? Finding{subject(), true,
                                 "it does not exist yet; the first event creates it"}
                       : Finding{subject(), false,
                                 error.explain(exchange) +
                                     " (create it, or set the option \"create_topics\")"};
        if (exchange.status == 200 && options_.emulated)
            return Finding{subject(), true, "it exists"};
        if (exchange.status == 403 && error.status == "PERMISSION_DENIED")
            hidden_ = error.explain(exchange);
        else if (exchange.status != 200)
            return Finding{subject(), false, error.explain(exchange)};
        return std::nullopt;
    }

    // An emulator or another server may not know this request. Then the answer decides nothing.
    Finding after_permission(const Exchange& exchange) const {
        if (exchange.status == 200 && is_permitted(exchange.body))
            return {
                subject(), true,
                hidden_.empty() ? "it exists, and may be published to" : "it may be published to"};
        if (!hidden_.empty())
            return {subject(), false, hidden_};
        if (exchange.status == 200)
            return {subject(), false,
                    "PERMISSION_DENIED: it exists, but may not be published to (grant "
                    "roles/pubsub.publisher)"};
        return {subject(), true, "it exists"};
    }

    static bool is_permitted(std::string_view body) {
        const std::optional<Json::Value> answer = parse_json(body);
        const Json::Value* granted = answer ? json_member(*answer, "permissions") : nullptr;
        if (granted == nullptr || !granted->isArray())
            return false;
        for (const Json::Value& one : *granted)
            if (one.isString() && one.asString() == permission)
                return true;
        return false;
    }

    std::string subject() const { return "topic \"" + topics_[next_] + '"'; }

    const PubsubOptions options_;
    const std::vector<std::string>& topics_;
    GoogleCredentials* credentials_ = nullptr;  // owned by the base class
    std::size_t next_ = 0;
    Step step_ = look;
    std::string hidden_;  // why we may not look at this topic
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::PubsubCheck(context);
    });
}
