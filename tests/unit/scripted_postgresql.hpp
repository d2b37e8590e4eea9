// A PostgreSQL server on loopback that does what a test tells it. It speaks the frontend/backend
// protocol, version 3, and knows no SQL but the statements that begin and end transactions.
//
// Message flow and formats are those of the PostgreSQL manual, chapter "Frontend/Backend Protocol":
// sections "Message Flow" (start-up, simple query, extended query, pipelining), "Message Formats"
// and "Error and Notice Message Fields".
//
//   * Everybody may log in. A statement is answered by the script that was given last and whose text
//     is in it; without a script, by no rows.
//   * It keeps what a transaction has done, with savepoints. What committed is in committed(), once
//     for each time that it took effect; what was rolled back is not.
//   * A script may refuse a statement, or end the connection before or after it took effect.
//     hold() leaves statements without an answer until let_go().
//
// A thread accepts, and each connection has one of its own, in which scripts are called. All state
// that a test can see is under mutex_, which is not held while a script runs.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "unit/loopback.hpp"

namespace outbox {

class ScriptedPostgresql {
  public:
    using Value = std::optional<std::string>;

    struct Statement {
        int connection = 0;  // counted from 1
        std::string text;
        std::vector<Value> parameters{};  // as they came, in text or binary form

        bool has(std::string_view part) const { return text.find(part) != std::string::npos; }
    };

    enum class End {
        none,
        before,
        after
    };  // the connection ends; after: the statement took effect

    struct Answer {
        std::vector<std::string> columns{};
        std::vector<std::vector<Value>> rows{};
        std::string sqlstate{};  // not empty: it is refused
        std::string message = "scripted";
        std::string tag{};  // of CommandComplete, instead of the usual one
        End end = End::none;
        std::string notice{};  // comes first
        bool is_copy = false;  // asks for rows, as COPY FROM STDIN does
    };

    using Script = std::function<Answer(const Statement&)>;

    static Answer value(std::string text) { return {.columns = {"value"}, .rows = {{text}}}; }
    static Answer error(std::string sqlstate, std::string message = "scripted") {
        return {.sqlstate = std::move(sqlstate), .message = std::move(message)};
    }
    // As a server that is being shut down, or an administrator who ends the connection.
    static Answer fatal(std::string sqlstate) {
        return {.sqlstate = std::move(sqlstate), .end = End::before};
    }
    static Answer lost(End end) { return {.end = end}; }

    ScriptedPostgresql() {
        listener_ = listen_on_loopback(port_);
        acceptor_ = std::thread([this] { accept_all(); });
    }

    ~ScriptedPostgresql() {
        {
            const std::lock_guard lock(mutex_);
            stopping_ = true;
            shutdown(listener_, SHUT_RDWR);
            for (const Session& session : sessions_)
                shutdown(session.socket, SHUT_RDWR);
            changed_.notify_all();
        }
        acceptor_.join();
        for (Session& session : sessions_) {
            session.thread.join();
            close(session.socket);
        }
        close(listener_);
    }

    int port() const { return port_; }
    std::string conninfo() const {
        return "host=127.0.0.1 port=" + std::to_string(port_) +
               " user=u dbname=d sslmode=disable gssencmode=disable";
    }

    // -- What it is told ---------------------------------------------------------------------------

    // How statements with this text are answered; `login` is the text of a login. `times`: then the
    // script given before is in force again.
    void on(std::string part, Script script, int times = -1) {
        add(executed_, {std::move(part), std::move(script), times});
    }
    void on(std::string part, Answer answer, int times = -1) {
        on(
            std::move(part), [answer](const Statement&) { return answer; }, times);
    }
    // The same for PREPARE, which by itself only fails if it is told to.
    void on_prepare(std::string part, Answer answer, int times = -1) {
        add(prepared_, {std::move(part), [answer](const Statement&) { return answer; }, times});
    }
    // Statements with this text get no answer, and no effect, until let_go(): those of connections that
    // have sent one with the text `after`.
    void hold(std::string part, std::string after = "") {
        const std::lock_guard lock(mutex_);
        held_ = std::move(part);
        held_after_ = std::move(after);
    }
    void let_go() {
        const std::lock_guard lock(mutex_);
        held_.clear();
        changed_.notify_all();
    }
    // As a pooler that hands the client another connection.
    void forget_prepared() {
        const std::lock_guard lock(mutex_);
        for (Session& session : sessions_)
            session.prepared.clear();
    }
    // As a network that fails, while nothing is asked.
    void drop_connections() {
        const std::lock_guard lock(mutex_);
        for (const Session& session : sessions_)
            shutdown(session.socket, SHUT_RDWR);
    }

