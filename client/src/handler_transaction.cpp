#include "handler_transaction.hpp"

namespace inbox {

static void check_open(bool in_transaction) {
    if (!in_transaction)
        throw StatementError(Whose::handler, "25P01", "the handler ended the transaction");
}

Result HandlerTransaction::execute(const std::string& statement,
                                   const std::vector<Parameter>& parameters) {
    try {
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
    connection_.send(Whose::handler, statement, parameters);
}

PGconn* HandlerTransaction::native() {
    try {
        native_ = true;
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
