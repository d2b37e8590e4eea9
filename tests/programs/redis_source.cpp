// The Redis source by itself: redis_source OPTION=VALUE ..., as inbox::RedisOptions names them. See
// source_program.hpp.
#include "redis_options.hpp"
#include "source_program.hpp"

int main(int count, char** arguments) {
    return driver::run_program(
        count, arguments,
        [](driver::Options& options) {
            return std::make_unique<inbox::RedisSource>(driver::redis_options(options));
        },
        [](inbox::RedisSource& source) { driver::Driver(source).run(); });
}
