// The Transaction that handlers see.
#pragma once

#include <exception>

#include "connection.hpp"

namespace inbox {

class HandlerTransaction final : public Transaction {
  public:
    explicit HandlerTransaction(Connection& connection) : connection_(connection) {}

    Result execute(const std::string& statement, const std::vector<Parameter>& parameters) override;
    void queue(const std::string& statement, const std::vector<Parameter>& parameters) override;
    PGconn* native() override;

    // Throws an exception that the handler caught and did not rethrow. Throws if the handler ended
    // the transaction.
    void check() const;

  private:
    void expect_changes(const std::string& statement);

    Connection& connection_;
    bool native_ = false;
    std::exception_ptr failure_;
};

}  // namespace inbox
