#include "sinks/clean_sink.hpp"

#include "core/secrets.hpp"
#include "core/text.hpp"
#include "core/transactions.hpp"

namespace outbox {

namespace {

class Cleaner {
  public:
    explicit Cleaner(const Destination& destination) : secrets_(destination) {}

    void clean(std::string& text) const {
        if (text.empty())
            return;
        secrets_.conceal(text);
        text = printable(text);
    }

  private:
    Secrets secrets_;
};

class CleanTransactions final : public Transactions {
  public:
    CleanTransactions(Transactions& transactions, const Cleaner& cleaner)
        : transactions_(transactions), cleaner_(cleaner) {}

    bool is_known() const noexcept override { return transactions_.is_known(); }
    const std::string& trouble() const noexcept override { return trouble_; }
    std::span<const std::optional<std::int64_t>> committed() const noexcept override {
        return transactions_.committed();
    }
    const Transaction* to_note() const noexcept override { return transactions_.to_note(); }
    void noted() override { transactions_.noted(); }

    void clean_trouble() {
        trouble_ = transactions_.trouble();
        cleaner_.clean(trouble_);
    }

  private:
    Transactions& transactions_;
    const Cleaner& cleaner_;
    std::string trouble_;
};

class CleanSink final : public Sink {
  public:
    CleanSink(std::unique_ptr<Sink> sink, const Destination& destination)
        : sink_(std::move(sink)), cleaner_(destination) {
        if (Transactions* transactions = sink_->transactions())
            transactions_.emplace(*transactions, cleaner_);
    }

    Capabilities capabilities() const noexcept override { return sink_->capabilities(); }
    int descriptor() const noexcept override { return sink_->descriptor(); }
    Micros deadline() const noexcept override { return sink_->deadline(); }
    std::size_t size_of(const Event& event) const noexcept override {
        return sink_->size_of(event);
    }
    void lane_of(const Event& event, std::string& lane) const override {
        sink_->lane_of(event, lane);
    }
    void submit(Batch& batch) override { sink_->submit(batch); }
    Transactions* transactions() noexcept override {
        return transactions_ ? &*transactions_ : nullptr;
    }

    // The errors in its questions are clean already.
    Endpoints* endpoints() noexcept override { return sink_->endpoints(); }

    void step(Micros now, std::vector<Outcome>& outcomes) override {
        const std::size_t known = outcomes.size();
        sink_->step(now, outcomes);
        for (std::size_t i = known; i < outcomes.size(); i++) {
            cleaner_.clean(outcomes[i].error);
            for (EventOutcome& own : outcomes[i].of_events)
                cleaner_.clean(own.error);
            for (std::string& id : outcomes[i].message_ids)  // receipts have them
                cleaner_.clean(id);
        }
        if (transactions_)
            transactions_->clean_trouble();
    }

    bool report(SinkReport& report) override {
        const bool has_one = sink_->report(report);
        for (std::string& line : report.lines)
            cleaner_.clean(line);
        cleaner_.clean(report.why_again);
        return has_one;
    }

  private:
    std::unique_ptr<Sink> sink_;
    Cleaner cleaner_;
    std::optional<CleanTransactions> transactions_;
};

class CleanCheck final : public Check {
  public:
    CleanCheck(std::unique_ptr<Check> check, const Destination& destination)
        : check_(std::move(check)), cleaner_(destination) {}

    int descriptor() const noexcept override { return check_->descriptor(); }
    Micros deadline() const noexcept override { return check_->deadline(); }

    bool step(Micros now, std::vector<Finding>& findings) override {
        const std::size_t known = findings.size();
        const bool done = check_->step(now, findings);
        for (std::size_t i = known; i < findings.size(); i++) {
            cleaner_.clean(findings[i].subject);
            cleaner_.clean(findings[i].detail);
        }
        return done;
    }

  private:
    std::unique_ptr<Check> check_;
    Cleaner cleaner_;
};

}  // namespace

std::unique_ptr<Sink> clean(std::unique_ptr<Sink> sink, const Destination& destination) {
    return std::make_unique<CleanSink>(std::move(sink), destination);
}

std::unique_ptr<Check> clean(std::unique_ptr<Check> check, const Destination& destination) {
    return std::make_unique<CleanCheck>(std::move(check), destination);
}

}  // namespace outbox