    // -- What it has seen --------------------------------------------------------------------------

    // Executed, or refused, or held; in order.
    std::vector<Statement> received(std::string_view part = "") const {
        const std::lock_guard lock(mutex_);
        return with(received_, part);
    }
    std::size_t count(std::string_view part) const { return received(part).size(); }
    // What took effect.
    std::vector<Statement> committed(std::string_view part = "") const {
        const std::lock_guard lock(mutex_);
        return with(committed_, part);
    }
    // The same, and what the connection's transaction has done so far: what a statement of it sees.
    std::vector<Statement> visible_to(int connection, std::string_view part) const {
        const std::lock_guard lock(mutex_);
        std::vector<Statement> all = with(committed_, part);
        for (const Session& session : sessions_)
            if (session.number == connection)
                std::ranges::copy(with(session.done, part), std::back_inserter(all));
        return all;
    }
    int connections() const {
        const std::lock_guard lock(mutex_);
        return static_cast<int>(sessions_.size());
    }
    // Synchronization points: how often a client waits for the server, if it pipelines.
    int synchronized() const {
        const std::lock_guard lock(mutex_);
        return synchronized_;
    }
    int prepared() const {
        const std::lock_guard lock(mutex_);
        return prepared_count_;
    }
    // Waits for this many statements with the text: until they are received, or have taken effect.
    void wait_for(std::string_view part, std::size_t count = 1) const {
        wait_for(received_, part, count);
    }
    void wait_for_commit(std::string_view part, std::size_t count = 1) const {
        wait_for(committed_, part, count);
    }

  private:
    // Takes a message apart.
    struct Reader {
        std::string_view rest;

        std::string bytes(std::size_t size) {
            const std::string taken(rest.substr(0, size));
            rest.remove_prefix(std::min(size, rest.size()));
            return taken;
        }
        std::uint32_t int32() {
            std::uint32_t number = 0;
            for (const unsigned char byte : bytes(4))
                number = number << 8 | byte;
            return number;
        }
        std::uint16_t int16() {
            std::uint16_t number = 0;
            for (const unsigned char byte : bytes(2))
                number = static_cast<std::uint16_t>(number << 8 | byte);
            return number;
        }
        std::string text() {
            const std::string text = bytes(rest.find('\0'));
            bytes(1);
            return text;
        }
        Value value() {
            const auto size = static_cast<std::int32_t>(int32());
            return size < 0 ? Value() : bytes(static_cast<std::size_t>(size));
        }
    };

    struct Rule {
        std::string part;
        Script script;
        int times;
    };

    struct Session {
        int number = 0;
        int socket = -1;
        std::thread thread{};
        char state = 'I';       // of ReadyForQuery: I idle, T in a transaction, E in a failed one
        bool skipping = false;  // up to Sync, after an error
        std::map<std::string, std::string> prepared{};
        Statement bound{};
        bool binary_results = false;
        bool described = false;
        std::vector<Statement> done{};          // by the transaction
        std::vector<std::size_t> savepoints{};  // the size of `done` at each
        std::string out{};                      // messages not sent yet
        bool rolled_back = false;               // by the last COMMIT
        bool is_open = true;
    };

    // ---------------------------------------------------------------------------------------------
    // Connections
    // ---------------------------------------------------------------------------------------------

    void accept_all() {
        for (;;) {
            const int socket = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            const std::lock_guard lock(mutex_);
            if (stopping_) {
                if (socket >= 0)
                    close(socket);
                return;
            }
            if (socket < 0)
                continue;
            const int one = 1;
            setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            Session& session = sessions_.emplace_back();
            session.number = static_cast<int>(sessions_.size());
            session.socket = socket;
            session.thread = std::thread([this, &session] { serve(session); });
        }
    }

    void serve(Session& session) {
        if (start_up(session))
            while (session.is_open && answer_message(session))
                flush(session);
        {  // what was not committed is rolled back
            const std::lock_guard lock(mutex_);
            session.done.clear();
        }
        flush(session);
        shutdown(session.socket, SHUT_RDWR);
    }

