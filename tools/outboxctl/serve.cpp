// outboxctl serve: figures for Prometheus, and the console, over HTTP.
//
// Threads: those of lib/front answer requests. One scrape at a time works on the databases, under
// mutex_, and one request of the console, under a mutex of its own. The main thread waits for a signal.
// All threads block signals.
//
// Each of them connects and disconnects: a session that stayed would be in the way of DROP DATABASE.
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "commands.hpp"
#include "console_routes.hpp"
#include "front/http_front.hpp"
#include "metrics_page.hpp"
#include "served_databases.hpp"

namespace outboxctl {

namespace {

struct Arguments {
    std::string listen = "127.0.0.1:9187";
    bool all = false;
    bool console = false, console_write = false;
    std::string token_file;
};

std::string escaped(const std::string& label) {
    std::string text;
    for (const char c : label)
        text += c == '\\' ? "\\\\" : c == '"' ? "\\\"" : c == '\n' ? "\\n" : std::string(1, c);
    return text;
}

class Exporter {
  public:
    Exporter(std::vector<std::string> databases, bool all)
        : databases_(std::move(databases)), all_(all) {}

    // Empty if too many scrapes wait: the console needs threads, too.
    std::string metrics() {
        const Turn turn(waiting_);
        if (turn.others >= max_waiting)
            return "";
        const std::lock_guard lock(mutex_);
        std::vector<std::string> pages;
        for (const std::string& database : databases_)
            for (const std::string& name : names(database, pages))
                scrape(database, name, pages);
        return join_metrics(pages);
    }

  private:
    static constexpr int max_waiting = 4;

    struct Turn {
        explicit Turn(std::atomic<int>& count) : count_(count), others(count++) {}
        ~Turn() { count_--; }
        Turn(const Turn&) = delete;
        Turn& operator=(const Turn&) = delete;

        std::atomic<int>& count_;
        const int others;
    };

    // The databases to look at.
    std::vector<std::string> names(const std::string& database, std::vector<std::string>& pages) {
        try {
            return served_names(database, all_);
        } catch (const std::exception& error) {
            report(database, "", error.what(), pages);
            return {};
        }
    }

    void scrape(const std::string& database, const std::string& name,
                std::vector<std::string>& pages) {
        Session session;
        session.unattended = true;
        try {
            session.use(database, name);
            session.run_script(limits_of_requests);
            const Result found = session.query(
                "SELECT bool_or(n.nspname = 'outbox' AND r.may), bool_or(n.nspname = 'inbox' AND "
                "r.may), current_database(), bool_and(r.may) FROM pg_proc AS p JOIN pg_namespace "
                "AS n ON n.oid = p.pronamespace CROSS JOIN LATERAL (SELECT "
                "has_schema_privilege(n.oid, 'USAGE') AND has_function_privilege(p.oid, "
                "'EXECUTE')) AS r(may) WHERE p.proname = 'metrics' AND n.nspname IN ('outbox', "
                "'inbox')");
            const bool outbox = found.text(0, 0) == "t", inbox = found.text(0, 1) == "t",
                       hidden = found.text(0, 3) == "f";
            const std::string shown(found.text(0, 2));
            if (hidden)
                std::fprintf(stderr, "outboxctl: the role may not monitor all of database \"%s\"\n",
                             shown.c_str());
            if (outbox)
                pages.emplace_back(session.query("SELECT outbox.metrics()").text(0, 0));
            if (inbox)
                pages.emplace_back(session.query("SELECT inbox.metrics()").text(0, 0));
            if (outbox || inbox || hidden || !all_)
                pages.push_back(up(shown, (outbox || inbox) && !hidden));
        } catch (const std::exception& error) {
            report(database, name, error.what(), pages);
        }
    }

    static std::string up(const std::string& database, bool is_up) {
        return "# TYPE outboxctl_up gauge\n"
               "# HELP outboxctl_up Whether the figures of the database could be read.\n"
               "outboxctl_up{database=\"" +
               escaped(database) + "\"} " + (is_up ? "1" : "0") + '\n';
    }

    // Connection strings may have passwords, and are not shown.
    static void report(const std::string& database, const std::string& name, const char* error,
                       std::vector<std::string>& pages) {
        std::fprintf(stderr, "outboxctl: %s\n", error);
        pages.push_back(up(name.empty() ? name_in(database) : name, false));
    }

