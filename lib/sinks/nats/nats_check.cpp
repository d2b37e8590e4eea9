// Checks whether NATS can be reached, accepts our login and has JetStream, and which stream takes
// each subject. It asks the API of JetStream, which changes nothing. It cannot tell whether a
// subject may be published to, because that would need a message.
//
// The durability of an acknowledged message depends on the stream: on its replicas, its storage,
// and how often the servers force it to the disk. No server tells a client the last of these.
#include <deque>

#include "core/check.hpp"
#include "core/late.hpp"
#include "core/text.hpp"
#include "net/json.hpp"
#include "net/nats/nats_inbox.hpp"
#include "net/transport.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/nats/session.hpp"
#include "sinks/nats/subject.hpp"

namespace outbox {

namespace {

constexpr std::size_t most_streams = 5;  // looked at for one subject

struct Answer {
    enum class Kind { text, no_responders, denied } kind = Kind::text;
    Json::Value value{};
};

class NatsCheck final : public Check, NatsListener {
  public:
    explicit NatsCheck(const CheckContext& context)
        : options_(nats_options(context.destination)),
          clock_(context.clock),
          inbox_(options_.inbox_prefix) {
        for (const std::string& target : context.targets)
            subjects_.push_back(subject_pattern(target));
        Result<NatsConfig> config = nats_config(options_);
        if (config)
            connection_.emplace(std::move(config.value()), clock_,
                                NatsLimits{.message = 4 * 1024 * 1024});
        else
            unusable_ = config.error().message;
    }

    int descriptor() const noexcept override {
        return connection_ ? connection_->descriptor() : -1;
    }

    Micros deadline() const noexcept override {
        if (stage_ == Stage::start)
            return 0;
        return connection_ ? std::min(connection_->deadline(), answer_due_) : never;
    }

    bool step(Micros now, std::vector<Finding>& findings) override {
        if (!connection_) {
            findings.push_back({"login", false, unusable_});
            return true;
        }
        if (stage_ == Stage::start) {
            stage_ = Stage::connect;
            connection_->open(inbox_.subscription());
            return false;
        }
        connection_->step(now, *this);
        if (stage_ == Stage::connect && connection_->state() == NatsConnection::State::ready) {
            add_reached(findings, true);
            stage_ = Stage::account;
            ask("INFO", "");
        }
        if (connection_->state() == NatsConnection::State::closed) {
            if (stage_ == Stage::connect)
                add_reached(findings, false);
            findings.push_back({failed_subject(), false, connection_->failure()});
            return true;
        }
        if (answer_) {
            answer_due_ = never;
            take_answer(findings);
        } else if (now >= answer_due_) {
            findings.push_back(
                {failed_subject(), false, no_answer_within(options_.transport.request_timeout)});
            return true;
        }
        return stage_ == Stage::done;
    }

  private:
    enum class Stage { start, connect, account, names, stream, done };

    // ---- requests -------------------------------------------------------------------------------

    void ask(const std::string& what, const std::string& body) {
        answer_.reset();
        asked_ = "$JS.API." + what;
        std::string& out = connection_->output();
        out.append("PUB ").append(asked_).append(" ");
        inbox_.append_reply(out, ++request_);
        out.append(" ").append(std::to_string(body.size())).append("\r\n");
        out.append(body).append("\r\n");
        connection_->flush();
        answer_due_ = clock_.now() + options_.transport.request_timeout;
    }

    void on_message(const NatsInput& message) override {
        if (inbox_.request_of(message) != request_ || answer_)
            return;
        answer_.emplace();
        if (nats_status(message.headers) == 503)
            answer_->kind = Answer::Kind::no_responders;
        else if (std::optional<Json::Value> value = parse_json(message.payload))
            answer_->value = std::move(*value);
    }

    void on_error(std::string_view text) override {
        if (text.find(asked_) != std::string_view::npos && !answer_)
            answer_.emplace().kind = Answer::Kind::denied;
    }

    // ---- findings -------------------------------------------------------------------------------

    void add_reached(std::vector<Finding>& findings, bool is_ready) const {
        if (connection_->address())
            findings.push_back(
                {"address", true, connection_->host() + " is " + connection_->address()->text()});
        if (connection_->had_connection())
            findings.push_back(
                {"connection", true,
                 "port " + connection_->port() +
                     (connection_->had_server()
                          ? ", nats-server " + printable(connection_->server().version, 100)
                          : "")});
        if (connection_->had_tls())
            findings.push_back(
                {"tls", true, "the certificate is valid for " + connection_->host()});
        if (is_ready)
            findings.push_back({"login", true, login_text()});
    }

    std::string login_text() const {
        if (!options_.login.user.empty())
            return "as \"" + options_.login.user + '"';
        if (!options_.login.token.empty())
            return "with a token";
        if (!options_.login.nkey_seed.empty() || !options_.login.credentials.empty())
            return "with a key";
        return options_.transport.certificate.empty() ? "not asked for, or not needed"
                                                      : "with the certificate, if it is asked for";
    }

    std::string failed_subject() const {
        if (stage_ != Stage::connect)
            return stage_ == Stage::account ? "jetstream" : subject();
        if (!connection_->address())
            return "address";
        if (!connection_->had_server())
            return "connection";
        return options_.tls && !connection_->had_tls() ? "tls" : "login";
    }

    std::string subject() const { return "subject \"" + printable(subjects_.front(), 300) + '"'; }

