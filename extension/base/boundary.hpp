// Between server code, where errors jump, and the C++ core, where errors are values or exceptions.
//
// call_core() runs C++ code on behalf of server code. Whatever goes wrong in there is copied into a
// plain struct; only after every C++ frame is gone does raise() turn it into an ereport(). An
// exception must never leave into C frames (std::terminate takes the whole server down), and an
// ereport() must never jump over C++ objects (their destructors would not run).
//
// The other direction does not exist: the core cannot call the server. A frame of ours that calls
// the server holds no object with a destructor; objects that must live longer belong to the
// process.
#pragma once

#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string_view>
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

// snprintf is a macro of the server's here.
template <std::size_t size>
void copy_text(char (&to)[size], std::string_view from) noexcept {
    const std::size_t length = from.size() < size ? from.size() : size - 1;
    std::memcpy(to, from.data(), length);
    to[length] = '\0';
}

inline void copy_error(CoreError& to, const Error& from) noexcept {
    to.failed = true;
    to.kind = from.kind;
    copy_text(to.message, from.message);
    copy_text(to.detail, from.detail);
    copy_text(to.hint, from.hint);
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
        copy_text(result.message, "out of memory");
    } catch (const std::exception& exception) {
        result.failed = true;
        copy_text(result.message, exception.what());
    } catch (...) {
        result.failed = true;
        copy_text(result.message, "unknown exception");
    }
    return result;
}

// ereport(ERROR) with the SQLSTATE that fits.
[[noreturn]] void raise(const CoreError& error);

// Runs `body` as call_core() does, and raises what went wrong in it.
template <class Body>
void run_core(const Body& body) {
    static_assert(std::is_trivially_destructible_v<std::decay_t<Body>>,
                  "an ereport() jumps over it");
    const CoreError error = call_core(body);
    if (error.failed)
        raise(error);
}

}  // namespace outbox
