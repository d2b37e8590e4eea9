// The SQS source by itself: sqs_source OPTION=VALUE ..., as inbox::SqsOptions names them. See
// source_program.hpp.
#include "inbox/sources/sqs.hpp"
#include "source_program.hpp"

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

int main(int count, char** arguments) {
    return driver::run_program(
        count, arguments,
        [](driver::Options& options) {
            return std::make_unique<inbox::SqsSource>(sqs_options(options));
        },
        [](inbox::SqsSource& source) { driver::Driver(source).run(); });
}
