// Checks whether a cluster can be reached, accepts our login, and has the topics. It asks for
// metadata, which changes nothing. It cannot tell whether a topic may be written to, because that
// would need a record.
//
// The library's functions for such questions block, so a thread of the check calls them.
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "core/check.hpp"
#include "core/late.hpp"
#include "core/signals.hpp"
#include "core/text.hpp"
#include "net/transport.hpp"
#include "sinks/kafka/client.hpp"
#include "sinks/kafka/schemas.hpp"
#include "sinks/kafka/token.hpp"
#include "sinks/kafka/topic_name.hpp"
#include "sinks/kafka/verdict.hpp"
#include "sinks/module_entry.hpp"

namespace outbox {

namespace {

// Asks a cluster, in a thread of its own.
class Questions {
  public:
    Questions(const KafkaOptions& options, std::vector<std::string> topics, const Clock& clock)
        : options_(options), topics_(std::move(topics)), clock_(clock) {}
    ~Questions() {
        for (const int descriptor : {answered_, wake_})
            if (descriptor >= 0)
                close(descriptor);
    }

    // Becomes readable when all questions are answered.
    int descriptor() const noexcept { return answered_; }
    std::atomic<bool> done = false;
    std::vector<Finding> findings;  // valid once `done` is set

    // Nobody would catch an exception of this thread.
    void run() noexcept {
        try {
            ask();
        } catch (...) {
            failed_ = true;
        }
        done = true;
        const std::uint64_t one = 1;
        [[maybe_unused]] const ssize_t written = write(answered_, &one, sizeof one);
    }
    bool has_no_memory() const noexcept { return failed_; }

  private:
    static constexpr const char* time_of_event =
        "; its records have the time of their events, by which it can delete old ones before they "
        "are read (see its retention.ms and the option \"timestamp\")";

    using Metadata =
        std::unique_ptr<const rd_kafka_metadata_t, decltype(&rd_kafka_metadata_destroy)>;

    static constexpr std::size_t max_errors = 1'000;
    // Milliseconds; then it looks for errors. A question without an answer ends its connection, so
    // the next one waits longer: a busy server takes its time.
    static constexpr int at_a_time = 200;

    void ask() {
        TokenLogin login(options_, clock_);
        if (!get_token(login))
            return;
        KafkaClient client(options_, wake_);
        login.give(client);
        if (!client.failure().empty()) {
            findings.push_back({"login", false, client.failure()});
            return;
        }
        const Metadata cluster = metadata(client, nullptr, options_.limits.connect);
        if (cluster == nullptr) {
            tell_no_answer();
            return;
        }
        findings.push_back({"connection", true,
                            "a cluster of " + std::to_string(cluster->broker_cnt) +
                                (cluster->broker_cnt == 1 ? " broker, " : " brokers, through ") +
                                printable(cluster->orig_broker_name)});
        if (options_.tls)
            findings.push_back({"tls", true, "the certificate is valid for the broker"});
        if (!options_.login.mechanism.empty())
            findings.push_back({"login", true,
                                options_.login.mechanism + " as \"" +
                                    (login.source() != nullptr ? login.source()->token().principal
                                                               : options_.login.user) +
                                    '"'});
        if (!reach_brokers(client, *cluster))
            return;
        for (const std::string& topic : topics_)
            findings.push_back(look_at(client, topic));
        if (!options_.schemas.registry.empty() && options_.schemas.subject.empty())
            for (const std::string& topic : topics_)
                findings.push_back(schema_of(topic));
    }

    void tell_no_answer() {
        const auto advertised = std::find_if(errors_.rbegin(), errors_.rend(),
                                             [](const auto& error) { return broker_in(error); });
        if (advertised == errors_.rend()) {
            findings.push_back(
                {subject_, false,
                 error_.empty() ? no_connection_within(options_.limits.connect) : error_});
            return;
        }
        const Advertised broker = *broker_in(*advertised);
        findings.push_back({"connection", true, "the cluster has named its brokers"});
        findings.push_back(
            {"broker " + broker.id, false, "it advertises " + broker.address + ": " + *advertised});
    }

    struct Advertised {
        std::string id, address;
    };

    // Errors begin with the protocol, the address, and the number of the broker, or "bootstrap" for
    // an address of the URL. Where brokers have been named before the first question is asked,
    // newer versions of the library ask only them.
    static std::optional<Advertised> broker_in(std::string_view error) {
        std::string_view name = error.substr(0, error.find(": "));
        if (const std::size_t protocol = name.find("://"); protocol != name.npos)
            name.remove_prefix(protocol + 3);
        const std::size_t slash = name.rfind('/');
        if (slash == name.npos || slash + 1 == name.size() ||
            name.find_first_not_of("0123456789", slash + 1) != name.npos)
            return std::nullopt;
        return Advertised{std::string(name.substr(slash + 1)), std::string(name.substr(0, slash))};
    }

