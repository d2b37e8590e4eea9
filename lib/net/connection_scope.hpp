// What a connection that could not be had says: of this one, or of the destination.
#pragma once

#include <curl/curl.h>

#include "core/sink.hpp"

namespace outbox {

// Names and certificates are the same for the next connection; hosts behind one name are not.
inline Scope scope_of(CURLcode result) noexcept {
    switch (result) {
        case CURLE_COULDNT_CONNECT:
        case CURLE_OPERATION_TIMEDOUT:
        case CURLE_SEND_ERROR:
        case CURLE_RECV_ERROR:
        case CURLE_GOT_NOTHING:
            return Scope::connection;
        default:
            return Scope::destination;
    }
}

}  // namespace outbox
