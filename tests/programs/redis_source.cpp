// The Redis source by itself: redis_source OPTION=VALUE ..., as inbox::RedisOptions names them (streams with
// commas), and takes the commands of source_driver.hpp. With conninfo=... instead a consumer that calls the SQL
// function handle(event_id, key, type, version, payload) for each event, until its input ends.
#include "inbox/sources/redis.hpp"

#include <sstream>
#include <thread>

#include "inbox/consumer.hpp"
#include "source_driver.hpp"

static inbox::RedisOptions redis_options(driver::Options& options) {
    inbox::RedisOptions o;
    std::string streams;
    options.take("servers", o.servers);
    options.take("sentinel", o.sentinel);
    options.take("database", o.database);
    options.take("streams", streams);
    options.take("group", o.group);
    options.take("consumer", o.consumer);
    options.take("create_group_from", o.create_group_from);
    options.take("user", o.user);
    options.take("password", o.password);
    options.take("sentinel_password", o.sentinel_password);
    int tls = 0;
    options.take("tls", tls);
    options.take("ca_file", o.ca_file);
    options.take("certificate", o.certificate);
    options.take("private_key", o.private_key);
    options.take("prefetch", o.prefetch);
    options.take("min_idle", o.min_idle);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
    o.tls = tls != 0;
    std::istringstream in(streams);
    for (std::string stream; std::getline(in, stream, ',');)
        o.streams.push_back(stream);
    return o;
}

static void handle(inbox::Transaction& t, const inbox::Event& e) {
    t.queue("SELECT handle($1::uuid, $2, $3, $4::bigint, $5)",
            {e.id, e.ordering_key, e.type,
             e.version ? inbox::Parameter(std::to_string(*e.version)) : std::nullopt, e.payload});
}

static void consume(const std::string& conninfo, std::unique_ptr<inbox::Source> source) {
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

int main(int count, char** arguments) {
    driver::Options options(count, arguments);
    std::string conninfo;
    options.take("conninfo", conninfo);
    const inbox::RedisOptions o = redis_options(options);
    if (!options.are_all_taken())
        return 2;
    try {
        auto source = std::make_unique<inbox::RedisSource>(o);
        if (conninfo.empty())
            driver::Driver(*source).run();
        else
            consume(conninfo, std::move(source));
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