    static bool receive(const Session& session, char* bytes, std::size_t size) {
        return size == 0 ||
               recv(session.socket, bytes, size, MSG_WAITALL) == static_cast<ssize_t>(size);
    }

    // Reads a length, which counts itself, and what it is the length of.
    static bool receive_body(const Session& session, std::string& body) {
        std::uint32_t length = 0;
        if (!receive(session, reinterpret_cast<char*>(&length), sizeof length))
            return false;
        body.resize(ntohl(length) - sizeof length);
        return receive(session, body.data(), body.size());
    }

    static void flush(Session& session) {
        for (std::size_t at = 0; at < session.out.size();) {
            const ssize_t size = send(session.socket, session.out.data() + at,
                                      session.out.size() - at, MSG_NOSIGNAL);
            if (size <= 0)
                break;
            at += static_cast<std::size_t>(size);
        }
        session.out.clear();
    }

    // "Start-up", "SSL Session Encryption", "GSSAPI Session Encryption".
    bool start_up(Session& session) {
        static constexpr std::uint32_t protocol_3 = 3 << 16, cancel = 80877102, tls = 80877103,
                                       gssapi = 80877104;
        for (std::string body;;) {
            if (!receive_body(session, body))
                return false;
            Reader packet{body};
            const std::uint32_t code = packet.int32();
            if (code == protocol_3)
                break;
            if (code == cancel || (code != tls && code != gssapi))
                return false;
            session.out += 'N';
            flush(session);
        }
        const Answer answer = answer_to(executed_, {session.number, "login"});
        if (!answer.sqlstate.empty())
            say_error(session, answer, "FATAL");
        if (!answer.sqlstate.empty() || answer.end != End::none)
            return false;
        say(session, 'R', int32(0));  // AuthenticationOk
        for (const auto& [name, setting] : {std::pair{"server_version", "15.0"},
                                            {"server_encoding", "UTF8"},
                                            {"client_encoding", "UTF8"},
                                            {"integer_datetimes", "on"},
                                            {"standard_conforming_strings", "on"}})
            say(session, 'S', text(name) + text(setting));  // ParameterStatus
        say(session, 'K', int32(1) + int32(1));             // BackendKeyData
        say_ready(session);
        flush(session);
        return true;
    }

    // ---------------------------------------------------------------------------------------------
    // Messages of the client
    // ---------------------------------------------------------------------------------------------

    // False: the client has gone.
    bool answer_message(Session& session) {
        char type = 0;
        std::string body;
        if (!receive(session, &type, 1) || !receive_body(session, body) || type == 'X')
            return false;
        if (session.skipping && type != 'S')
            return true;
        Reader message{body};
        switch (type) {
            case 'Q':
                session.bound = {session.number, message.text()};
                session.binary_results = false;
                session.described = true;
                execute(session);
                if (!session.is_open)
                    break;
                session.skipping = false;
                end_implicit_transaction(session);
                say_ready(session);
                break;
            case 'P':
                parse(session, message);
                break;
            case 'B':
                bind_parameters(session, message);
                break;
            case 'D':  // of the portal; its answer comes with that of Execute, which follows
                session.described = true;
                break;
            case 'E':
                execute(session);
                break;
            case 'S':
                session.skipping = false;
                end_implicit_transaction(session);
                say_ready(session);
                break;
            default:  // Flush, Close: nothing is kept back, nothing is to be closed
                break;
        }
        return true;
    }

    void parse(Session& session, Reader& message) {
        const std::string name = message.text();
        const Statement statement{session.number, message.text()};
        const Answer answer = answer_to(prepared_, statement);
        if (!answer.sqlstate.empty()) {
            refuse(session, answer);
            return;
        }
        const std::lock_guard lock(mutex_);
        session.prepared[name] = statement.text;
        prepared_count_ += !name.empty();
        say(session, '1', "");  // ParseComplete
    }

    void bind_parameters(Session& session, Reader& message) {
        message.text();  // the portal
        const std::string name = message.text();
        session.bound = {session.number, {}};
        session.described = false;
        for (int formats = message.int16(); formats > 0; formats--)
            message.int16();
        for (int values = message.int16(); values > 0; values--)
            session.bound.parameters.push_back(message.value());
        const int formats = message.int16();
        session.binary_results = formats > 0 && message.int16() == 1;
        std::unique_lock lock(mutex_);
        const auto found = session.prepared.find(name);
        if (found == session.prepared.end()) {
            lock.unlock();
            refuse(session, error("26000", "prepared statement does not exist"));
            return;
        }
        session.bound.text = found->second;
        say(session, '2', "");  // BindComplete
    }

