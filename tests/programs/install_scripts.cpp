// inbox::install() with scripts of a test's own:
//
//     install_scripts CONNINFO VERSION CREATE [FROM TO SCRIPT]...
//
// Prints the version that was there and the one that is there now, or the SQLSTATE and the error.
#include <cstdio>
#include <vector>

#include "inbox/error.hpp"
#include "installer.hpp"

int main(int argc, char** argv) {
    std::vector<inbox::UpgradeScript> upgrades;
    for (int i = 4; i + 2 < argc; i += 3)
        upgrades.push_back({argv[i], argv[i + 1], argv[i + 2]});
    PGconn* connection = PQconnectdb(argv[1]);
    try {
        const auto installed = inbox::install(connection, {argv[2], argv[3], upgrades});
        std::printf("'%s' '%s'\n", installed.from.c_str(), installed.to.c_str());
    } catch (const inbox::DatabaseError& error) {
        std::printf("%s %s\n", error.sqlstate().c_str(), error.what());
    }
    PQfinish(connection);
}
