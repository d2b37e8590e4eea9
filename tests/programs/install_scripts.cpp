// inbox::install() with scripts of a test's own, or with those of the client and one more upgrade:
//
//     install_scripts CONNINFO [VERSION CREATE [FROM TO SCRIPT]...]
//
// Prints the version that was there and the one that is there now, or the SQLSTATE and the error.
#include <cstdio>
#include <vector>

#include "inbox/error.hpp"
#include "installer.hpp"

namespace inbox {
const Scripts& tested_scripts();
}

int main(int argc, char** argv) {
    std::vector<inbox::UpgradeScript> upgrades;
    for (int i = 4; i + 2 < argc; i += 3)
        upgrades.push_back({argv[i], argv[i + 1], argv[i + 2]});
    PGconn* connection = PQconnectdb(argv[1]);
    try {
        const inbox::Scripts scripts =
            argc > 2 ? inbox::Scripts{argv[2], argv[3], upgrades} : inbox::tested_scripts();
        const auto installed = inbox::install(connection, scripts);
        std::printf("'%s' '%s'\n", installed.from.c_str(), installed.to.c_str());
    } catch (const inbox::DatabaseError& error) {
        std::printf("%s %s\n", error.sqlstate().c_str(), error.what());
    }
    PQfinish(connection);
}
