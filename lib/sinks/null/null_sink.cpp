#include "sinks/null/null_sink.hpp"

namespace outbox {

namespace {

class NullSink final : public Sink {
  public:
    NullSink() { waiting_.reserve(capacity.max_batches); }

    Capabilities capabilities() const noexcept override { return capacity; }
    int descriptor() const noexcept override { return -1; }
    Micros deadline() const noexcept override { return waiting_.empty() ? never : 0; }
    void submit(Batch& batch) override { waiting_.push_back(&batch); }
    void step(Micros, std::vector<Outcome>& outcomes) override {
        for (Batch* batch : waiting_)
            outcomes.push_back({.batch = batch});
        waiting_.clear();
    }

  private:
    static constexpr Capabilities capacity{
        .max_batch_events = 1000, .max_batch_bytes = SIZE_MAX, .max_batches = 4, .ordered = true};
    std::vector<Batch*> waiting_;
};

}  // namespace

std::unique_ptr<Sink> create_null_sink() {
    return std::make_unique<NullSink>();
}

}  // namespace outbox
