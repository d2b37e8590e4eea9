// Exactly once: how a relay and a sink agree on what a destination has taken.
//
// The sink puts batches into transactions of the destination. A line is a series of transactions, one
// after the other, with the numbers 1, 2, 3, and so on; the number of a transaction that was rolled
// back is used again. The destination keeps the number together with the events of the transaction,
// all or nothing. Before a transaction is committed, the relay writes into outbox.transaction which
// events it has. After a crash, the number that the destination knows tells which of these rows are
// true:
//
//   sink                                          relay
//   fences off its predecessor, asks for the
//   last numbers; is_known()                      leaves out what they say was delivered, then reads
//   sends the events, to_note()                   writes the row, waits for the disk, noted()
//   commits, reports the outcome                  settles the events; saves the cursor; removes the row
//
// A sink whose commit has no answer reports no outcome before it knows from the destination whether
// the transaction took effect.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/sink.hpp"

namespace outbox {

struct Transaction {
    std::size_t line = 0;
    std::int64_t number = 0;
    std::vector<const Batch*> batches;
};

class Transactions {
  public:
    virtual ~Transactions() = default;

    // False until the destination has said what it took from earlier relays.
    virtual bool is_known() const noexcept = 0;
    // The reason why it is not known yet; empty if there is no trouble.
    virtual const std::string& trouble() const noexcept = 0;
    // The number of the last transaction of each line that took effect; std::nullopt if the
    // destination knows of none. Once it is known, the number of lines never changes, and a number
    // changes only in step(), together with the outcomes of its batches.
    virtual std::span<const std::optional<std::int64_t>> committed() const noexcept = 0;

    // The transaction that waits to be noted; nullptr if none does.
    virtual const Transaction* to_note() const noexcept = 0;
    // Its row is on disk.
    virtual void noted() = 0;
};

}  // namespace outbox
