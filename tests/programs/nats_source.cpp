// The NATS source by itself: nats_source OPTION=VALUE ..., as inbox::NatsOptions names them. See
// source_program.hpp.
#include "nats_options.hpp"
#include "source_program.hpp"

int main(int count, char** arguments) {
    return driver::run_program(
        count, arguments,
        [](driver::Options& options) {
            return std::make_unique<inbox::NatsSource>(driver::nats_options(options));
        },
        [](inbox::NatsSource& source) { driver::Driver(source).run(); });
}
