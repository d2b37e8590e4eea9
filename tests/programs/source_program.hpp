// A program with one source, which takes the commands of source_driver.hpp.
#pragma once

#include <exception>
#include <iostream>
#include <memory>

#include "option_values.hpp"
#include "source_driver.hpp"

namespace driver {

// `make` makes the source from options; `drive` runs commands on it. Returns the exit code.
template <class Make, class Drive>
int run_program(int count, char** arguments, Make make, Drive drive) {
    Options options(count, arguments);
    try {
        const auto source = make(options);
        if (!options.are_all_taken())
            return 2;
        drive(*source);
    } catch (const std::exception& error) {
        std::cerr << error.what() << '\n';
        return 1;
    }
    return 0;
}

}  // namespace driver
