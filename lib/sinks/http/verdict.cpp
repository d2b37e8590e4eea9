#include "sinks/http/verdict.hpp"

namespace outbox {

// All events have the same URL and credentials, so an answer about these says nothing about the
// event. Server errors and lost answers may have either cause (RFC 9110, section 15).
Verdict verdict_of(const Exchange& exchange) {
    const int status = exchange.status;
    if (status == 0)
        return {exchange.reached ? Fate::failed : Fate::unavailable, false, exchange.scope};
    if (status >= 200 && status < 300)
        return {Fate::confirmed};
    switch (status) {
        case 413:  // too large
        case 415:  // of a type that it does not accept
        case 431:  // its headers are too large
            return {Fate::refused, true};
        case 429:
        case 503:
            return {Fate::throttled};
        case 404:
        case 405:
        case gone_status:
            return {Fate::unavailable, false, Scope::lane};
        case 401:
        case 402:
        case 403:
        case 407:
        case 421:
        case 426:
            return {Fate::unavailable};
        case 408:
        case 425:
            return {Fate::failed};
        default:
            if (status >= 500)
                return {Fate::failed};
            return {status >= 400 ? Fate::refused : Fate::unavailable};
    }
}

}  // namespace outbox