    Finding schema_of(const std::string& topic) {
        Schemas schemas(options_, clock_);
        const std::shared_ptr<const Schema> schema = schemas.of_topic(topic);
        while (schema->state == Schema::State::asking) {
            wait_for(schemas.descriptor(), schemas.deadline());
            schemas.step(clock_.now());
        }
        const bool known = schema->state == Schema::State::known;
        return {"schema of \"" + topic + '"', known,
                known ? "its id is " + std::to_string(schema->id) : schema->error};
    }

    void wait_for(int descriptor, Micros deadline) const noexcept {
        const Micros left = std::max<Micros>(0, deadline - clock_.now());
        pollfd watched{descriptor, POLLIN, 0};
        poll(&watched, 1, static_cast<int>(std::min<Micros>(left / 1000 + 1, at_a_time)));
    }

    // Returns false if the login needs a token and cannot get one.
    bool get_token(TokenLogin& login) {
        Credentials::State state = login.need(clock_.now());
        while (state == Credentials::State::pending) {
            wait_for(login.descriptor(), login.deadline());
            login.step(clock_.now());
            state = login.need(clock_.now());
        }
        if (state == Credentials::State::failed)
            findings.push_back({"token", false, login.error()});
        else if (const TokenSource* source = login.source())
            findings.push_back(
                {"token", true,
                 source->origin() + ", valid for " +
                     std::to_string((source->token().expires - clock_.unix_now()) / seconds(1)) +
                     " s"});
        return state == Credentials::State::ready;
    }

    Finding look_at(KafkaClient& client, const std::string& name) {
        const std::string subject = "topic \"" + name + '"';
        if (std::optional<std::string> why = invalid_topic_name(name))
            return {subject, false, std::move(*why)};
        rd_kafka_topic_t* topic = rd_kafka_topic_new(client.get(), name.c_str(), nullptr);
        if (topic == nullptr)
            throw std::bad_alloc();
        const Metadata answer = metadata(client, topic, options_.limits.request);
        rd_kafka_topic_destroy(topic);
        if (answer == nullptr || answer->topic_cnt != 1)
            return {subject, false,
                    error_.empty() ? no_answer_within(options_.limits.request) : error_};
        const rd_kafka_metadata_topic_t& found = answer->topics[0];
        if (found.err == RD_KAFKA_RESP_ERR_UNKNOWN_TOPIC_OR_PART)
            return {subject, false, "it does not exist (create it)"};
        if (found.err != RD_KAFKA_RESP_ERR_NO_ERROR)
            return {subject, false, printable(rd_kafka_err2str(found.err))};
        return {subject, true,
                "it exists, with " + std::to_string(found.partition_cnt) +
                    (found.partition_cnt == 1 ? " partition" : " partitions") +
                    (options_.has_time_of_event ? time_of_event : "")};
    }

    // The address that was answered is one of the URL. A relay also connects to those that the brokers
    // advertise, so each is asked something there. Any answer will do, also that we may not know.
    bool reach_brokers(KafkaClient& client, const rd_kafka_metadata_t& cluster) {
        const std::unique_ptr<rd_kafka_queue_t, decltype(&rd_kafka_queue_destroy)> answers(
            rd_kafka_queue_new(client.get()), rd_kafka_queue_destroy);
        std::map<std::int32_t, const rd_kafka_metadata_broker_t*> left;
        for (int i = 0; i < cluster.broker_cnt; i++) {
            left[cluster.brokers[i].id] = &cluster.brokers[i];
            ask_broker(client, cluster.brokers[i].id, answers.get());
        }
        const Micros give_up = clock_.now() + options_.limits.connect;
        while (!left.empty() && clock_.now() < give_up) {
            rd_kafka_event_t* event = rd_kafka_queue_poll(answers.get(), at_a_time);
            take_errors(client);
            if (event == nullptr)
                continue;
            if (!is_unreached(rd_kafka_event_error(event)))
                left.erase(static_cast<std::int32_t>(
                    reinterpret_cast<std::intptr_t>(rd_kafka_event_opaque(event))));
            rd_kafka_event_destroy(event);
        }
        for (const auto& [id, broker] : left)
            findings.push_back({"broker " + std::to_string(id), false, why_not_reached(*broker)});
        if (left.empty())
            findings.push_back(
                {"brokers", true, "each can be reached at the address that it advertises"});
        return left.empty();
    }

    void ask_broker(KafkaClient& client, std::int32_t id, rd_kafka_queue_t* answers) {
        char error[200];
        rd_kafka_AdminOptions_t* options =
            rd_kafka_AdminOptions_new(client.get(), RD_KAFKA_ADMIN_OP_DESCRIBECONFIGS);
        rd_kafka_AdminOptions_set_request_timeout(
            options, static_cast<int>(options_.limits.connect / 1000), error, sizeof error);
        rd_kafka_AdminOptions_set_opaque(options,
                                         reinterpret_cast<void*>(static_cast<std::intptr_t>(id)));
        rd_kafka_ConfigResource_t* itself =
            rd_kafka_ConfigResource_new(RD_KAFKA_RESOURCE_BROKER, std::to_string(id).c_str());
        rd_kafka_DescribeConfigs(client.get(), &itself, 1, options, answers);
        rd_kafka_ConfigResource_destroy(itself);
        rd_kafka_AdminOptions_destroy(options);
    }

