// The SQS source by itself: sqs_source OPTION=VALUE ..., as inbox::SqsOptions names them. See
// source_program.hpp.
#include "source_program.hpp"
#include "sqs_options.hpp"

int main(int count, char** arguments) {
    return driver::run_program(
        count, arguments,
        [](driver::Options& options) {
            return std::make_unique<inbox::SqsSource>(driver::sqs_options(options));
        },
        [](inbox::SqsSource& source) { driver::Driver(source).run(); });
}
