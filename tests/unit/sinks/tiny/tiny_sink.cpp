// The module: confirms events at once, with their topic and a prefix as message ids.
#include "core/check.hpp"
#include "core/sink.hpp"
#include "sinks/module_entry.hpp"
#include "unit/sinks/tiny/options.hpp"

namespace outbox {
namespace {

class TinySink final : public Sink {
  public:
    explicit TinySink(TinyOptions options) : options_(std::move(options)) {}

    Capabilities capabilities() const noexcept override {
        return {.max_batch_events = 10, .ordered = true};
    }
    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return submitted_.empty() ? never : 0; }

    void submit(Batch& batch) override { submitted_.push_back(&batch); }

    void step(Micros, std::vector<Outcome>& outcomes) override {
        for (Batch* batch : submitted_) {
            Outcome outcome{.batch = batch};
            for (const Event* event : batch->events)
                outcome.message_ids.push_back(options_.prefix + std::string(event->topic));
            outcomes.push_back(std::move(outcome));
        }
        submitted_.clear();
    }

  private:
    const TinyOptions options_;
    std::vector<Batch*> submitted_;
};

class TinyCheck final : public Check {
  public:
    explicit TinyCheck(TinyOptions options) : options_(std::move(options)) {}

    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return 0; }

    bool step(Micros, std::vector<Finding>& findings) override {
        findings.push_back({"prefix", true, options_.prefix});
        return true;
    }

  private:
    const TinyOptions options_;
};

}  // namespace
}  // namespace outbox

OUTBOX_MODULE_ENTRY outbox::Sink* OUTBOX_CREATE_SINK(const outbox::SinkContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Sink* {
        return new outbox::TinySink(outbox::tiny_options(context.destination));
    });
}

OUTBOX_MODULE_ENTRY outbox::Check* OUTBOX_CREATE_CHECK(
    const outbox::CheckContext& context) noexcept {
    return outbox::made_by([&]() -> outbox::Check* {
        return new outbox::TinyCheck(outbox::tiny_options(context.destination));
    });
}