    void execute(Session& session) {
        const Statement statement = session.bound;
        const bool ends = statement.text == "COMMIT" || statement.text.starts_with("ROLLBACK");
        if (session.state == 'E' && !ends) {
            note_received(statement);
            refuse(session, error("25P02", "current transaction is aborted"));
            return;
        }
        flush(session);
        Answer answer = answer_to(executed_, statement);
        if (!answer.sqlstate.empty()) {
            if (statement.text == "COMMIT")
                finish_transaction(session, false);
            refuse(session, answer);
            return;
        }
        if (answer.end != End::before && !take_effect(session, statement, answer))
            return;
        if (answer.end != End::none) {
            if (answer.end == End::after)
                end_implicit_transaction(session);
            session.is_open = false;
            return;
        }
        say_answer(session, statement, answer);
    }

    // False: it was refused.
    bool take_effect(Session& session, const Statement& statement, const Answer& answer) {
        const std::string& text = statement.text;
        const bool is_savepoint = text.starts_with("SAVEPOINT");
        const bool is_release = text.starts_with("RELEASE");
        const bool is_return = text.starts_with("ROLLBACK TO");
        if ((is_savepoint || is_release || is_return) && session.state == 'I') {
            refuse(session, error("25P01", "there is no transaction"));
            return false;
        }
        if ((is_release || is_return) && session.savepoints.empty()) {
            refuse(session, error("3B001", "savepoint does not exist"));
            return false;
        }
        if (text == "BEGIN") {
            session.state = 'T';
        } else if (text == "COMMIT") {
            finish_transaction(session, session.state != 'E' && answer.tag != "ROLLBACK");
        } else if (text == "ROLLBACK") {
            finish_transaction(session, false);
        } else {
            const std::lock_guard lock(mutex_);
            if (is_savepoint) {
                session.savepoints.push_back(session.done.size());
            } else if (is_release) {
                session.savepoints.pop_back();
            } else if (is_return) {
                session.done.resize(session.savepoints.back());
                session.state = 'T';
            } else {
                session.done.push_back(statement);
            }
            if (text == "DEALLOCATE ALL")
                session.prepared.clear();
        }
        return true;
    }

    void finish_transaction(Session& session, bool commit) {
        const std::lock_guard lock(mutex_);
        if (commit)
            committed_.insert(committed_.end(), session.done.begin(), session.done.end());
        session.rolled_back = !commit;
        session.done.clear();
        session.savepoints.clear();
        session.state = 'I';
        changed_.notify_all();
    }

    // Statements outside of a transaction are one, up to Sync.
    void end_implicit_transaction(Session& session) {
        if (session.state == 'I')
            finish_transaction(session, true);
    }

    // ---------------------------------------------------------------------------------------------
    // Messages of the server
    // ---------------------------------------------------------------------------------------------

    void say_answer(Session& session, const Statement& statement, const Answer& answer) {
        if (!answer.notice.empty())
            say(session, 'N', fields("NOTICE", "00000", answer.notice));
        if (answer.is_copy) {
            say(session, 'G', std::string(1, '\0') + int16(0));  // CopyInResponse
            return;
        }
        if (session.described && answer.columns.empty())
            say(session, 'n', "");  // NoData
        if (!answer.columns.empty()) {
            std::string row = int16(answer.columns.size());
            for (const std::string& name : answer.columns)
                row += text(name) + int32(0) + int16(0) + int32(25 /* text */) + int16(0xffff) +
                       int32(0xffffffff) + int16(session.binary_results);
            say(session, 'T', row);  // RowDescription
        }
        for (const std::vector<Value>& values : answer.rows) {
            std::string row = int16(values.size());
            for (const Value& value : values)
                row += value ? int32(value->size()) + *value : int32(0xffffffff);
            say(session, 'D', row);  // DataRow
        }
        say(session, 'C', text(tag_of(session, statement, answer)));  // CommandComplete
    }

