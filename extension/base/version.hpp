// The library and the SQL objects of a database are installed one after the other: the library with
// the package, the objects by ALTER EXTENSION in each database. In between they may not fit.
//
// They fit when the first two numbers of their versions are equal: whatever must change on both
// sides together changes one of these.
#pragma once

namespace outbox {

struct VersionProblem {
    char message[256];
    const char* hint;
};

// Looks at the extension in the current database. True: it is there, and there is a problem.
bool find_version_problem(VersionProblem& problem);

}  // namespace outbox
