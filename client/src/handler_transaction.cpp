#include "handler_transaction.hpp"

#include "session_use.hpp"

namespace inbox {

static void check_open(bool in_transaction) {
    if (!in_transaction)
        throw StatementError(Whose::handler, "25P01", "the handler ended the transaction");
}

void HandlerTransaction::expect_changes(const std::string& statement) {
    if (may_change_session(statement))
        connection_.expect_changes();
}

Result HandlerTransaction::execute(const std::string& statement,
                                   const std::vector<Parameter>& parameters) {
    try {
        expect_changes(statement);
        Result result = connection_.run(Whose::handler, statement, parameters);
        check_open(connection_.in_transaction());
        return result;
    } catch (const DatabaseError&) {
        failure_ = std::current_exception();
        throw;
    }
}

void HandlerTransaction::queue(const std::string& statement,
                               const std::vector<Parameter>& parameters) {
    try {
        expect_changes(statement);
        connection_.send(Whose::handler, statement, parameters);
    } catch (const DatabaseError&) {
        failure_ = std::current_exception();
        throw;
    }
}

PGconn* HandlerTransaction::native() {
    try {
        native_ = true;
        connection_.expect_changes();
        return connection_.plain();
    } catch (const DatabaseError&) {
        failure_ = std::current_exception();
        throw;
    }
}

void HandlerTransaction::check() const {
    if (failure_)
        std::rethrow_exception(failure_);
    if (native_)
        connection_.check_plain();
}

}  // namespace inbox
