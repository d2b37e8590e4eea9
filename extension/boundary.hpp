// Between server code, where errors jump, and the C++ core, where errors are values or exceptions.
//
// call_core() runs C++ code on behalf of server code. Whatever goes wrong in there is copied into a
// plain struct; only after every C++ frame is gone does raise() turn it into an ereport(). An
// exception must never leave into C frames (std::terminate takes the whole server down), and an
// ereport() must never jump over C++ objects (their destructors would not run).
//
// The other direction does not exist: the core cannot call the server. A frame of ours that calls
// the server holds no object with a destructor; objects that must live longer belong to the process.
#pragma once

#include <cstdio>
#include <exception>
#include <new>
#include <optional>
#include <type_traits>

#include "core/result.hpp"

namespace outbox {

// An Error without a destructor.
struct CoreError {
    bool failed = false;
    ErrorKind kind = ErrorKind::internal;
    char message[512] = "";
    char detail[512] = "";
    char hint[1024] = "";
};
static_assert(std::is_trivially_destructible_v<CoreError>);

inline void copy_error(CoreError& to, const Error& from) noexcept {
    to.failed = true;
    to.kind = from.kind;
    (std::snprintf)(to.message, sizeof to.message, "%s", from.message.c_str());
    (std::snprintf)(to.detail, sizeof to.detail, "%s", from.detail.c_str());
    (std::snprintf)(to.hint, sizeof to.hint, "%s", from.hint.c_str());
}

// `body` returns nothing, or an std::optional<Error>.
template <class Body>
[[nodiscard]] CoreError call_core(Body&& body) noexcept {
    CoreError result;
    try {
        if constexpr (std::is_void_v<std::invoke_result_t<Body>>) {
            body();
        } else {
            const std::optional<Error> error = body();
            if (error)
                copy_error(result, *error);
        }
    } catch (const std::bad_alloc&) {
        result.failed = true;
        (std::snprintf)(result.message, sizeof result.message, "out of memory");
    } catch (const std::exception& exception) {
        result.failed = true;
        (std::snprintf)(result.message, sizeof result.message, "%s", exception.what());
    } catch (...) {
        result.failed = true;
        (std::snprintf)(result.message, sizeof result.message, "unknown exception");
    }
    return result;
}

// ereport(ERROR) with the SQLSTATE that fits.
[[noreturn]] void raise(const CoreError& error);

}  // namespace outbox