    static std::string tag_of(const Session& session, const Statement& statement,
                              const Answer& answer) {
        if (!answer.tag.empty())
            return answer.tag;
        if (statement.text == "COMMIT" && session.rolled_back)
            return "ROLLBACK";
        for (const char* verb : {"BEGIN", "COMMIT", "ROLLBACK", "SAVEPOINT", "RELEASE", "SET"})
            if (statement.text.starts_with(verb))
                return verb;
        if (statement.text.starts_with("INSERT"))
            return "INSERT 0 1";
        return "SELECT " + std::to_string(answer.rows.size());
    }

    // "Pipelining": what follows is skipped up to Sync.
    void refuse(Session& session, const Answer& answer) {
        say_error(session, answer, answer.end == End::none ? "ERROR" : "FATAL");
        session.is_open = answer.end == End::none;
        session.skipping = true;
        if (session.state == 'T')
            session.state = 'E';
        else if (session.state == 'I')
            finish_transaction(session, false);
    }

    void say_error(Session& session, const Answer& answer, const std::string& severity) {
        say(session, 'E', fields(severity, answer.sqlstate, answer.message));
    }

    static std::string fields(const std::string& severity, const std::string& sqlstate,
                              const std::string& message) {
        return 'S' + text(severity) + 'V' + text(severity) + 'C' + text(sqlstate) + 'M' +
               text(message) + '\0';
    }

    void say_ready(Session& session) {
        const std::lock_guard lock(mutex_);
        synchronized_++;
        say(session, 'Z', std::string(1, session.state));
    }

    static void say(Session& session, char type, const std::string& body) {
        session.out += type + int32(body.size() + 4) + body;
    }

    static std::string int32(std::uint64_t number) {
        const std::uint32_t ordered = htonl(static_cast<std::uint32_t>(number));
        return {reinterpret_cast<const char*>(&ordered), sizeof ordered};
    }
    static std::string int16(std::uint64_t number) {
        const std::uint16_t ordered = htons(static_cast<std::uint16_t>(number));
        return {reinterpret_cast<const char*>(&ordered), sizeof ordered};
    }
    static std::string text(const std::string& text) { return text + '\0'; }

    // ---------------------------------------------------------------------------------------------
    // The script
    // ---------------------------------------------------------------------------------------------

    void add(std::list<Rule>& rules, Rule rule) {
        const std::lock_guard lock(mutex_);
        rules.push_front(std::move(rule));
    }

    void note_received(const Statement& statement) {
        const std::lock_guard lock(mutex_);
        received_.push_back(statement);
        changed_.notify_all();
    }

    Answer answer_to(std::list<Rule>& rules, const Statement& statement) {
        if (&rules == &executed_)
            note_received(statement);
        std::unique_lock lock(mutex_);
        changed_.wait(lock,
                      [&] { return stopping_ || &rules != &executed_ || !is_held(statement); });
        const auto rule = std::ranges::find_if(
            rules, [&](const Rule& r) { return r.times != 0 && statement.has(r.part); });
        if (rule == rules.end())
            return {};
        if (rule->times > 0)
            rule->times--;
        const Script script = rule->script;
        lock.unlock();
        return script(statement);
    }

    bool is_held(const Statement& statement) const {
        return !held_.empty() && statement.has(held_) &&
               std::ranges::any_of(received_, [&](const Statement& earlier) {
                   return earlier.connection == statement.connection && earlier.has(held_after_);
               });
    }

    void wait_for(const std::vector<Statement>& all, std::string_view part,
                  std::size_t count) const {
        std::unique_lock lock(mutex_);
        const auto arrived = [&] { return with(all, part).size() >= count; };
        if (!changed_.wait_for(lock, std::chrono::seconds(120), arrived))
            ADD_FAILURE() << "there are " << with(all, part).size() << " of " << count
                          << " statements with \"" << part << '"';
    }

    static std::vector<Statement> with(const std::vector<Statement>& all, std::string_view part) {
        std::vector<Statement> found;
        std::ranges::copy_if(all, std::back_inserter(found),
                             [&](const Statement& s) { return s.has(part); });
        return found;
    }

    int listener_ = -1;
    int port_ = 0;
    std::thread acceptor_;

    mutable std::mutex mutex_;  // of all below, and of what a session has done and prepared
    mutable std::condition_variable changed_;
    std::list<Session> sessions_;
    std::list<Rule> executed_, prepared_;
    std::string held_, held_after_;
    std::vector<Statement> received_, committed_;
    int synchronized_ = 0;
    int prepared_count_ = 0;
    bool stopping_ = false;
};

}  // namespace outbox
