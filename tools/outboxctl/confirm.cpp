#include "confirm.hpp"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "session.hpp"

namespace outboxctl {

void confirm(const std::string& question, bool yes) {
    if (yes)
        return;
    if (isatty(STDIN_FILENO) == 0)
        throw Refused(question + " Nobody can be asked here.\nHINT:  Use --yes.");
    std::fprintf(stderr, "%s [y/N] ", question.c_str());
    std::string answer;
    std::getline(std::cin, answer);
    if (answer != "y" && answer != "yes")
        throw Refused("nothing is done");
}

}  // namespace outboxctl
