// A consumer for the tests: consume CONNINFO OPTION=VALUE ...
//
// Options: those of inbox::ConsumerOptions by name, times in milliseconds. With pull=CONNINFO
// events come from there (destination=, lease=, max_events=, max_answer=), with pubsub=PROJECT/SUBSCRIPTION from
// there (emulator_host=, ack_deadline= in seconds), with kafka=BROKERS, nats=SERVERS, rabbitmq=SERVER,
// redis=SERVERS or sqs=QUEUE from there (options as in kafka_options.hpp and so on, with kafka_ before
// them), otherwise from a script. With die=POINT and after=EVENTS it dies: see dying.hpp. With otlp=URL
// it sends spans there.
//
// For each event it calls the SQL function handle(event_id, key, type, version, payload) of the
// database, except for those whose type says what the C++ handler is to do: see apply().
//
// Reads commands from its input, a line each with fields separated by tabs, and answers each with a
// line: see command(). At the end of the input it stops, and prints the state once more.
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "dying.hpp"
#include "inbox/consumer.hpp"
#include "inbox/otlp.hpp"
#include "inbox/sources/pull.hpp"
#include "inbox/sources/scripted.hpp"
#ifdef WITH_KAFKA
#include "kafka_options.hpp"
#endif
#ifdef WITH_PUBSUB
#include "inbox/sources/pubsub.hpp"
#endif
#ifdef WITH_RABBITMQ
#include "rabbitmq_options.hpp"
#endif
#include "nats_options.hpp"
#include "redis_options.hpp"
#include "sqs_options.hpp"

