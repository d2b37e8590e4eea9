#include "relay/configure/check.hpp"

#include <libpq-fe.h>
#include <poll.h>

#include <algorithm>
#include <map>
#include <memory>

#include "core/event.hpp"
#include "core/libpq_error.hpp"
#include "core/powerful_role.hpp"
#include "core/text.hpp"
#include "relay/configure/check_output.hpp"
#include "relay/configure/connection.hpp"
#include "relay/configure/destinations.hpp"
#include "relay/configure/fitting.hpp"
#include "sinks/sink_loader.hpp"

namespace outbox::relay {

namespace {

constexpr Micros answer_timeout = seconds(30);
constexpr std::uint64_t max_answer = 64 * 1024 * 1024;

using Rows = std::unique_ptr<PGresult, decltype(&PQclear)>;

std::string text_at(const Rows& rows, int row, int column) {
    const char* value = PQgetvalue(rows.get(), row, column);
    return value != nullptr ? value : "";  // a database of another version has fewer columns
}

// -------------------------------------------------------------------------------------------------
// One database
// -------------------------------------------------------------------------------------------------

class DatabaseCheck {
  public:
    DatabaseCheck(const RelayConfig& config, const DatabaseConfig& database, CheckOutput& output)
        : config_(config), database_(database), output_(output) {}

    // All databases are connected before destinations are checked: a sink removes the variables of
    // libpq from the environment.
    void connect();
    void check();

  private:
    void find(std::string subject, bool ok, std::string detail);
    Rows query(const char* statement);
    void refused(const char* subject, const Rows& rows);
    void set_defaults(std::map<std::string, std::string>& settings);
    bool read_settings();
    bool read_destinations();
    bool read_expressions();
    bool show_connection();
    void check_destination(const DestinationRow& row);

