// The NATS source by itself: nats_source OPTION=VALUE ..., as inbox::NatsOptions names them, and takes
// the commands of source_driver.hpp. With conninfo=... instead a consumer that calls the SQL
// function handle(event_id, key, type, version, payload) for each event, until its input ends.
#include "inbox/sources/nats.hpp"

#include <thread>

#include "inbox/consumer.hpp"
#include "source_driver.hpp"

static inbox::NatsOptions nats_options(driver::Options& options) {
    inbox::NatsOptions o;
    options.take("servers", o.servers);
    options.take("stream", o.stream);
    options.take("consumer", o.consumer);
    options.take("user", o.user);
    options.take("password", o.password);
    options.take("token", o.token);
    int tls = 0, double_ack = 0;
    options.take("tls", tls);
    options.take("ca_file", o.ca_file);
    options.take("inbox_prefix", o.inbox_prefix);
    options.take("prefetch", o.prefetch);
    options.take("double_ack", double_ack);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
    o.tls = tls != 0;
    o.double_ack = double_ack != 0;
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
    const inbox::NatsOptions o = nats_options(options);
    if (!options.are_all_taken())
        return 2;
    try {
        auto source = std::make_unique<inbox::NatsSource>(o);
        if (conninfo.empty())
            driver::Driver(*source).run();
        else
            consume(conninfo, std::move(source));
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