namespace {

using Options = std::map<std::string, std::string>;
using std::chrono::milliseconds;

// ------------------------------------------------------------------------------------------------
// The handler
// ------------------------------------------------------------------------------------------------

std::vector<inbox::Parameter> parameters_of(const inbox::Event& e) {
    return {e.id, e.ordering_key, e.type,
            e.version ? inbox::Parameter(std::to_string(*e.version)) : std::nullopt, e.payload};
}

constexpr const char* handle_sql = "SELECT handle($1::uuid, $2, $3, $4::bigint, $5)";

void apply(inbox::Transaction& t, const inbox::Event& e) {
    if (e.type == "throw")
        throw std::runtime_error("no\xff good");
    if (e.type == "throw_int")
        throw 1;
    if (e.type == "permanent")
        throw inbox::PermanentFailure("never");
    if (e.type == "sleep")
        std::this_thread::sleep_for(milliseconds(std::stoi(*e.payload)));
    if (e.type == "swallow") {
        try {
            t.execute("SELECT 1/0");
        } catch (const inbox::DatabaseError&) {
        }
        return;
    }
    if (e.type == "commit") {
        t.execute("COMMIT");
        return;
    }
    if (e.type == "native") {
        PGconn* connection = t.native();
        PQclear(PQexec(connection, "COPY copied FROM STDIN"));
        PQputCopyData(connection, "1\n", 2);
        PQputCopyEnd(connection, nullptr);
        PQclear(PQgetResult(connection));
        while (PGresult* rest = PQgetResult(connection))
            PQclear(rest);
    }
    if (e.type == "native_commit") {
        PQclear(PQexec(t.native(), "COMMIT"));
        return;
    }
    if (e.type == "statement")
        t.execute(*e.payload);
    if (e.type == "apply") {
        t.apply("item", {"id"}, "version", *e.payload);
        return;
    }
    if (e.type == "star")
        t.execute("SELECT * FROM item WHERE id = $1", {e.ordering_key});
    if (e.type == "execute") {
        const inbox::Result result =
            t.execute("SELECT count(*) FROM applied WHERE key = $1", {e.ordering_key});
        t.queue("INSERT INTO counted VALUES ($1::uuid, $2::bigint)",
                {e.id, std::string(result.text(0, 0))});
    }
    t.queue(handle_sql, parameters_of(e));
}

// ------------------------------------------------------------------------------------------------
// State, as JSON
// ------------------------------------------------------------------------------------------------

std::string list(const std::vector<std::string>& texts) {
    std::string json = "[";
    for (const std::string& text : texts)
        json += (json.size() > 1 ? ",\"" : "\"") + text + '"';
    return json + ']';
}

std::atomic<bool> has_ended = false;  // run() has

std::string state(const inbox::Script& script, const inbox::Consumer& consumer) {
    std::ostringstream json;
    json << "{\"acked\":" << list(script.acked()) << ",\"nacked\":" << list(script.nacked())
         << ",\"seeks\":[";
    for (std::size_t i = 0; const inbox::Time seek : script.seeks())
        json << (i++ ? "," : "") << seek.time_since_epoch().count();
    json << "],\"opened\":" << script.opened()
         << ",\"closed\":" << (script.closed() ? "true" : "false")
         << ",\"ended\":" << (has_ended ? "true" : "false");
    // Behind the script: what was done before an acknowledgement that is in there is in here.
    const inbox::ConsumerMetrics m = consumer.metrics();
    const auto number = [&](const char* name, auto value) {
        json << ",\"" << name << "\":" << value;
    };
    number("received", m.received);
    number("applied", m.applied);
    number("duplicates", m.duplicates);
    number("failures", m.failures);
    number("dead", m.dead);
    number("transactions", m.transactions);
    number("in_doubt", m.in_doubt);
    number("database_reconnects", m.database_reconnects);
    number("source_reconnects", m.source_reconnects);
    number("skipped", m.skipped);
    number("recreated", m.recreated);
    number("outstanding_messages", m.outstanding_messages);
    number("outstanding_bytes", m.outstanding_bytes);
    json << '}';
    return json.str();
}

// ------------------------------------------------------------------------------------------------
// Commands
// ------------------------------------------------------------------------------------------------

std::vector<std::string> fields_of(const std::string& line) {
    std::vector<std::string> fields;
    std::istringstream in(line);
    for (std::string field; std::getline(in, field, '\t');)
        fields.push_back(field);
    fields.resize(6);
    return fields;
}

std::string command(const std::string& line, inbox::Script& script, inbox::Consumer& consumer) {
    const std::vector<std::string> f = fields_of(line);
    if (f[0] == "deliver") {  // id, key, type, version, payload
        inbox::Event event;
        event.id = f[1];
        event.ordering_key = f[2];
        event.aggregate_type = "item";
        event.aggregate_id = f[2];
        event.topic = "item.events";
        event.type = f[3];
        if (!f[4].empty())
            event.version = std::stoll(f[4]);
        event.payload = f[5];
        event.headers = {{"h", "\"1\""}};
        event.occurred_at =
            std::chrono::time_point_cast<inbox::Time::duration>(std::chrono::system_clock::now());
        script.deliver(event);
    } else if (f[0] == "fail_open") {
        script.fail_open(std::stoi(f[1]), "scripted", f[2] != "for good");
    } else if (f[0] == "fail_receive") {
        script.fail_receive(std::stoi(f[1]), "scripted", f[2] != "for good");
    } else if (f[0] == "metrics") {
        std::string text = inbox::open_metrics(consumer.metrics(), "c");
        for (char& c : text)
            c = c == '\n' ? '|' : c;
        return text;
    } else if (f[0] == "stop") {
        consumer.stop();
    } else if (f[0] != "state") {
        return "unknown: " + line;
    }
    return state(script, consumer);
}

std::string taken(Options& options, const std::string& name, const std::string& otherwise) {
    const auto found = options.extract(name);
    return found ? found.mapped() : otherwise;
}

inbox::ConsumerOptions consumer_options(Options& options) {
    inbox::ConsumerOptions o;
    const auto number = [&](const char* name, auto& value) {
        value = static_cast<std::decay_t<decltype(value)>>(
            std::stoll(taken(options, name, std::to_string(value))));
    };
    const auto time = [&](const char* name, milliseconds& value) {
        value = milliseconds{std::stoll(taken(options, name, std::to_string(value.count())))};
    };
    o.name = taken(options, "name", "c");
    o.instance = taken(options, "instance", "test");
    number("connections", o.connections);
    number("batch_size", o.batch_size);
    number("max_attempts", o.max_attempts);
    number("max_outstanding_messages", o.max_outstanding_messages);
    number("max_outstanding_bytes", o.max_outstanding_bytes);
    number("prepare_statements", o.prepare_statements);
    o.retry_base = o.retry_max = milliseconds{1};
    time("retry_base", o.retry_base);
    time("retry_max", o.retry_max);
    o.housekeeping_interval = milliseconds{3'600'000};
    time("housekeeping_interval", o.housekeeping_interval);
    time("drain_limit", o.drain_limit);
    o.log = [](inbox::Level level, const std::string& message) {
        if (level != inbox::Level::debug)
            std::cerr << message + '\n';
    };
    return o;
}

std::unique_ptr<inbox::Source> make_pull_source(Options& options) {
    inbox::PullOptions o;
    o.lease = milliseconds{std::stoll(taken(options, "lease", "30000"))};
    o.max_events = std::stoi(taken(options, "max_events", "100"));
    o.max_answer = std::stoul(taken(options, "max_answer", std::to_string(o.max_answer)));
    return std::make_unique<inbox::PullSource>(taken(options, "pull", ""),
                                               taken(options, "destination", "d"), o);
}

#ifdef WITH_PUBSUB
std::unique_ptr<inbox::Source> make_pubsub_source(Options& options) {
    const std::string place = taken(options, "pubsub", "");
    inbox::PubSubOptions o;
    o.project = place.substr(0, place.find('/'));
    o.subscription = place.substr(place.find('/') + 1);
    o.emulator_host = taken(options, "emulator_host", "");
    o.min_ack_deadline = o.max_ack_deadline =
        std::chrono::seconds{std::stoll(taken(options, "ack_deadline", "10"))};
    return std::make_unique<inbox::PubSubSource>(o);
}
#endif

// Takes the options of a source: `first` has the name of the source, and the others begin with it.
Options take_prefixed(Options& options, const std::string& source, const std::string& first) {
    Options given{{first, taken(options, source, "")}};
    const std::string prefix = source + '_';
    for (auto at = options.lower_bound(prefix);
         at != options.end() && at->first.starts_with(prefix); at = options.erase(at))
        given[at->first.substr(prefix.size())] = at->second;
    return given;
}

#ifdef WITH_KAFKA
std::unique_ptr<inbox::Source> make_kafka_source(Options& options) {
    Options given = take_prefixed(options, "kafka", "brokers");
    return std::make_unique<inbox::KafkaSource>(driver::kafka_options(given));
}
#endif

std::unique_ptr<inbox::Source> make_nats_source(Options& options) {
    driver::Options given(take_prefixed(options, "nats", "servers"));
    return std::make_unique<inbox::NatsSource>(driver::nats_options(given));
}

#ifdef WITH_RABBITMQ
std::unique_ptr<inbox::Source> make_rabbitmq_source(Options& options) {
    driver::Options given(take_prefixed(options, "rabbitmq", "server"));
    return std::make_unique<inbox::RabbitmqSource>(driver::rabbitmq_options(given));
}
#endif

std::unique_ptr<inbox::Source> make_redis_source(Options& options) {
    driver::Options given(take_prefixed(options, "redis", "servers"));
    return std::make_unique<inbox::RedisSource>(driver::redis_options(given));
}

std::unique_ptr<inbox::Source> make_sqs_source(Options& options) {
    driver::Options given(take_prefixed(options, "sqs", "queue"));
    return std::make_unique<inbox::SqsSource>(driver::sqs_options(given));
}

std::unique_ptr<inbox::Source> make_source(Options& options,
                                           const std::shared_ptr<inbox::Script>& script) {
    if (options.contains("pull"))
        return make_pull_source(options);
    if (options.contains("redis"))
        return make_redis_source(options);
    if (options.contains("sqs"))
        return make_sqs_source(options);
#ifdef WITH_KAFKA
    if (options.contains("kafka"))
        return make_kafka_source(options);
#endif
#ifdef WITH_PUBSUB
    if (options.contains("pubsub"))
        return make_pubsub_source(options);
#endif
    if (options.contains("nats"))
        return make_nats_source(options);
#ifdef WITH_RABBITMQ
    if (options.contains("rabbitmq"))
        return make_rabbitmq_source(options);
#endif
    return std::make_unique<inbox::ScriptedSource>(script, "s");
}

inbox::Consumer* stopped_by_signal = nullptr;

}  // namespace

