#include "core/libpq_environment.hpp"

#include <unistd.h>

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace outbox {

void forget_libpq_environment() {
    std::vector<std::string> names;
    for (char** variable = environ; *variable != nullptr; variable++)
        if (const std::string_view text = *variable; text.starts_with("PG"))
            names.emplace_back(text.substr(0, text.find('=')));
    for (const std::string& name : names)
        unsetenv(name.c_str());
}

}  // namespace outbox