    const RelayConfig& config_;
    const DatabaseConfig& database_;
    CheckOutput& output_;
    LibpqConnection connection_;
    std::string failure_;  // to connect
    std::string source_;   // name of the database in the server
    DestinationDefaults defaults_;
    std::vector<DestinationRow> rows_;
    // By number of a destination with expressions: why they cannot be evaluated, or empty.
    std::map<int, std::string> expressions_;
};

void DatabaseCheck::find(std::string subject, bool ok, std::string detail) {
    if (connection_.connection != nullptr)
        detail = without_passwords(connection_.connection, std::move(detail));
    output_.add(database_.name, "", {std::move(subject), ok, std::move(detail)});
}

void DatabaseCheck::connect() {
    connection_ = outbox::relay::connect(
        connection_parameters(database_, connection_environment(), "outbox-relay --check"));
    failure_ = connection_.failure;
}

// Returns no result if there is no answer in time, or too much of it.
Rows DatabaseCheck::query(const char* statement) {
    if (PQsendQueryParams(connection_.connection, statement, 0, nullptr, nullptr, nullptr, nullptr,
                          0) != 1)
        return {nullptr, &PQclear};
    return {last_result(connection_, {.bytes = max_answer, .time = answer_timeout}, failure_),
            &PQclear};
}

// Adds a finding with the server's error and what to do about it.
void DatabaseCheck::refused(const char* subject, const Rows& rows) {
    const auto field = [&](int code) {
        const char* text = PQresultErrorField(rows.get(), code);
        return std::string(text != nullptr ? text : "");
    };
    Error error{ErrorKind::unavailable, field(PG_DIAG_MESSAGE_PRIMARY),
                field(PG_DIAG_MESSAGE_DETAIL), field(PG_DIAG_MESSAGE_HINT)};
    const std::string state = field(PG_DIAG_SQLSTATE);
    const char* role = PQuser(connection_.connection);
    if (error.message.empty())
        error.message = failure_.empty() ? PQerrorMessage(connection_.connection) : failure_;
    if (error.message.empty())
        error.message = "the server does not answer";
    if (state == "42501")
        error.hint = "As the owner of pg_outbox: SELECT outbox.grant_relay('" +
                     std::string(role != nullptr ? role : "") + "');";
    else if (state == "3F000" || state == "42883" || state == "42P01")
        error.hint = "pg_outbox is missing in this database, or older than outbox-relay.";
    find(subject, false, in_one_line(error));
}

bool DatabaseCheck::show_connection() {
    static const std::string question =
        "SELECT pg_catalog.current_setting('server_version'), "
        "coalesce((" +
        std::string(power_question) + "), ''), pg_catalog.pg_is_in_recovery()";
    const Rows rows = query(question.c_str());
    if (PQresultStatus(rows.get()) != PGRES_TUPLES_OK) {
        refused("connection", rows);
        return false;
    }
    if (const std::string power = text_at(rows, 0, 1); !power.empty() && !database_.trusted) {
        find("connection", false,
             in_one_line(too_powerful(database_, PQuser(connection_.connection), power)));
        return false;
    }
    if (text_at(rows, 0, 2) == "t") {
        find("connection", false, in_one_line(is_standby()));
        return false;
    }
    find("connection", true,
         "PostgreSQL " + text_at(rows, 0, 0) + ", role " + PQuser(connection_.connection) +
             (connection_.keeps_session ? ", direct" : ", through a pooler"));
    return true;
}

void DatabaseCheck::set_defaults(std::map<std::string, std::string>& settings) {
    const auto duration = [&](const char* name, Micros otherwise) {
        const auto in_milliseconds = parse_integer(settings[name]);
        return in_milliseconds ? milliseconds(*in_milliseconds) : otherwise;
    };
    const auto text = [](const char* of_connection) {
        return std::string(of_connection != nullptr ? of_connection : "");
    };
    source_ = settings["database"];
    defaults_.connect_timeout = duration("connect_timeout", defaults_.connect_timeout);
    defaults_.request_timeout = duration("request_timeout", defaults_.request_timeout);
    defaults_.receipts = settings["receipts"] == "on";
    defaults_.allowed_hosts = settings["allowed_hosts"];
    defaults_.local_host = text(PQhost(connection_.connection));
    defaults_.local_port = text(PQport(connection_.connection));
}

bool DatabaseCheck::read_settings() {
    const Rows rows = query("SELECT name, value FROM outbox_internal.relay_settings()");
    if (PQresultStatus(rows.get()) != PGRES_TUPLES_OK) {
        refused("pg_outbox", rows);
        return false;
    }
    std::map<std::string, std::string> settings;
    for (int row = 0; row < PQntuples(rows.get()); row++)
        settings[text_at(rows, row, 0)] = text_at(rows, row, 1);
    set_defaults(settings);
    const std::string& version = settings["version"];
    const std::optional<Error> problem = version_problem(version);
    find("pg_outbox", !problem,
         problem ? in_one_line(*problem) : version + ", " + settings["edition"] + " edition");
    return !problem;
}

bool DatabaseCheck::read_destinations() {
    const Rows rows = query(
        "SELECT d.number, d.name, d.owner, d.password_required, d.may_read_files, o.of_mapping, "
        "o.text FROM outbox_internal.relay_destinations() AS d LEFT JOIN LATERAL "
        "(SELECT false, unnest(d.options) UNION ALL SELECT true, unnest(d.mapping_options)) "
        "AS o(of_mapping, text) ON true ORDER BY d.name");
    if (PQresultStatus(rows.get()) != PGRES_TUPLES_OK) {
        refused("destinations", rows);
        return false;
    }
    for (int row = 0; row < PQntuples(rows.get()); row++) {
        const int number = static_cast<int>(parse_integer(text_at(rows, row, 0)).value_or(0));
        if (!database_.serves(text_at(rows, row, 1)))
            continue;
        if (rows_.empty() || rows_.back().number != number)
            rows_.push_back({number, text_at(rows, row, 1), text_at(rows, row, 2),
                             text_at(rows, row, 3) == "t", text_at(rows, row, 4) == "t"});
        if (!PQgetisnull(rows.get(), row, 6)) {
            DestinationRow& last = rows_.back();
            (text_at(rows, row, 5) == "t" ? last.mapping_options : last.options)
                .push_back(option_of(text_at(rows, row, 6)));
        }
    }
    find("destinations", true, std::to_string(rows_.size()) + " to serve");
    return true;
}

bool DatabaseCheck::read_expressions() {
    const Rows rows = query(
        "SELECT number, coalesce(trouble, '') FROM outbox_internal.relay_check_expressions()");
    if (PQresultStatus(rows.get()) != PGRES_TUPLES_OK) {
        refused("expressions", rows);
        return false;
    }
    for (int row = 0; row < PQntuples(rows.get()); row++)
        expressions_[static_cast<int>(parse_integer(text_at(rows, row, 0)).value_or(0))] =
            text_at(rows, row, 1);
    return true;
}

void DatabaseCheck::check() {
    if (!failure_.empty()) {
        find("connection", false, failure_);
        return;
    }
    const bool readable =
        show_connection() && read_settings() && read_destinations() && read_expressions();
    connection_.close();
    if (readable)
        for (const DestinationRow& row : rows_)
            check_destination(row);
}

// -------------------------------------------------------------------------------------------------
// One destination
// -------------------------------------------------------------------------------------------------

// Names of the topics or queues that are known without an event: what the template makes of topics
// that the destination takes and that are written without a wildcard.
std::vector<std::string> targets_of(const Destination& destination) {
    std::vector<std::string> targets;
    if (destination.sink->target == nullptr)
        return targets;
    const TextTemplate name = destination.options.name(*destination.sink->target);
    const std::string topics =
        name.is_constant() ? "constant" : destination.options.text(topics_option);
    std::string_view rest = topics;
    while (!rest.empty()) {
        const std::size_t comma = std::min(rest.find(','), rest.size());
        const std::string_view topic = trim(rest.substr(0, comma));
        rest.remove_prefix(std::min(comma + 1, rest.size()));
        if (topic.find('*') != std::string_view::npos || !name.needs_only_topic())
            continue;
        Event event;
        event.topic = topic;
        std::string target;
        name.append_to(target, event, destination.source);
        if (std::find(targets.begin(), targets.end(), target) == targets.end())
            targets.push_back(std::move(target));
    }
    return targets;
}

void wait_for(const Check& check, const Clock& clock) {
    const Micros due = check.deadline();
    const Micros left = due == never ? seconds(60) : std::max<Micros>(due - clock.now(), 0);
    pollfd ready{check.descriptor(), POLLIN, 0};
    poll(&ready, 1, static_cast<int>((std::min(left, seconds(60)) + 999) / 1000));
}

void DatabaseCheck::check_destination(const DestinationRow& row) {
    const auto add = [&](const Finding& finding) {
        output_.add(database_.name, row.name, finding);
    };
    Result<Destination> made = make_destination(row, defaults_, database_, config_);
    if (!made) {
        add({"options", false, in_one_line(made.error())});
        return;
    }
    made.value().source = source_;
    const Destination& destination = made.value();
    add({"options", true, destination.url_text});
    if (const auto found = expressions_.find(row.number); found != expressions_.end())
        add({"expressions", found->second.empty(),
             found->second.empty() ? "they can be evaluated" : found->second});

    const SystemClock clock;
    const std::vector<std::string> targets = targets_of(destination);
    const Result<std::unique_ptr<Check>> check = create_check({destination, clock, targets});
    if (!check) {
        add({"module", false, in_one_line(check.error())});
        return;
    }
    if (check.value() == nullptr) {
        add({"connection", true, std::string(destination.sink->check)});
        return;
    }
    for (bool done = false; !done;) {
        std::vector<Finding> findings;
        done = check.value()->step(clock.now(), findings);
        std::for_each(findings.begin(), findings.end(), add);
        if (!done)
            wait_for(*check.value(), clock);
    }
}

}  // namespace

bool check_everything(const RelayConfig& config) {
    CheckOutput output(config.log_format);
    std::vector<std::unique_ptr<DatabaseCheck>> checks;
    for (const DatabaseConfig& database : config.databases) {
        checks.push_back(std::make_unique<DatabaseCheck>(config, database, output));
        checks.back()->connect();
    }
    for (const auto& check : checks)
        check->check();
    return output.all_ok();
}

}  // namespace outbox::relay