int main(int count, char** arguments) {
    const std::string conninfo = arguments[1];
    Options options;
    for (int i = 2; i < count; i++) {
        const std::string option = arguments[i];
        options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
    }
    const auto script = std::make_shared<inbox::Script>();
    inbox::ConsumerOptions consumer_opts = consumer_options(options);
    std::optional<inbox::OtlpExporter> spans;
    if (const std::string endpoint = taken(options, "otlp", ""); !endpoint.empty()) {
        spans.emplace(inbox::OtlpOptions{
            .endpoint = endpoint, .service = "test", .headers = {"X-Team: shop"}});
        consumer_opts.observer = spans->observer();
    }
    Death death(taken(options, "die", ""), std::stol(taken(options, "after", "1")));
    inbox::Consumer consumer(
        consumer_opts, std::make_unique<MortalSource>(make_source(options, script), death),
        [conninfo] { return PQconnectdb(conninfo.c_str()); },
        [&death](inbox::Transaction& t, const inbox::Event& e) {
            apply(t, e);
            death.at("handled");
        });
    for (const auto& [name, value] : options) {
        std::cerr << "unknown option " << name << "=" << value << '\n';
        return 2;
    }
    stopped_by_signal = &consumer;
    std::signal(SIGTERM, [](int) { stopped_by_signal->stop(); });

    int status = 0;
    std::thread runner([&] {
        try {
            consumer.run();
        } catch (const std::exception& error) {
            std::cerr << "run() threw: " << error.what() << '\n';
            status = 3;
        }
        has_ended = true;
    });
    for (std::string line; std::getline(std::cin, line);)
        std::cout << command(line, *script, consumer) << std::endl;
    consumer.stop();
    runner.join();
    std::cout << state(*script, consumer) << std::endl;
    return status;
}
