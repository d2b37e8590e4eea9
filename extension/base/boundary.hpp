// The boundary between server code, where errors jump, and the C++ core, where errors are values or
// exceptions.
//
// call_core() runs C++ code on behalf of server code. It copies any error into a plain struct, and
// raise() turns that into an ereport() when no C++ frame is left. An exception must never leave
// into C frames, because std::terminate takes the whole server down. An ereport() must never jump
// over C++ objects, because their destructors would not run.
//
// The core never calls the server. A function of ours that calls the server holds no object with a
// destructor; objects that must live longer belong to the process.
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

// Here snprintf is a macro of the server.
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

// `body` returns void or std::optional<Error>.
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

// Calls ereport(ERROR) with the SQLSTATE of the error.
[[noreturn]] void raise(const CoreError& error);

// Runs `body` as call_core() does, and raises its error if it has one.
template <class Body>
void run_core(const Body& body) {
    static_assert(std::is_trivially_destructible_v<std::decay_t<Body>>,
                  "an ereport() jumps over it");
    const CoreError error = call_core(body);
    if (error.failed)
        raise(error);
}

}  // namespace outbox
