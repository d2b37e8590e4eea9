// A program with one source: without conninfo=... it takes the commands of source_driver.hpp. With it, it
// is a consumer that calls the SQL function handle(event_id, key, type, version, payload) for each event,
// until its input ends.
#pragma once

#include <memory>
#include <thread>

#include "inbox/consumer.hpp"
#include "option_values.hpp"
#include "source_driver.hpp"

namespace driver {

inline void handle(inbox::Transaction& t, const inbox::Event& e) {
    t.queue("SELECT handle($1::uuid, $2, $3, $4::bigint, $5)",
            {e.id, e.ordering_key, e.type,
             e.version ? inbox::Parameter(std::to_string(*e.version)) : std::nullopt, e.payload});
}

inline void consume(const std::string& conninfo, std::unique_ptr<inbox::Source> source) {
    inbox::ConsumerOptions options;
    options.name = "c";
    options.log = [](inbox::Level, const std::string& message) { std::cerr << message + '\n'; };
    inbox::Consumer consumer(
        options, std::move(source), [=] { return PQconnectdb(conninfo.c_str()); }, handle);
    std::thread runner([&] { consumer.run(); });
    std::cin.peek();
    consumer.stop();
    runner.join();
}

// `make` makes the source from options; `drive` runs commands on it. Returns the exit code.
template <class Make, class Drive>
int run_program(int count, char** arguments, Make make, Drive drive) {
    Options options(count, arguments);
    std::string conninfo;
    options.take("conninfo", conninfo);
    try {
        auto source = make(options);
        if (!options.are_all_taken())
            return 2;
        if (conninfo.empty())
            drive(*source);
        else
            consume(conninfo, std::move(source));
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}

}  // namespace driver
