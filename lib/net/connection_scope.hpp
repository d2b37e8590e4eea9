// Tells whether a failed connection concerns this connection only or the whole destination.
#pragma once

#include <curl/curl.h>

#include "core/sink.hpp"

namespace outbox {

// Another connection meets the same name and certificate, but may meet another host behind the
// name.
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
