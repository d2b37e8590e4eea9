// The transaction of a handler. It also records the event as applied, and saves the offset.
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

// A parameter of a statement in text form, UTF-8. std::nullopt is NULL. The server converts the
// text to the type that the statement asks for. A text with a NUL byte is refused: SQLSTATE 22021.
using Parameter = std::optional<std::string>;

// Returns binary data as a parameter of type bytea, in hexadecimal form.
Parameter bytes(std::string_view data);

// The rows that a statement returned. Rows and columns are numbered from 0.
//
// Thread-safety: different threads may read the same result. Lifetime: copies share the rows. They
// stay valid after the transaction and the connection have ended.
class Result {
  public:
    // Takes over a result of libpq, which is cleared with the last copy.
    explicit Result(PGresult* result) : result_(result, PQclear) {}

    int rows() const { return PQntuples(result_.get()); }
    int columns() const { return PQnfields(result_.get()); }

    // Both throw std::out_of_range if there is no such row or column.
    bool is_null(int row, int column) const;
    // Returns the value in text form, empty if it is NULL. Valid as long as a copy of this result.
    std::string_view text(int row, int column) const;

    // Returns the number of rows that the statement inserted, updated, deleted or selected, or 0
    // for statements without such a number.
    std::int64_t affected() const;

    // The result of libpq, still owned by this object.
    PGresult* native() const { return result_.get(); }

  private:
    std::shared_ptr<PGresult> result_;
};

// Statements are prepared once per connection, under a name made from their text: use parameters
// instead of writing values into the text. At most 200 different texts are kept prepared.
//
// Thread-safety: only the thread that runs the handler may use it. Lifetime: until the handler
// returns. Do not keep a reference.
class Transaction {
  public:
    virtual ~Transaction() = default;

    // Runs one statement, with $1, $2, ... for the parameters, and waits for its result. Statements
    // queued before run first.
    //
    // Throws DatabaseError if the server refuses this statement or a queued one, and ConnectionLost
    // if the connection was lost. After either the transaction accepts no more statements: let the
    // exception leave the handler. The event is then rolled back and tried again.
    virtual Result execute(const std::string& statement,
                           const std::vector<Parameter>& parameters = {}) = 0;

    // Sends one statement without waiting for its result, which is discarded. This saves a round
    // trip, so prefer it if nothing depends on the result. If the server refuses the statement, the
    // event fails after the handler has returned, or in the next execute(). Throws ConnectionLost
    // if the connection was lost.
    virtual void queue(const std::string& statement,
                       const std::vector<Parameter>& parameters = {}) = 0;

    // Queues inbox.apply() or inbox.remove(): writes or deletes a row of a projection, unless the
    // projection has a newer version of the row.
    //
    //   projection      name of a table, which may be qualified; quote it as in SQL
    //   key_columns     columns of its primary key or of a unique index
    //   version_column  column of type bigint with the version of the row
    //   row_json        a JSON object with a member for each column; for remove(): key and version
    void apply(const std::string& projection, const std::vector<std::string>& key_columns,
               const std::string& version_column, const std::string& row_json);
    void remove(const std::string& projection, const std::vector<std::string>& key_columns,
                const std::string& version_column, const std::string& row_json);

    // Returns the connection, for features that the functions above do not offer, such as COPY and
    // large objects. It is inside the transaction and not in pipeline mode, and must be left that
    // way; otherwise the event fails. It is still owned by the library. Throws as execute() does,
    // because queued statements run first.
    virtual PGconn* native() = 0;
};

}  // namespace inbox
