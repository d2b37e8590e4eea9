// Checks whether a broker can be reached, accepts our login, and allows what the options need. It
// connects with its own client id, so that it does not disconnect the relay of the destination, and
// publishes nothing. So it cannot tell whether the client may publish to a topic.
#include <optional>

#include "core/check.hpp"
#include "core/text.hpp"
#include "net/transport.hpp"
#include "sinks/connection_check.hpp"
#include "sinks/module_entry.hpp"
#include "sinks/mqtt/connection.hpp"
#include "sinks/wait_set.hpp"

namespace outbox {

namespace {

MqttOptions options_of_check(const CheckContext& context) {
    MqttOptions options = mqtt_options(context.destination);
    options.client_id = "pg_outbox.check." + std::to_string(context.clock.unix_now());
    return options;
}

class MqttCheck final : public Check {
  public:
    explicit MqttCheck(const CheckContext& context)
        : options_(options_of_check(context)), connection_(options_, context.clock) {
        reaching_.emplace(connection_.stream().config());
        ready_.add(reaching_->descriptor());
        ready_.add(connection_.descriptor());
    }

    ~MqttCheck() override { connection_.close(); }

    int descriptor() const noexcept override { return ready_.descriptor(); }

    Micros deadline() const noexcept override {
        return reaching_ ? reaching_->deadline() : connection_.deadline();
    }

    bool step(Micros now, std::vector<Finding>& findings) override {
        if (reaching_) {
            std::vector<Finding> found;
            if (!reaching_->step(now, found))
                return false;
            reaching_.reset();
            const bool ok = all_ok(found);
            findings.insert(findings.end(), found.begin(), found.end());
            if (ok)
                connection_.open();
            return !ok;
        }
        connection_.step(now);
        connection_.take(now);
        if (connection_.state() == MqttConnection::State::connecting)
            return false;
        conclude(findings);
        return true;
    }

  private:
    void conclude(std::vector<Finding>& findings) const {
        if (!connection_.is_accepted()) {
            findings.push_back({"login", false, connection_.failure().why});
            return;
        }
        findings.push_back(
            {"login", true,
             options_.user.empty() ? "accepted without a user" : "as \"" + options_.user + '"'});
        if (connection_.state() == MqttConnection::State::failed) {
            findings.push_back({"limits", false, connection_.failure().why});
            return;
        }
        const MqttLimits& limits = connection_.limits();
        findings.push_back({"limits", true,
                            "QoS up to " + std::to_string(limits.max_qos) +
                                (limits.retain ? ", retained messages" : ", no retained messages") +
                                ", " + std::to_string(limits.max_packet_size) +
                                " bytes in a message, " + std::to_string(limits.receive_maximum) +
                                " messages in flight"});
    }

    const MqttOptions options_;
    std::optional<ConnectionCheck> reaching_;
    MqttConnection connection_;
    WaitSet ready_;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::MqttCheck(context);
    });
}
