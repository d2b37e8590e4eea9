// What can go wrong, as exceptions.
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace inbox {

// The database refused a statement. `sqlstate` has five characters; 08006 when the connection is
// lost.
class DatabaseError : public std::runtime_error {
  public:
    DatabaseError(std::string sqlstate, const std::string& message)
        : std::runtime_error(message), sqlstate_(std::move(sqlstate)) {}
    const std::string& sqlstate() const noexcept { return sqlstate_; }

  private:
    std::string sqlstate_;
};

// The connection was lost: nothing is known of the statement that was under way.
class ConnectionLost : public DatabaseError {
  public:
    explicit ConnectionLost(const std::string& message) : DatabaseError("08006", message) {}
};

// Thrown by a handler: no further attempt will help; the event goes to the dead letters at once.
// Whatever else a handler throws counts as an attempt that failed.
class PermanentFailure : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

// Thrown by a source. Transient: it is opened again after a pause. Else the consumer ends with it.
class SourceError : public std::runtime_error {
  public:
    SourceError(const std::string& message, bool transient)
        : std::runtime_error(message), transient_(transient) {}
    bool transient() const noexcept { return transient_; }

  private:
    bool transient_;
};

}  // namespace inbox
