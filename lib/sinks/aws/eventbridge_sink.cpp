// The eventbridge sink. A batch is one request of up to ten entries to one event bus.
//
// The service confirms events for a bus that does not exist, and drops them. So the sink asks for
// the bus before the first batch, within the same exchange, and again whenever the last look is
// old. Only the bus "default" cannot be deleted.
#include <unordered_map>

#include "cloud/aws/eventbridge_protocol.hpp"
#include "cloud/aws/json_protocol.hpp"
#include "sinks/aws/aws_sink.hpp"
#include "sinks/aws/eventbridge_entry.hpp"
#include "sinks/cloudevents.hpp"

namespace outbox {

namespace {

constexpr Micros look_again = seconds(60);
constexpr std::size_t max_known_buses = 10'000;

class EventBridgeSink final : public AwsSink {
  public:
    EventBridgeSink(const AwsSinkOptions& options, const Clock& clock)
        : AwsSink(options, clock),
          style_{options.format, source_prefix(options.source), options.event_source,
                 options.event_source_text, options.source},
          verifies_(options.verify_bus) {}

    Capabilities capabilities() const noexcept override { return usual_capabilities(); }

    std::size_t size_of(const Event& event) const noexcept override {
        return entry_size_bound(event, style_);
    }

  private:
    enum Step { send, look };

    std::optional<Outcome> encode(Exchange& exchange) override {
        const std::string name = name_of(exchange);
        if (std::optional<Outcome> outcome = check_name(exchange, name))
            return outcome;
        // A batch that cannot be sent is refused whether the bus exists or not.
        if (std::optional<Outcome> outcome = make_batch(exchange, name))
            return outcome;
        if (!must_look(name)) {
            sign(exchange, "PutEvents");
            return std::nullopt;
        }
        exchange.step = look;
        exchange.content.buffer = event_bus_request(service().address_of(name));
        sign(exchange, "DescribeEventBus");
        return std::nullopt;
    }

    bool must_look(const std::string& name) const {
        if (!verifies_ || (name == "default" && service().address_of(name) == name))
            return false;
        const auto looked = looked_at_.find(name);
        return looked == looked_at_.end() || clock().now() - looked->second >= look_again;
    }

    std::optional<Outcome> make_batch(Exchange& exchange, const std::string& name) {
        const std::string bus = service().address_of(name);
        std::string& body = exchange.content.buffer;
        body = R"({"Entries":[)";
        std::size_t bytes = 0;
        for (const Event* event : exchange.batch->events) {
            if (std::optional<std::string> why = entry_.assign(*event, style_))
                return refused(exchange, std::move(*why));
            bytes += entry_.size();
            entry_.append_to(body, bus);
        }
        body += "]}";
        const std::size_t most = service().traits().max_bytes;
        if (bytes > most)
            return refused(exchange,
                           std::string(exchange.batch->events.size() == 1 ? "the entry has "
                                                                          : "the entries have ") +
                               std::to_string(bytes) + " bytes, EventBridge takes at most " +
                               std::to_string(most));
        return std::nullopt;
    }

    bool next_request(Exchange& exchange) override {
        if (exchange.step != look || exchange.status != 200)
            return false;
        const std::string name = name_of(exchange);
        if (looked_at_.size() >= max_known_buses)
            looked_at_.clear();
        looked_at_[name] = clock().now();
        exchange.step = send;
        make_batch(exchange, name);  // it can be sent: make_batch() was called before
        sign(exchange, "PutEvents");
        return true;
    }

    Outcome judge(const Exchange& exchange) override {
        if (exchange.step == look)
            return judge_look(exchange);
        if (exchange.status == 200)
            return judge_entries(exchange, parse_ordered_answer(exchange.body, eventbridge_results,
                                                                exchange.batch->events.size()));
        Outcome outcome = judge_failure(exchange);
        if (outcome.fate == Fate::unavailable)
            looked_at_.erase(name_of(exchange));
        return outcome;
    }

    // No event has been sent yet.
    Outcome judge_look(const Exchange& exchange) {
        Outcome outcome = judge_look_up_failure(exchange);
        if (service().failure_in(exchange.body).code == "AccessDeniedException")
            outcome.error +=
                " (the sink looks whether the bus exists; allow events:DescribeEventBus, "
                "or set the option verify_bus)";
        return outcome;
    }

    const EntryStyle style_;
    const bool verifies_;
    EventBridgeEntry entry_;                             // scratch space
    std::unordered_map<std::string, Micros> looked_at_;  // by name
};

}  // namespace

std::unique_ptr<Sink> make_eventbridge_sink(const AwsSinkOptions& options, const Clock& clock) {
    return std::make_unique<EventBridgeSink>(options, clock);
}

}  // namespace outbox
