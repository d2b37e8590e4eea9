// Checks whether the server can be reached, accepts our login, and has the exchange. If events go
// to the default exchange, it checks the queues instead. It declares them passively, which creates
// nothing. It cannot tell whether an exchange may be written to, because that would need a message.
#include <memory>

#include "core/late.hpp"
#include "core/text.hpp"
#include "net/amqp/connection.hpp"
#include "net/transport.hpp"
#include "sinks/connection_check.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/rabbitmq/connect.hpp"

namespace outbox {

namespace {

class RabbitmqCheck final : public Check {
  public:
    explicit RabbitmqCheck(const CheckContext& context)
        : options_(rabbitmq_options(context.destination)),
          clock_(context.clock),
          reach_(std::make_unique<ConnectionCheck>(stream_config(
              options_.transport, clock_, options_.host, options_.port, options_.tls, "amqp"))),
          connection_(amqp_config(options_), clock_) {
        if (options_.exchange.empty()) {
            names_ = context.targets;
        } else if (options_.exchange.is_constant()) {
            names_.emplace_back();
            options_.exchange.append_to(names_.back(), Event{}, options_.source);
        }
    }

    int descriptor() const noexcept override {
        return reach_ != nullptr ? reach_->descriptor() : connection_.descriptor();
    }

    Micros deadline() const noexcept override {
        if (reach_ != nullptr)
            return reach_->deadline();
        return asked_at_ == never ? connection_.deadline()
                                  : std::min(connection_.deadline(),
                                             asked_at_ + options_.transport.request_timeout);
    }

    bool step(Micros now, std::vector<Finding>& findings) override {
        if (reach_ != nullptr) {
            if (!reach_->step(now, findings))
                return false;
            if (!all_ok(findings))
                return true;
            reach_.reset();
            connection_.open();
        }
        connection_.step(now);
        while (const std::optional<Frame> frame = connection_.next())
            take(*frame, findings);
        if (!connection_.failure().empty()) {
            findings.push_back({logged_in_ ? subject() : "login", false, connection_.failure()});
            return true;
        }
        if (asked_at_ != never && now >= asked_at_ + options_.transport.request_timeout) {
            findings.push_back(
                {subject(), false, no_answer_within(options_.transport.request_timeout)});
            return true;
        }
        if (connection_.state() != AmqpConnection::State::ready)
            return false;
        if (!logged_in_) {
            logged_in_ = true;
            findings.push_back({"login", true,
                                (options_.user.empty() ? "with the client certificate"
                                                       : "as \"" + options_.user + '"') +
                                    ", virtual host \"" + options_.virtual_host + "\", " +
                                    connection_.server()});
        }
        return !ask();
    }

  private:
    static constexpr std::uint16_t number = 1;

    std::string subject() const {
        if (next_ >= names_.size())
            return "connection";
        return (options_.exchange.empty() ? "queue \"" : "exchange \"") + names_[next_] + '"';
    }

    // Returns false if all questions are answered.
    bool ask() {
        if (next_ >= names_.size())
            return false;
        if (asked_at_ != never)
            return true;
        std::string& out = connection_.output();
        if (!channel_is_open_) {
            append_channel_open(out, number);
            channel_is_open_ = true;
        }
        const std::string name = names_[next_].substr(0, max_short_string);
        if (options_.exchange.empty()) {
            amqp_queue_declare_t declare{};
            declare.queue = amqp_bytes(name);
            declare.passive = 1;
            append_method(out, number, AMQP_QUEUE_DECLARE_METHOD, &declare);
        } else {
            amqp_exchange_declare_t declare{};
            declare.exchange = amqp_bytes(name);
            declare.type = amqp_bytes("direct");
            declare.passive = 1;
            append_method(out, number, AMQP_EXCHANGE_DECLARE_METHOD, &declare);
        }
        connection_.flush();
        asked_at_ = clock_.now();
        return true;
    }

    void take(const Frame& frame, std::vector<Finding>& findings) {
        const amqp_method_number_t method = AmqpDecoder::number_of(frame);
        if (method == AMQP_CHANNEL_OPEN_OK_METHOD)
            return;
        if (asked_at_ == never) {
            connection_.fail("the server sent a frame that nobody expects");
        } else if (method == AMQP_QUEUE_DECLARE_OK_METHOD) {
            const auto* queue = connection_.decoder().decode<amqp_queue_declare_ok_t>(frame);
            answered(findings, queue != nullptr,
                     queue != nullptr ? "it exists, with " + std::to_string(queue->message_count) +
                                            (queue->message_count == 1 ? " message" : " messages")
                                      : "malformed answer");
        } else if (method == AMQP_EXCHANGE_DECLARE_OK_METHOD) {
            answered(findings, true, "it exists");
        } else if (method == AMQP_CHANNEL_CLOSE_METHOD) {
            const auto* close = connection_.decoder().decode<amqp_channel_close_t>(frame);
            answered(findings, false,
                     close != nullptr ? explain_close(close->reply_code, close->reply_text)
                                      : "malformed answer");
            append_channel_close_ok(connection_.output(), number);
            channel_is_open_ = false;
        } else {
            connection_.fail("the server sent a frame that nobody expects");
        }
    }

    void answered(std::vector<Finding>& findings, bool ok, std::string detail) {
        findings.push_back({subject(), ok, std::move(detail)});
        next_++;
        asked_at_ = never;
    }

    const RabbitmqOptions options_;
    const Clock& clock_;
    std::unique_ptr<ConnectionCheck> reach_;  // until it is done
    AmqpConnection connection_;
    std::vector<std::string> names_;  // of exchanges or queues
    std::size_t next_ = 0;
    bool logged_in_ = false, channel_is_open_ = false;
    Micros asked_at_ = never;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::RabbitmqCheck(context);
    });
}
