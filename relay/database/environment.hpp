// The settings of libpq that come from the environment: PGPASSFILE, PGSSLROOTCERT, a service, and
// so on. They hold for the databases of outbox-relay. Destinations must not get them, and one of
// the sinks removes such variables, which is not safe once there are threads.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace outbox::relay {

using ConnectionParameters = std::vector<std::pair<std::string, std::string>>;

// The first call takes the settings out of the environment. It must come before there are threads.
const ConnectionParameters& connection_environment();

}  // namespace outbox::relay