    static bool is_unreached(rd_kafka_resp_err_t error) noexcept {
        switch (error) {
            case RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN:
            case RD_KAFKA_RESP_ERR__AUTHENTICATION:
            case RD_KAFKA_RESP_ERR__DESTROY:
            case RD_KAFKA_RESP_ERR__RESOLVE:
            case RD_KAFKA_RESP_ERR__SSL:
            case RD_KAFKA_RESP_ERR__TIMED_OUT:
            case RD_KAFKA_RESP_ERR__TIMED_OUT_QUEUE:
            case RD_KAFKA_RESP_ERR__TRANSPORT:
            case RD_KAFKA_RESP_ERR__UNKNOWN_BROKER:
                return true;
            default:
                return false;
        }
    }

    std::string why_not_reached(const rd_kafka_metadata_broker_t& broker) const {
        const std::string address = printable(broker.host, 300) + ':' + std::to_string(broker.port);
        std::string why = error_.empty() ? no_connection_within(options_.limits.connect) : error_;
        for (const std::string& error : errors_)
            if (error.find(address) != error.npos)
                why = error;
        return "it advertises " + address + ": " + why;
    }

    // Returns nullptr if there is no answer; error_ then says why.
    Metadata metadata(KafkaClient& client, rd_kafka_topic_t* topic, Micros limit) {
        const Micros give_up = clock_.now() + limit;
        const rd_kafka_metadata_t* answer = nullptr;
        for (int wait = at_a_time; answer == nullptr; wait *= 2) {
            const Micros left = std::max<Micros>(give_up - clock_.now(), milliseconds(at_a_time));
            const rd_kafka_resp_err_t error =
                rd_kafka_metadata(client.get(), 0, topic, &answer,
                                  static_cast<int>(std::min<Micros>(wait, left / 1000)));
            const bool is_final =
                error != RD_KAFKA_RESP_ERR__TIMED_OUT && error != RD_KAFKA_RESP_ERR__TRANSPORT;
            if (error != RD_KAFKA_RESP_ERR_NO_ERROR && is_final && error_.empty())
                error_ = printable(rd_kafka_err2str(error));
            const bool is_down = take_errors(client);
            if (answer == nullptr && (is_final || is_down || clock_.now() >= give_up))
                break;
        }
        return {answer, rd_kafka_metadata_destroy};
    }

    // Returns true if no broker can be reached.
    bool take_errors(KafkaClient& client) {
        bool is_down = false;
        while (rd_kafka_event_t* event = client.next_event()) {
            const rd_kafka_resp_err_t error = rd_kafka_event_error(event);
            if (rd_kafka_event_type(event) != RD_KAFKA_EVENT_ERROR) {
            } else if (error == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
                is_down = true;
            } else {
                error_ = client.explain(error, rd_kafka_event_error_string(event));
                if (errors_.size() < max_errors)
                    errors_.push_back(error_);
                subject_ = error == RD_KAFKA_RESP_ERR__RESOLVE          ? "address"
                           : error == RD_KAFKA_RESP_ERR__SSL            ? "tls"
                           : error == RD_KAFKA_RESP_ERR__AUTHENTICATION ? "login"
                                                                        : "connection";
            }
            rd_kafka_event_destroy(event);
        }
        if (std::string excess = client.excess(); !excess.empty()) {
            error_ = std::move(excess);
            is_down = true;
        }
        return is_down;
    }

    const KafkaOptions options_;
    const std::vector<std::string> topics_;
    const Clock& clock_;
    const int answered_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const int wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    std::string error_;                // the last one
    std::vector<std::string> errors_;  // of connections
    const char* subject_ = "connection";
    std::atomic<bool> failed_ = false;
};

class KafkaCheck final : public Check {
  public:
    explicit KafkaCheck(const CheckContext& context)
        : questions_(std::make_shared<Questions>(kafka_options(context.destination),
                                                 context.targets, context.clock)) {}

    int descriptor() const noexcept override { return questions_->descriptor(); }
    Micros deadline() const noexcept override { return started_ ? never : 0; }

    bool step(Micros, std::vector<Finding>& findings) override {
        if (!started_) {
            started_ = true;
            const SignalsBlocked blocked;
            // The thread may outlive the check.
            std::thread([questions = questions_] { questions->run(); }).detach();
            return false;
        }
        if (!questions_->done)
            return false;
        if (questions_->has_no_memory())
            throw std::bad_alloc();
        for (Finding& finding : questions_->findings)
            findings.push_back(std::move(finding));
        return true;
    }

  private:
    std::shared_ptr<Questions> questions_;
    bool started_ = false;
};

}  // namespace

}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        outbox::prepare_process_for_kafka();
        if (!outbox::initialize_curl())
            return nullptr;
        return new outbox::KafkaCheck(context);
    });
}
