// What a handler writes with: the transaction in which its event is remembered and its offset
// saved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <libpq-fe.h>

namespace inbox {

// A parameter in text form; no value is NULL. Binary data: bytes().
using Parameter = std::optional<std::string>;
Parameter bytes(std::string_view data);  // as bytea, in hex

// The rows of one statement. Row and column count from 0; std::out_of_range beyond.
class Result {
  public:
    explicit Result(PGresult* result) : result_(result, PQclear) {}
    int rows() const { return PQntuples(result_.get()); }
    int columns() const { return PQnfields(result_.get()); }
    bool is_null(int row, int column) const;
    std::string_view text(int row, int column) const;  // empty for NULL
    std::int64_t affected() const;                     // rows that were inserted, updated, deleted
    PGresult* native() const { return result_.get(); }

  private:
    std::shared_ptr<PGresult> result_;
};

// Statements are prepared once per connection. They fail with DatabaseError, or ConnectionLost;
// after either the transaction can do nothing more, and the handler should let the exception pass.
class Transaction {
  public:
    virtual ~Transaction() = default;

    // One statement, with $1, $2, ... for the parameters. Waits for the answer.
    virtual Result execute(const std::string& statement,
                           const std::vector<Parameter>& parameters = {}) = 0;

    // Sends a statement without waiting: what it returns is dropped. If it fails, so does the
    // event, after the handler has returned. Much faster when nothing depends on the answer.
    virtual void queue(const std::string& statement,
                       const std::vector<Parameter>& parameters = {}) = 0;

    // inbox.apply() and inbox.remove(), queued: a row of a projection, as JSON, unless a newer
    // version of it is there. `projection` may be qualified.
    void apply(const std::string& projection, const std::vector<std::string>& key_columns,
               const std::string& version_column, const std::string& row_json);
    void remove(const std::string& projection, const std::vector<std::string>& key_columns,
                const std::string& version_column, const std::string& row_json);

    // The connection, for what is not above (COPY, large objects). In the transaction, not in
    // pipeline mode; it must be left so.
    virtual PGconn* native() = 0;
};

}  // namespace inbox