    const std::vector<std::string> databases_;
    const bool all_;
    std::atomic<int> waiting_{0};
    std::mutex mutex_;
};

std::pair<std::string, int> split(const std::string& listen) {
    const std::size_t colon = listen.rfind(':');
    const std::string port = colon == std::string::npos ? "" : listen.substr(colon + 1);
    if (port.empty() || port.size() > 5 ||
        port.find_first_not_of("0123456789") != std::string::npos)
        throw WrongUsage("--listen is HOST:PORT, such as 127.0.0.1:9187, not \"" + listen + '"');
    return {listen.substr(0, colon), std::stoi(port)};
}

// Browsers keep several connections open, and a request may wait for a database.
constexpr outbox::HttpClients::Limits limits{.request_line = 8192, .body = 8192, .workers = 16};

// These ask no database, and are answered however many requests wait for one. Any other spelling of them
// waits with the others.
bool is_quick(std::string_view request) {
    constexpr std::string_view pages[] = {"/healthz", "/console", "/console/console.css",
                                          "/console/console.js", "/console/login"};
    const std::string_view line = request.substr(0, request.find("\r\n"));
    const std::size_t begin = line.find(' ') + 1;
    const std::string_view page = line.substr(begin, line.find_first_of(" ?", begin) - begin);
    return std::find(std::begin(pages), std::end(pages), page) != std::end(pages);
}

void serve(const std::vector<std::string>& databases, const Arguments& arguments) {
    const auto [host, port] = split(arguments.listen);
    if (!arguments.console && (arguments.console_write || !arguments.token_file.empty()))
        throw WrongUsage("--console-write and --token-file need --console");
    setenv("PGCONNECT_TIMEOUT", "10", 0);  // a server that is gone holds up nobody for long
    std::unique_ptr<Console> console;
    if (arguments.console)
        console = std::make_unique<Console>(databases, arguments.all, arguments.console_write,
                                            arguments.token_file);
    sigset_t all, ends;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);  // threads inherit it

    Exporter exporter(databases, arguments.all);
    outbox::HttpFront server({"Host", "Cookie", "Origin", "Sec-Fetch-Site", "X-CSRF-Token",
                              "Content-Type", "Content-Length"},
                             limits, is_quick);
    server.Get("/metrics", [&](const httplib::Request&, httplib::Response& response) {
        const std::string page = exporter.metrics();
        response.status = page.empty() ? 503 : 200;
        response.set_content(page, "application/openmetrics-text; version=1.0.0; charset=utf-8");
    });
    server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
        response.set_content("ok\n", "text/plain");
    });
    if (console)
        console->add_to(server);
    if (!server.listen_at(host, port))
        throw Refused("could not listen on " + arguments.listen +
                      "\nHINT:  Is another process listening there?");
    server.start();
    if (console)
        console->announce(host + ':' + std::to_string(server.port()));
    std::printf("serves http://%s:%d/metrics\n", host.c_str(), server.port());
    std::fflush(stdout);
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    int signal = 0;
    sigwait(&ends, &signal);
}

}  // namespace

void add_serve_command(Command app, Session& session) {
    add_command<Arguments>(
        app, "serve",
        "Serves figures of databases for Prometheus (/metrics, /healthz), and a web console.",
        "  outboxctl serve -d shop -d catalog\n"
        "  outboxctl serve --all --listen 0.0.0.0:9187\n"
        "  outboxctl serve --all --console --token-file /etc/outboxctl/token\n\n"
        "The role needs outbox.grant_monitor() and inbox.grant_monitor(); for dead letters and "
        "operations in the console, grant_operate(). It must not be a superuser.\n",
        [](Command command, Arguments& arguments) {
            command.option("--listen", arguments.listen, "HOST:PORT; default: 127.0.0.1:9187");
            command.flag("--all", arguments.all,
                         "All databases of the server that have pg_outbox or pg_inbox");
            command.flag("--console", arguments.console, "Serve the web console: /console");
            command.flag("--console-write", arguments.console_write,
                         "The console may pause, resume, redrive and discard");
            command.option("--token-file", arguments.token_file,
                           "File with the token that the console asks for; default: a new one, "
                           "printed on standard error");
        },
        [&session](const Arguments& arguments) { serve(session.take_databases(), arguments); });
}

}  // namespace outboxctl
