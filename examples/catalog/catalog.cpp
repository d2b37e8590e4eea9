// Keeps the catalog's copy of the shop's videos: applies VideoCreated, VideoUpdated and
// VideoDeleted, each once, in the order of each video.
//
//     catalog --source pull   --shop CONNINFO --destination NAME    --catalog CONNINFO
//     catalog --source pubsub --project ID    --subscription ID     --catalog CONNINFO
//
//     --name NAME          the consumer; default: catalog
//     --projection TABLE   default: catalog_read.video_projection
//     --history            also writes catalog_read.video_history
//     --publish TOPIC      also publishes an event through the outbox of this database
//
// Runs until SIGTERM or SIGINT. Then it finishes what it has begun and prints its metrics. With
// PUBSUB_EMULATOR_HOST in the environment it connects to that emulator.
#include <csignal>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>

#include <inbox/consumer.hpp>
#include <inbox/sources/pubsub.hpp>
#include <inbox/sources/pull.hpp>

namespace {

// ------------------------------------------------------------------------------------------------
// Options
// ------------------------------------------------------------------------------------------------

class Options {
  public:
    Options(int count, char** arguments) {
        for (int i = 1; i < count; ++i) {
            const std::string name = arguments[i];
            if (flags_.contains(name))
                values_[name] = "on";
            else if (names_.contains(name) && i + 1 < count)
                values_[name] = arguments[++i];
            else
                throw std::invalid_argument("no such option, or no value for it: " + name);
        }
    }

    bool has(const std::string& name) const { return values_.contains(name); }
    std::string get(const std::string& name, const std::string& otherwise) const {
        return has(name) ? values_.at(name) : otherwise;
    }
    std::string get(const std::string& name) const {
        if (!has(name))
            throw std::invalid_argument(name + " is missing");
        return values_.at(name);
    }

  private:
    const std::set<std::string> flags_{"--history"};
    const std::set<std::string> names_{"--source",  "--shop",         "--destination",
                                       "--project", "--subscription", "--catalog",
                                       "--name",    "--projection",   "--publish"};
    std::map<std::string, std::string> values_;
};

// ------------------------------------------------------------------------------------------------
// The handler
// ------------------------------------------------------------------------------------------------

class Catalog {
  public:
    explicit Catalog(const Options& options)
        : projection_(options.get("--projection", "catalog_read.video_projection")),
          history_(options.has("--history")),
          topic_(options.get("--publish", "")) {}

    void operator()(inbox::Transaction& t, const inbox::Event& e) const {
        const bool deleted = e.type == "VideoDeleted";
        if (!deleted && e.type != "VideoCreated" && e.type != "VideoUpdated")
            return;
        if (!e.payload)
            throw inbox::PermanentFailure(e.type + " without a payload");
        if (deleted)
            t.remove(projection_, {"video_id"}, "version", *e.payload);
        else
            t.apply(projection_, {"video_id"}, "version", *e.payload);
        if (history_)
            note(t, e);
        if (!topic_.empty())
            publish(t, e);
    }

  private:
    static void note(inbox::Transaction& t, const inbox::Event& e) {
        t.queue(
            "INSERT INTO catalog_read.video_history (event_id, video_id, version, event_type) "
            "VALUES ($1, $2, $3, $4)",
            {e.id, e.aggregate_id, version(e), e.type});
    }

    // Commits together with the applied event. If the event is applied again after inbox.forget(),
    // the id of the source event keeps this from being published twice.
    void publish(inbox::Transaction& t, const inbox::Event& e) const {
        t.queue(
            "SELECT outbox.enqueue('catalog_entry', $1, 'CatalogEntryChanged', "
            "jsonb_build_object('video_id', $1::text, 'version', $2::bigint), "
            "version => $2::bigint, topic => $3, source_event_id => $4)",
            {e.aggregate_id, version(e), topic_, e.id});
    }

    static inbox::Parameter version(const inbox::Event& e) {
        return e.version ? inbox::Parameter(std::to_string(*e.version)) : std::nullopt;
    }

    std::string projection_;
    bool history_;
    std::string topic_;
};

// ------------------------------------------------------------------------------------------------
// The consumer
// ------------------------------------------------------------------------------------------------

std::unique_ptr<inbox::Source> make_source(const Options& options) {
    const std::string kind = options.get("--source");
    if (kind == "pull")
        return std::make_unique<inbox::PullSource>(options.get("--shop"),
                                                   options.get("--destination"));
    if (kind != "pubsub")
        throw std::invalid_argument("no such source: " + kind);
    inbox::PubSubOptions pubsub{.project = options.get("--project"),
                                .subscription = options.get("--subscription")};
    if (const char* emulator = std::getenv("PUBSUB_EMULATOR_HOST"))
        pubsub.emulator_host = emulator;
    return std::make_unique<inbox::PubSubSource>(std::move(pubsub));
}

void log(inbox::Level level, const std::string& message) {
    static const char* const names[] = {"debug", "info", "warning", "error"};
    if (level > inbox::Level::debug)
        std::cerr << std::string(names[static_cast<int>(level)]) + ": " + message + "\n";
}

inbox::Consumer* working = nullptr;

void stop(int) {
    working->stop();
}

void run(const Options& options) {
    const std::string name = options.get("--name", "catalog");
    const std::string catalog = options.get("--catalog");
    inbox::Consumer consumer(
        {.name = name, .log = log}, make_source(options),
        [catalog] { return PQconnectdb(catalog.c_str()); }, Catalog(options));
    working = &consumer;
    std::signal(SIGTERM, stop);
    std::signal(SIGINT, stop);
    consumer.run();
    std::signal(SIGTERM, SIG_DFL);
    std::signal(SIGINT, SIG_DFL);
    std::cout << inbox::open_metrics(consumer.metrics(), name);
}

}  // namespace

int main(int count, char** arguments) {
    try {
        run(Options(count, arguments));
        return EXIT_SUCCESS;
    } catch (const std::exception& error) {
        std::cerr << "catalog: " << error.what() << '\n';
        return EXIT_FAILURE;
    }
}