    void take_answer(std::vector<Finding>& findings) {
        const Answer answer = std::move(*answer_);
        answer_.reset();
        switch (stage_) {
            case Stage::account:
                take_account(answer, findings);
                break;
            case Stage::names:
                take_names(answer, findings);
                break;
            case Stage::stream:
                take_stream(answer, findings);
                break;
            default:
                break;
        }
    }

    static std::string error_in(const Answer& answer) {
        const Json::Value* const error = json_member(answer.value, "error");
        return error != nullptr ? printable(json_text(*error, "description"), 300) : "";
    }

    void take_account(const Answer& answer, std::vector<Finding>& findings) {
        const std::string error = error_in(answer);
        if (answer.kind == Answer::Kind::no_responders)
            findings.push_back({"jetstream", false,
                                "it is not enabled, on the server or for the "
                                "account"});
        else if (answer.kind == Answer::Kind::denied)
            findings.push_back({"jetstream", true, denied()});
        else if (!error.empty())
            findings.push_back({"jetstream", false, error});
        else
            findings.push_back({"jetstream", true, "enabled"});
        if (findings.back().ok)
            next_subject();
        else
            stage_ = Stage::done;
    }

    std::string denied() const {
        return "not known: the user may not ask (publish to " + asked_ + ')';
    }

    void next_subject() {
        if (subjects_.empty()) {
            stage_ = Stage::done;
            return;
        }
        stage_ = Stage::names;
        std::string body = "{";
        append_json_member(body, "subject", subjects_.front());
        ask("STREAM.NAMES", body + '}');
    }

    void end_subject(std::vector<Finding>& findings, bool ok, std::string detail) {
        findings.push_back({subject(), ok, std::move(detail)});
        subjects_.pop_front();
        next_subject();
    }

    void take_names(const Answer& answer, std::vector<Finding>& findings) {
        if (answer.kind == Answer::Kind::denied) {
            end_subject(findings, true, denied());
            return;
        }
        if (const std::string error = error_in(answer); !error.empty()) {
            end_subject(findings, false, error);
            return;
        }
        streams_.clear();
        if (const Json::Value* names = json_member(answer.value, "streams");
            names != nullptr && names->isArray())
            for (const Json::Value& name : *names)
                if (name.isString() && streams_.size() < max_streams)
                    streams_.push_back(name.asString());
        if (streams_.empty())
            end_subject(findings, false, "no stream takes it (create one)");
        else
            next_stream();
    }

    void next_stream() {
        stage_ = Stage::stream;
        ask("STREAM.INFO." + streams_.front(), "");
    }

    void take_stream(const Answer& answer, std::vector<Finding>& findings) {
        const std::string name = streams_.front();
        streams_.pop_front();
        const std::string about = "stream \"" + printable(name, 255) + "\" takes it";
        const Json::Value* const config = json_member(answer.value, "config");
        Finding finding{subject(), true, about};
        if (answer.kind == Answer::Kind::denied)
            finding.detail += "; more is " + denied();
        else if (const std::string error = error_in(answer); !error.empty())
            finding = {subject(), false, about + ": " + error};
        else if (config != nullptr)
            finding = look_at(*config, name, about);
        findings.push_back(std::move(finding));
        if (!streams_.empty()) {
            next_stream();
            return;
        }
        subjects_.pop_front();
        next_subject();
    }

    Finding look_at(const Json::Value& config, const std::string& name,
                    const std::string& about) const {
        const auto flag = [&](const char* member) {
            const Json::Value* value = json_member(config, member);
            return value != nullptr && value->isBool() && value->asBool();
        };
        if (options_.stream.is_constant() && !options_.stream.empty()) {
            std::string expected;
            options_.stream.append_to(expected, Event{}, options_.source);
            if (expected != name)
                return {subject(), false,
                        about + ", but the option \"stream\" says \"" + expected + '"'};
        }
        if (flag("no_ack"))
            return {subject(), false,
                    about + ", but it acknowledges nothing (no_ack): no event can be confirmed"};
        if (flag("sealed"))
            return {subject(), false, about + ", but it is sealed"};
        return {subject(), true, about + "; " + worth(config)};
    }

    // Says how durable an acknowledged message is.
    static std::string worth(const Json::Value& config) {
        const Json::Value* const found = json_member(config, "num_replicas");
        const int replicas = found != nullptr && found->isInt() ? found->asInt() : 1;
        std::string text = replicas == 1 ? "1 replica, " : std::to_string(replicas) + " replicas, ";
        if (json_text(config, "storage") == "memory")
            return text + "in memory: what is acknowledged is lost when " +
                   (replicas == 1 ? "the server restarts" : "the majority of them restarts");
        text += "on disk";
        if (json_text(config, "persist_mode") == "async")
            return text + ": acknowledged before it is written (persist_mode async)";
        return text +
               ": acknowledged before it is forced to the disk, unless sync_interval of the " +
               (replicas == 1 ? "server" : "servers") + " is \"always\" (default 2 minutes)";
    }

    const NatsOptions options_;
    const Clock& clock_;
    const NatsInbox inbox_;
    std::deque<std::string> subjects_;  // not yet looked at
    std::deque<std::string> streams_;   // of the first of them
    std::string unusable_;
    std::optional<NatsConnection> connection_;
    Stage stage_ = Stage::start;
    std::uint64_t request_ = 0;
    std::string asked_;  // the subject of the last request
    Micros answer_due_ = never;
    std::optional<Answer> answer_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::NatsCheck(context);
    });
}
