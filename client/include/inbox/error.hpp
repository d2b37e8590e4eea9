// Exceptions that the library throws, and those that handlers and sources throw to the library.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace inbox {

// The server refused a statement. what() has the server's message, with DETAIL and HINT if there
// are any. The transaction cannot be used any more.
class DatabaseError : public std::runtime_error {
  public:
    DatabaseError(std::string sqlstate, const std::string& message)
        : std::runtime_error(message), sqlstate_(std::move(sqlstate)) {}

    // Returns the five characters of the SQLSTATE, such as "23505" for a unique violation; see
    // appendix A of the PostgreSQL manual.
    const std::string& sqlstate() const noexcept { return sqlstate_; }

  private:
    std::string sqlstate_;
};

// The connection was lost, with SQLSTATE 08006. It is not known whether the statement that was
// running took effect.
class ConnectionLost : public DatabaseError {
  public:
    explicit ConnectionLost(const std::string& message) : DatabaseError("08006", message) {}
};

// Thrown by a handler if no further attempt can succeed. The event becomes a dead letter at once,
// with what() as its reason. Every other exception counts as a failed attempt.
class PermanentFailure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Thrown by a source. If it is transient, the consumer opens the source again after a pause.
// Otherwise Consumer::run() ends with this exception.
class SourceError : public std::runtime_error {
  public:
    SourceError(const std::string& message, bool transient)
        : std::runtime_error(message), transient_(transient) {}
    bool transient() const noexcept { return transient_; }

  private:
    bool transient_;
};

}  // namespace inbox
