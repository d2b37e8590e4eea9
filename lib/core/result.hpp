// Errors as values: the core and the sinks return them instead of throwing.
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>
#include <variant>

namespace outbox {

enum class ErrorKind {
    invalid_option,  // the option does not exist here
    invalid_value,   // the option exists, but cannot have this value
    not_allowed,     // the role lacks the privilege
    unavailable,     // the destination cannot be reached, or refuses for now
    internal,        // out of memory and the like
};

// In PostgreSQL's style: `message` says what happened, `detail` gives facts, `hint` gives advice.
struct Error {
    ErrorKind kind = ErrorKind::internal;
    std::string message;
    std::string detail{};
    std::string hint{};
};

template <class T>
class [[nodiscard]] Result {
  public:
    Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
    Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

    bool ok() const { return state_.index() == 0; }
    explicit operator bool() const { return ok(); }
    T& value() {
        assert(ok());
        return std::get<0>(state_);
    }
    const T& value() const {
        assert(ok());
        return std::get<0>(state_);
    }
    const Error& error() const {
        assert(!ok());
        return std::get<1>(state_);
    }

  private:
    std::variant<T, Error> state_;
};

}  // namespace outbox
