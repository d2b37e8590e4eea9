// A libpq connection for the programs of the benchmarks. Any error ends the program with a message,
// because a figure with errors means nothing.
#pragma once

#include <libpq-fe.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string_view>
#include <vector>

namespace outbox::bench {

[[noreturn]] inline void die(const char* what, const char* why) {
    std::fprintf(stderr, "%s: %s\n", what, why);
    std::exit(1);
}

struct ClearResult {
    void operator()(PGresult* result) const { PQclear(result); }
};
using Rows = std::unique_ptr<PGresult, ClearResult>;

inline std::string_view field(const Rows& rows, int row, int column) {
    return {PQgetvalue(rows.get(), row, column),
            static_cast<std::size_t>(PQgetlength(rows.get(), row, column))};
}

// A parameter: a text, bytes in the binary form of its type, or null.
struct Parameter {
    const char* data;
    int size;
    int format;

    static Parameter text(const char* value) { return {value, 0, 0}; }
    static Parameter binary(std::string_view bytes) {
        return {bytes.data(), static_cast<int>(bytes.size()), 1};
    }
};

class Connection {
  public:
    explicit Connection(const char* conninfo) : connection_(PQconnectdb(conninfo)) {
        if (PQstatus(connection_) != CONNECTION_OK)
            die("could not connect", PQerrorMessage(connection_));
    }
    ~Connection() { PQfinish(connection_); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    PGconn* get() const { return connection_; }

    Rows execute(const char* statement) {
        return checked(PQexec(connection_, statement), statement);
    }

    void prepare(const char* name, const char* statement) {
        checked(PQprepare(connection_, name, statement, 0, nullptr), statement);
    }

    // Results are in binary format.
    Rows execute_prepared(const char* name, std::initializer_list<Parameter> parameters) {
        unpack(parameters);
        return checked(PQexecPrepared(connection_, name, static_cast<int>(parameters.size()),
                                      values_.data(), sizes_.data(), formats_.data(), 1),
                       name);
    }

  private:
    Rows checked(PGresult* result, const char* what) {
        const ExecStatusType status = PQresultStatus(result);
        if (status != PGRES_COMMAND_OK && status != PGRES_TUPLES_OK)
            die(what, PQerrorMessage(connection_));
        return Rows(result);
    }

    void unpack(std::initializer_list<Parameter> parameters) {
        values_.clear();
        sizes_.clear();
        formats_.clear();
        for (const Parameter& parameter : parameters) {
            values_.push_back(parameter.data);
            sizes_.push_back(parameter.size);
            formats_.push_back(parameter.format);
        }
    }

    PGconn* connection_;
    std::vector<const char*> values_;
    std::vector<int> sizes_, formats_;
};

// Big-endian integers, as in the binary format of PostgreSQL's types.
template <class Buffer>
void append_number(Buffer& to, std::uint64_t value, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
        to.push_back(static_cast<char>(value >> shift));
}

}  // namespace outbox::bench
