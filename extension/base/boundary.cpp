#include "extension/base/boundary.hpp"

#include "extension/base/pg.hpp"

namespace outbox {

static int sqlstate_of(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::invalid_option:
            return ERRCODE_FDW_INVALID_OPTION_NAME;
        case ErrorKind::invalid_value:
            return ERRCODE_INVALID_PARAMETER_VALUE;
        case ErrorKind::not_allowed:
            return ERRCODE_INSUFFICIENT_PRIVILEGE;
        case ErrorKind::unavailable:
            return ERRCODE_CONNECTION_EXCEPTION;
        case ErrorKind::internal:
            break;
    }
    return ERRCODE_INTERNAL_ERROR;
}

void raise(const CoreError& error) {
    ereport(ERROR, (errcode(sqlstate_of(error.kind)), errmsg("%s", error.message),
                    error.detail[0] != '\0' ? errdetail("%s", error.detail) : 0,
                    error.hint[0] != '\0' ? errhint("%s", error.hint) : 0));
    pg_unreachable();
}

}  // namespace outbox
