// Compares the version of the library with that of the SQL objects of a database. A package
// installs the library; ALTER EXTENSION then updates the objects of each database. Until then the
// two may not fit.
//
// They fit when the first two numbers of their versions are equal. A change that both sides must
// make together changes one of these numbers.
#pragma once

namespace outbox {

struct VersionProblem {
    char message[256];
    char hint[96];
};

// Looks at an extension of this project, pg_outbox or pg_inbox, in the current database. Returns
// true if it is installed and there is a problem.
bool find_version_problem(const char* extension, VersionProblem& problem);

}  // namespace outbox
