// The SQS source by itself: sqs_source OPTION=VALUE ..., as inbox::SqsOptions names them, and takes
// the commands of source_driver.hpp. With conninfo=... instead a consumer that calls the SQL
// function handle(event_id, key, type, version, payload) for each event, until its input ends.
#include <thread>

#include "inbox/consumer.hpp"
#include "inbox/sources/sqs.hpp"
#include "source_driver.hpp"

static inbox::SqsOptions sqs_options(driver::Options& options) {
    inbox::SqsOptions o;
    options.take("queue", o.queue);
    options.take("region", o.region);
    options.take("account", o.account);
    options.take("endpoint", o.endpoint);
    options.take("access_key_id", o.access_key_id);
    options.take("secret_access_key", o.secret_access_key);
    options.take("session_token", o.session_token);
    options.take("profile", o.profile);
    options.take("pollers", o.pollers);
    options.take("visibility", o.visibility);
    options.take("poll", o.poll);
    options.take("ca_file", o.ca_file);
    options.take("connect_timeout", o.connect_timeout);
    options.take("request_timeout", o.request_timeout);
    options.take("retry_base", o.retry_base);
    options.take("retry_max", o.retry_max);
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
    const inbox::SqsOptions o = sqs_options(options);
    if (!options.are_all_taken())
        return 2;
    try {
        auto source = std::make_unique<inbox::SqsSource>(o);
        if (conninfo.empty())
            driver::Driver(*source).run();
        else
            consume(conninfo, std::move(source));
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
}
