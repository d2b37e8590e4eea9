// How the program `consume` dies: by SIGKILL, at a point in the life of an event, when so many
// events have come there.
//
//     received     from the source; nothing is done yet
//     handled      its handler has returned; nothing is committed
//     committed    and not acknowledged
//     acked        the source has been told; whether it has told anybody else nobody knows
#pragma once

#include <atomic>
#include <csignal>
#include <memory>
#include <string>
#include <utility>

#include "inbox/source.hpp"

class Death {
  public:
    Death(std::string point, long events) : point_(std::move(point)), left_(events) {}

    void at(const char* point, std::size_t events = 1) {
        if (point_ == point && (left_ -= static_cast<long>(events)) <= 0)
            std::raise(SIGKILL);
    }

  private:
    const std::string point_;
    std::atomic<long> left_;
};

// Does what another does, and dies at the points that lie in a source.
class MortalSource final : public inbox::Source {
  public:
    MortalSource(std::unique_ptr<inbox::Source> source, Death& death)
        : source_(std::move(source)), death_(death) {
        source_->set_log([this](inbox::Level l, const std::string& m) { log(l, m); });
    }

    std::string subscription() const override { return source_->subscription(); }
    std::string describe() const override { return source_->describe(); }
    void open() override { source_->open(); }
    std::vector<inbox::Delivery> receive(std::size_t max_messages,
                                         std::chrono::milliseconds wait) override {
        std::vector<inbox::Delivery> deliveries = source_->receive(max_messages, wait);
        death_.at("received", deliveries.size());
        return deliveries;
    }
    void ack(std::span<const inbox::Delivery> deliveries) override {
        death_.at("committed", deliveries.size());
        source_->ack(deliveries);
        death_.at("acked", deliveries.size());
    }
    void nack(std::span<const inbox::Delivery> deliveries) override { source_->nack(deliveries); }
    std::vector<inbox::Position> positions(
        std::span<const inbox::Delivery* const> deliveries) override {
        return source_->positions(deliveries);
    }
    std::vector<inbox::Position> moved_positions() override { return source_->moved_positions(); }
    std::vector<inbox::Gap> gaps() override { return source_->gaps(); }
    void set_positions(inbox::LoadPositions load) override {
        source_->set_positions(std::move(load));
    }
    std::function<bool(const inbox::Delivery&)> recall() override { return source_->recall(); }
    void seek(inbox::Time to) override { source_->seek(to); }
    void interrupt() noexcept override { source_->interrupt(); }
    void close(std::chrono::milliseconds limit) noexcept override { source_->close(limit); }

  private:
    std::unique_ptr<inbox::Source> source_;
    Death& death_;
};
